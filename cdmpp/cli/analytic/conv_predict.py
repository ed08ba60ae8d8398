"""`cdmpp analytic conv predict` and `pick`."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.collect.cudnn_collect import read_layer_list
from cdmpp.analytic.conv.layers.model import LayerModel
from cdmpp.analytic.conv.layers.table import NO_ALGORITHM, LayerTable
from cdmpp.analytic.conv.networks import network_layers
from cdmpp.analytic.conv.seer.model import SeerModel, type_name
from cdmpp.analytic.conv.shapes import SHAPE_NAMES, ConvShapes, FloatArray, IntArray
from cdmpp.cli.analytic.conv_models import load_any
from cdmpp.cli.analytic.conv_text import parse_layers
from cdmpp.devices.registry import get_device
from cdmpp.errors import UsageError
from cdmpp.text import aligned, percent_text


def run_predict(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv predict`; returns the exit code."""
    shapes, count = _asked(args)
    time_ms, algorithm, kind, _ = _estimate(args, shapes)
    shares = _shares(time_ms * count, kind, count)
    if args.json:
        rows = [
            {
                **_layer_json(shapes, row),
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
    lines = [["layer", "count", "time (ms)", "algorithm", "limit"]]
    for row in range(len(shapes)):
        lines.append(
            [
                _layer_text(shapes, row), str(count[row]), f"{time_ms[row]:.4g}",
                _algorithm_name(algorithm[row]), type_name(int(kind[row])),
            ]
        )  # fmt: skip
    print(aligned(lines, "lr"))
    print(f"all: {(time_ms * count).sum():.4g} ms")
    for name, share in shares.items():
        print(
            f"{name}: {percent_text(share['layer_share'], 2)} of the layers, "
            f"{percent_text(share['time_share'], 2)} of the time"
        )
    return 0


def run_pick(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv pick`; returns the exit code."""
    shapes, _ = _asked(args)
    _, algorithm, _, by_algorithm = _estimate(args, shapes)
    rows = []
    for row in range(len(shapes)):
        available = np.flatnonzero(np.isfinite(by_algorithm[row]))
        order = available[np.argsort(by_algorithm[row, available], kind="stable")]
        rows.append(
            {
                **_layer_json(shapes, row),
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
        times = ", ".join(f"{name} {ms:.4g}" for name, ms in value["time_ms"].items())
        print(f"{_layer_text(shapes, row)}: {value['pick']}  (ms: {times})")
    return 0


def _asked(args: argparse.Namespace) -> tuple[ConvShapes, IntArray]:
    if args.network is not None:
        return network_layers(args.network, args.batch)
    shapes = read_layer_list(args.list) if args.list is not None else parse_layers(args.layer)
    return shapes, np.ones(len(shapes), np.int64)


def _estimate(
    args: argparse.Namespace, shapes: ConvShapes
) -> tuple[FloatArray, IntArray, IntArray, FloatArray]:
    """Returns (milliseconds, algorithm, type of its kernel, milliseconds of every algorithm)."""
    model = load_any(args.model)
    if isinstance(model, SeerModel):
        if args.device is not None and get_device(args.device).name != model.device:
            raise UsageError(
                f"{args.model} was fitted on {model.device!r}; got --device {args.device}"
            )
        found = model.predict(shapes)
        return found.layer_ms, found.pick, found.pick_type, found.time_ms
    return _layer_estimate(args, model, shapes)


def _layer_estimate(
    args: argparse.Namespace, model: LayerModel, shapes: ConvShapes
) -> tuple[FloatArray, IntArray, IntArray, FloatArray]:
    if args.device is None:
        raise UsageError("no device: give --device NAME; list them: cdmpp device list --kind gpu")
    size = len(shapes)
    unknown = np.full(size, NO_ALGORITHM, np.int64)
    table = LayerTable(
        shapes, (get_device(args.device),), np.zeros(size, np.int64), np.ones(size), unknown,
        np.zeros(size),
    )  # fmt: skip
    found = model.predict(table)
    return found.time_ms, found.algorithm, found.kernel_type, found.closed_ms


def _shares(time_ms: FloatArray, kind: IntArray, count: IntArray) -> dict[str, dict[str, float]]:
    return {
        type_name(int(value)): {
            "layer_share": float(count[kind == value].sum() / count.sum()),
            "time_share": float(time_ms[kind == value].sum() / time_ms.sum()),
        }
        for value in np.unique(kind)
    }


def _layer_json(shapes: ConvShapes, row: int) -> dict[str, Any]:
    return {name: int(getattr(shapes, name)[row]) for name in SHAPE_NAMES}


def _layer_text(shapes: ConvShapes, row: int) -> str:
    value = _layer_json(shapes, row)
    return (
        f"{value['batch']}x{value['in_channels']}x{value['in_width']}² -> {value['out_channels']}, "
        f"{value['kernel']}x{value['kernel']}/{value['stride']}"
    )


def _algorithm_name(number: Any) -> str:
    return ConvAlgorithm(int(number)).name.lower()
