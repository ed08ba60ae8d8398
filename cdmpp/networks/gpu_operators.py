"""A torch network's operators on a GPU, one after the other, each by the model of its kind."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from cdmpp.analytic.conv.errors import LAYER, ConvErrors
from cdmpp.analytic.conv.layers.model import LayerModel
from cdmpp.analytic.intervals import LogErrors
from cdmpp.analytic.kernels.predictor import ROOFLINE, KernelPredictor
from cdmpp.analytic.kernels.sums import KindSums
from cdmpp.analytic.kernels.times import KernelTimes
from cdmpp.analytic.kernels.work import Work, WorkKind
from cdmpp.analytic.operators.intervals import JudgedOperators, packaged_operators
from cdmpp.analytic.roofline.floor import LEAST_SHARE, least_kernel_s
from cdmpp.devices.registry import find_device, get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.networks.graph.graph import NetworkGraph

#: What answers for the time of a network.
MEASURED = "whole-network model"
OPERATORS = "operator models"
OPERATOR_ROOFLINES = "operator rooflines"
WHOLE_ROOFLINE = "whole-network roofline"
#: What must be known of a device, or its operators' rooflines are not.
RATES = ("peak_fp32_flop_per_s", "mem_bandwidth_bytes_per_s")
_FLOAT_BYTES = 4
#: No operator is taken to be so many times faster than its roofline.
_MOST_SHARE = 4.0
#: Operators that make nothing: their output is their input seen otherwise.
_VIEWS = frozenset({"Flatten"})
#: What the operators without a model of their own are timed as, and judged as.
_ELEMENT_WISE = "relu"
_WORDS = {
    "conv": "convolutions", "linear": "products", "bmm": "batched products", "softmax": "softmax",
    "ln": "layer norm", _ELEMENT_WISE: "element-wise",
}  # fmt: skip
_NEEDED = ("core_count", "clock_hz", "l2_bytes", *RATES)


def is_modelled(device: DeviceSpec) -> bool:
    """Whether the operator models answer for a device: an NVIDIA GPU of which they know enough."""
    is_known = all(getattr(device, name) is not None for name in _NEEDED)
    return device.kind == "gpu" and device.vendor == "NVIDIA" and is_known


def without_measurements(graph: NetworkGraph, device: DeviceSpec) -> str:
    """Returns which of a network's operators were not measured on a device, as a clause; empty =
    all were.
    """
    operators = packaged_operators()
    label = _label(device, operators)
    is_measured = {
        _WORDS[work.name]: label in _convolution_errors().by_device
        if work.kind == "conv"
        else operators.model.is_fitted(work.name, label)
        for work in _works(graph)
    }
    without = sorted(words for words, is_known in is_measured.items() if not is_known)
    if len(without) == len(is_measured):
        return f"no operator was measured on {device.name}"
    return f"not measured on {device.name}: {', '.join(without)}" if without else ""


def _label(device: DeviceSpec, operators: JudgedOperators) -> str:
    """Returns the label by which the operators' measurements know a device: models call some by
    their aliases.
    """
    known = find_device(device.name)
    label = device.name if known is None else known.name
    return operators.measured_as(replace(device, name=label))


def network_sums(
    graph: NetworkGraph, device: DeviceSpec, operators: JudgedOperators | None = None
) -> KindSums:
    """Returns the seconds of a network's inference in float32 (without TF32), by kind of operator.

    Small operators take what a call took where it was measured, about 20 us, as eager torch calls
    them one by one. Products, convolutions, softmax and layer norm have models on NVIDIA GPUs;
    everything else is timed as an element-wise operator that moves as many bytes. Where no model
    takes a shape or a GPU its roofline stands in, but no less than a call takes elsewhere; from a
    quarter of it (other units and algorithms may do its work) to a twentieth of its rates.

    Args:
        operators: model of the operators; None = the packaged one.
    """
    operators = operators or packaged_operators()
    predictor, sums = KernelPredictor(device, operators), KindSums()
    label = _label(device, operators)
    for work, count in Counter(_works(graph)).items():
        found = predictor.predict(work)
        if found is None:
            continue
        if found.model == ROOFLINE:
            low_s = max(found.seconds / _MOST_SHARE, least_kernel_s(device))
            seconds = max(found.seconds, _smallest_call_s())
            ends = seconds, low_s, max(seconds, found.seconds / LEAST_SHARE)
        else:
            low_s, high_s = _errors(work, label, operators).ends(found.seconds)
            ends = found.seconds, max(low_s, least_kernel_s(device)), high_s
        sums.add(_WORDS[work.name], ends, count)
    return sums


def _works(graph: NetworkGraph) -> list[Work]:
    """Returns the work of every operator that makes something."""
    found = []
    for node, kind in enumerate(graph.kinds):
        if kind in _VIEWS:
            continue
        row = _Row(graph, node)
        make = _MAKERS.get(kind)
        found.append((make(row) if make else None) or _moving(row))
    return found


class _Row:
    """One operator of a graph: its columns by name, whole numbers."""

    def __init__(self, graph: NetworkGraph, node: int) -> None:
        self._graph, self._node = graph, node
        self.flop = float(graph.flops[node])

    def __getitem__(self, name: str) -> int:
        return int(self._graph.column(name)[self._node])

    def work(self, kind: WorkKind, name: str, **sizes: int) -> Work:
        """Returns its work, of these sizes."""
        return Work(kind, name, self.flop, float(self["bytes"]), "float", tuple(sizes.items()))


def _moving(row: _Row) -> Work:
    """Returns an element-wise operator that reads and writes as many bytes."""
    elements = max(1, row["bytes"] // (2 * _FLOAT_BYTES))
    columns = min(
        elements, max(1, row["output_w"] if row["output_w"] > 1 else row["output_channels"])
    )
    return row.work("elementwise", _ELEMENT_WISE, rows=-(-elements // columns), cols=columns)


def _convolution(row: _Row) -> Work | None:
    kernel, stride = row["conv_kernel_size"], row["conv_stride"]
    return row.work(
        "conv", "conv", batch=row["batch_size"], in_channels=row["input_channels"],
        in_height=row["input_h"], in_width=row["input_w"], out_channels=row["output_channels"],
        kernel_height=kernel, kernel=kernel, stride=stride, stride_width=stride,
        padding=row["conv_padding"], padding_width=row["conv_padding"],
        dilation=row["conv_dilation"], groups=row["conv_groups"],
    )  # fmt: skip


def _linear(row: _Row) -> Work | None:
    columns, inner = row["linear_out_features"], row["linear_in_features"]
    if not columns or not inner:
        return None
    rows = row["output_size"] // (_FLOAT_BYTES * columns)
    return row.work("gemm", "linear", batch=1, m=rows, n=columns, k=inner)


def _product(row: _Row) -> Work | None:
    m, n = row["output_h"], row["output_w"]
    outputs = row["output_size"] // _FLOAT_BYTES
    if not outputs or outputs % (m * n):
        return None
    inner = round(row.flop / (2 * outputs))
    return row.work("gemm", "bmm", batch=outputs // (m * n), m=m, n=n, k=inner)


def _softmax(row: _Row) -> Work | None:
    columns, outputs = row["output_w"], row["output_size"] // _FLOAT_BYTES
    return row.work("softmax", "softmax", rows=outputs // columns, cols=columns)


def _layer_norm(row: _Row) -> Work | None:
    columns, outputs = row["weight_size"] // (2 * _FLOAT_BYTES), row["output_size"] // _FLOAT_BYTES
    if not columns or outputs % columns:
        return None
    return row.work("layer_norm", "ln", rows=outputs // columns, cols=columns)


_MAKERS: Mapping[str, Callable[[_Row], Work | None]] = {
    "Conv": _convolution, "Gemm": _linear, "MatMul": _product, "Softmax": _softmax,
    "LayerNorm": _layer_norm,
}  # fmt: skip


@lru_cache
def _smallest_call_s() -> float:
    """Returns what a call of next to no work takes in the middle of the GPUs of the fit."""
    nothing = {"rows": 1, "cols": 1}
    return statistics.median(
        KernelTimes(get_device(label)).operator_s(_ELEMENT_WISE, nothing)
        for label in packaged_operators().model.known
        if packaged_operators().model.is_fitted(_ELEMENT_WISE, label)
    )


@lru_cache
def _convolution_errors() -> ConvErrors:
    errors = LayerModel.load(LayerModel.packaged_path()).errors
    assert errors is not None
    return errors


def _errors(work: Work, device: str, operators: JudgedOperators) -> LogErrors:
    """Returns how far a kind's model errs: on a device of its fit, or on others."""
    if work.kind == "conv":
        return _convolution_errors().of(device)[LAYER]
    return operators.errors_of(work.name, device, "queued_log_errors")
