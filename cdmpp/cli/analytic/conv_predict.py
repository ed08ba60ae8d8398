"""`cdmpp analytic conv predict` and `pick`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.layers.model import LayerModel
from cdmpp.analytic.conv.networks import NETWORKS, network_layers
from cdmpp.analytic.conv.other_operators import GRADIENTS, OtherOperators
from cdmpp.analytic.conv.predict import (
    LayerIntervals,
    forward_times,
    layer_intervals,
    limit_shares,
    load_model,
    operator_times,
    predict_layers,
)
from cdmpp.analytic.conv.seer.model import SeerModel, type_name
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.intervals import Evidence
from cdmpp.arrays import IntArray
from cdmpp.cli.analytic.conv import add_layer_options, add_model_option, given_layers
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options, check_goes_with
from cdmpp.devices.registry import get_device
from cdmpp.errors import UsageError
from cdmpp.pretrained import PRETRAINED
from cdmpp.text import aligned, interval_text, percent_text

_BATCH = 128


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic conv predict`."""
    add_pick_options(parser)
    add_table(parser, """
        --operator NAME        another operator of the layers, by a --model of `fit --operators`:
            maxpool, maxpool_gradient, data_layout, conv_1x1, conv_grad_input or conv_grad_filter
        --forward PATH = pretrained  model of the forward convolutions; gradients are predicted as
            multiples of it (default: pretrained)
    """)  # fmt: skip


def add_pick_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic conv pick`."""
    add_model_option(parser)
    group = parser.add_mutually_exclusive_group(required=True)
    add_layer_options(group)
    group.add_argument("--network", choices=NETWORKS, help="the convolutions of a network")
    add_table(parser, """
        --batch N: int        of --network (default: 128)
        --device NAME         label of the GPU
    """)  # fmt: skip
    add_output_options(parser)


def run_predict(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv predict`; returns the exit code."""
    shapes, count = _asked(args.network, args.batch, args.list, args.layer)
    if args.operator is not None:
        others = _other_model(args.model, args.device)
        first = load_model(args.forward) if args.operator in GRADIENTS else None
        _print_operator(others, args.operator, first, shapes, count, is_json=args.json)
        return 0
    model = load_model(args.model)
    found = predict_layers(model, shapes, args.device)
    intervals = layer_intervals(model, found, shapes, args.device)
    time_ms, algorithm, kind = found.time_ms, found.algorithm, found.kernel_type
    shares = limit_shares(found, count)
    total_ms, ends_ms = float((time_ms * count).sum()), intervals.total_ms(count)
    if args.json:
        rows = [
            {
                **shapes.row(row),
                "count": int(count[row]),
                "time_ms": float(time_ms[row]),
                "low_ms": intervals.layer[row][0],
                "high_ms": intervals.layer[row][1],
                "out_of_distribution": intervals.is_unmeasured[row],
                "algorithm": _algorithm_name(algorithm[row]),
                "limit": type_name(int(kind[row])),
            }
            for row in range(len(shapes))
        ]
        total = {"total_ms": total_ms, "total_low_ms": ends_ms[0], "total_high_ms": ends_ms[1]}
        about = {"interval_source": intervals.evidence.source, "by_limit": shares}
        print(json.dumps({"layers": rows, **total, **about}))
        return 0
    lines = [["layer", "count", "time", "algorithm", "limit"]]
    for row in range(len(shapes)):
        lines.append(
            [
                _layer_text(shapes, row), str(count[row]),
                _time(time_ms[row], intervals.layer[row]) + _mark(intervals, row),
                _algorithm_name(algorithm[row]), type_name(int(kind[row])),
            ]
        )  # fmt: skip
    print(aligned(lines, "lr"))
    print(f"all: {_time(total_ms, ends_ms)}")
    for name, share in shares.items():
        print(
            f"{name}: {percent_text(share['layer_share'], 2)} of the layers, "
            f"{percent_text(share['time_share'], 2)} of the time"
        )
    _print_evidence(intervals.evidence, intervals)
    return 0


def _other_model(place: Path, device: str | None) -> OtherOperators:
    """Returns a model of other operators.

    Raises:
        UsageError: `place` is the packaged model, which has no other operators, or the model was
            fitted on another device.
        DataError: there is no such model.
    """
    if str(place) == PRETRAINED:
        raise UsageError(
            f"cdmpp ships no model of other operators; {OtherOperators.again}, and give it as "
            "--model"
        )
    model = OtherOperators.load(place)
    if device is not None and get_device(device).name != model.device:
        raise UsageError(f"the model was fitted on {model.device!r}; got --device {device}")
    return model


def _print_operator(
    model: OtherOperators,
    operator: str,
    first: SeerModel | LayerModel | None,
    shapes: ConvShapes,
    count: IntArray,
    *,
    is_json: bool,
) -> None:
    """Prints the times of another operator of a CNN.

    Args:
        first: model of the forward convolutions, for gradients.
        count: int64 [R], number of occurrences of each layer.
    """
    forward = None if first is None else forward_times(first, shapes, model.device)
    found = operator_times(model, operator, shapes, forward)
    ends = list(zip(found.low_ms, found.high_ms, strict=True))
    whole = [
        None if None in side else float(np.dot(side, count)) for side in zip(*ends, strict=True)
    ]
    total_ms = float(found.time_ms @ count)
    if is_json:
        rows = [
            {
                **shapes.row(row), "count": int(count[row]), "time_ms": float(found.time_ms[row]),
                "low_ms": ends[row][0], "high_ms": ends[row][1],
                "out_of_distribution": found.is_unmeasured[row],
            }
            for row in range(len(shapes))
        ]  # fmt: skip
        total = {"total_ms": total_ms, "total_low_ms": whole[0], "total_high_ms": whole[1]}
        about = {"operator": operator, "interval_source": found.evidence.source}
        print(json.dumps({**about, "layers": rows, **total}))
        return
    lines = [["layer", "count", operator]]
    for row in range(len(shapes)):
        mark = " !" if found.is_unmeasured[row] else ""
        time = _time(found.time_ms[row], ends[row]) + mark
        lines.append([_layer_text(shapes, row), str(count[row]), time])
    print(aligned(lines, "lr"))
    print(f"all: {_time(total_ms, (whole[0], whole[1]))}")
    print(found.evidence.sentence)
    if any(found.is_unmeasured):
        print(_UNMEASURED)


def run_pick(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv pick`; returns the exit code."""
    shapes, _ = _asked(args.network, args.batch, args.list, args.layer)
    model = load_model(args.model)
    found = predict_layers(model, shapes, args.device)
    intervals = layer_intervals(model, found, shapes, args.device)
    algorithm, by_algorithm = found.algorithm, found.closed_ms
    rows: list[dict[str, Any]] = []
    for row in range(len(shapes)):
        closed = intervals.closed[row]
        order = sorted(closed, key=lambda number: by_algorithm[row, number])
        rows.append(
            {
                **shapes.row(row),
                "pick": _algorithm_name(algorithm[row]),
                "time_ms": {_algorithm_name(n): float(by_algorithm[row, n]) for n in order},
                "low_ms": {_algorithm_name(n): closed[n][0] for n in order},
                "high_ms": {_algorithm_name(n): closed[n][1] for n in order},
                "out_of_distribution": intervals.is_unmeasured[row],
                "interval_source": intervals.closed_evidence.source,
            }
        )
    if args.json:
        print(json.dumps(rows))
        return 0
    for row, value in enumerate(rows):
        times = ", ".join(
            f"{name} {_time(ms, (value['low_ms'][name], value['high_ms'][name]))}"
            for name, ms in value["time_ms"].items()
        )
        mark = _mark(intervals, row)
        print(f"{_layer_text(shapes, row)}: {value['pick']}{mark}  ({times})")
    _print_evidence(intervals.closed_evidence, intervals)
    return 0


_UNMEASURED = "! no measured filter has this width and stride: the interval may be too narrow"


def _mark(intervals: LayerIntervals, row: int) -> str:
    return " !" if intervals.is_unmeasured[row] else ""


def _print_evidence(evidence: Evidence, intervals: LayerIntervals) -> None:
    print(evidence.sentence)
    if any(intervals.is_unmeasured):
        print(_UNMEASURED)


def _asked(
    network: str | None, batch: int | None, layer_list: Path | None, layers: Sequence[str]
) -> tuple[ConvShapes, IntArray]:
    check_goes_with("--network", network, "layers of their own batch", batch=batch)
    if network is not None:
        return network_layers(network, _BATCH if batch is None else batch)
    shapes = given_layers(layers, layer_list)
    return shapes, np.ones(len(shapes), np.int64)


def _layer_text(shapes: ConvShapes, row: int) -> str:
    value = shapes.row(row)
    return (
        f"{value['batch']}x{value['in_channels']}x{value['in_width']}² -> {value['out_channels']}, "
        f"{value['kernel']}x{value['kernel']}/{value['stride']}"
    )


def _time(ms: float, ends_ms: tuple[float | None, float | None]) -> str:
    low_s, high_s = (None if end is None else 1e-3 * end for end in ends_ms)
    return interval_text(1e-3 * float(ms), low_s, high_s, digits=4)


def _algorithm_name(number: Any) -> str:
    return ConvAlgorithm(int(number)).name.lower()
