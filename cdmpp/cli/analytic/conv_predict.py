"""`cdmpp analytic conv predict` and `pick`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.collect.cudnn_collect import read_layer_list
from cdmpp.analytic.conv.networks import NETWORKS, network_layers
from cdmpp.analytic.conv.predict import limit_shares, load_model, predict_layers
from cdmpp.analytic.conv.seer.model import type_name
from cdmpp.analytic.conv.shapes import ConvShapes, IntArray
from cdmpp.cli.analytic.conv import LAYER_HELP, add_model_option, parse_layers
from cdmpp.cli.shared.options import add_output_options
from cdmpp.text import aligned, percent_text, seconds_text


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic conv predict` and of `pick`."""
    add_model_option(parser)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--layer", action="append", default=None, metavar="SIZES", help=f"{LAYER_HELP}; repeatable"
    )
    group.add_argument("--list", type=Path, metavar="FILE", help="file of layers (a count, lines)")
    group.add_argument("--network", choices=NETWORKS, help="the convolutions of a network")
    parser.add_argument("--batch", type=int, default=128, metavar="N", help="of --network")
    parser.add_argument("--device", metavar="NAME", help="label of the GPU")
    add_output_options(parser)


add_pick_options = add_predict_options


def run_predict(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv predict`; returns the exit code."""
    shapes, count = _asked(args.network, args.batch, args.list, args.layer)
    found = predict_layers(load_model(args.model), shapes, args.device)
    time_ms, algorithm, kind = found.time_ms, found.algorithm, found.kernel_type
    shares = limit_shares(found, count)
    if args.json:
        rows = [
            {
                **shapes.row(row),
                "count": int(count[row]),
                "time_ms": float(time_ms[row]),
                "algorithm": _algorithm_name(algorithm[row]),
                "limit": type_name(int(kind[row])),
            }
            for row in range(len(shapes))
        ]
        total = float((time_ms * count).sum())
        print(json.dumps({"layers": rows, "total_ms": total, "by_limit": shares}))
        return 0
    lines = [["layer", "count", "time", "algorithm", "limit"]]
    for row in range(len(shapes)):
        lines.append(
            [
                _layer_text(shapes, row), str(count[row]), _time(time_ms[row]),
                _algorithm_name(algorithm[row]), type_name(int(kind[row])),
            ]
        )  # fmt: skip
    print(aligned(lines, "lr"))
    print(f"all: {_time((time_ms * count).sum())}")
    for name, share in shares.items():
        print(
            f"{name}: {percent_text(share['layer_share'], 2)} of the layers, "
            f"{percent_text(share['time_share'], 2)} of the time"
        )
    return 0


def run_pick(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv pick`; returns the exit code."""
    shapes, _ = _asked(args.network, args.batch, args.list, args.layer)
    found = predict_layers(load_model(args.model), shapes, args.device)
    algorithm, by_algorithm = found.algorithm, found.closed_ms
    rows: list[dict[str, Any]] = []
    for row in range(len(shapes)):
        available = np.flatnonzero(np.isfinite(by_algorithm[row]))
        order = available[np.argsort(by_algorithm[row, available], kind="stable")]
        rows.append(
            {
                **shapes.row(row),
                "pick": _algorithm_name(algorithm[row]),
                "time_ms": {
                    _algorithm_name(number): float(by_algorithm[row, number]) for number in order
                },
            }
        )
    if args.json:
        print(json.dumps(rows))
        return 0
    for row, value in enumerate(rows):
        times = ", ".join(f"{name} {_time(ms)}" for name, ms in value["time_ms"].items())
        print(f"{_layer_text(shapes, row)}: {value['pick']}  ({times})")
    return 0


def _asked(
    network: str | None, batch: int, layer_list: Path | None, layers: Sequence[str]
) -> tuple[ConvShapes, IntArray]:
    if network is not None:
        return network_layers(network, batch)
    shapes = read_layer_list(layer_list) if layer_list is not None else parse_layers(layers)
    return shapes, np.ones(len(shapes), np.int64)


def _layer_text(shapes: ConvShapes, row: int) -> str:
    value = shapes.row(row)
    return (
        f"{value['batch']}x{value['in_channels']}x{value['in_width']}² -> {value['out_channels']}, "
        f"{value['kernel']}x{value['kernel']}/{value['stride']}"
    )


def _time(ms: float) -> str:
    return seconds_text(1e-3 * float(ms), digits=4)


def _algorithm_name(number: Any) -> str:
    return ConvAlgorithm(int(number)).name.lower()
