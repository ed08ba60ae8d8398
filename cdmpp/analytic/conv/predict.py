"""Times and algorithms of layers, from a model of kernels or a model of layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm, least_product_share
from cdmpp.analytic.conv.errors import LAYER
from cdmpp.analytic.conv.layers.model import (
    LayerModel,
    LayerPrediction,
)
from cdmpp.analytic.conv.layers.table import NO_ALGORITHM, LayerTable
from cdmpp.analytic.conv.other_operators import OtherOperators
from cdmpp.analytic.conv.seer.model import SeerModel, type_name
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.device_numbers import as_fitted
from cdmpp.analytic.intervals import Ends, Evidence, LogErrors, ends_of
from cdmpp.analytic.roofline.floor import LeastWork, floor_on
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.pretrained import PRETRAINED

_FLOP_PER_PRODUCT, _BYTES = 2.0, 4


def load_model(path: Path | str) -> SeerModel | LayerModel:
    """Loads the model of a file (kernels) or a folder (layers); `pretrained` is the packaged one.

    Raises:
        DataError: the model is missing or of another version.
    """
    path = LayerModel.packaged_path() if str(path) == PRETRAINED else Path(path)
    return LayerModel.load(path) if path.is_dir() else SeerModel.load(path)


def predict_layers(
    model: SeerModel | LayerModel, shapes: ConvShapes, device: str | None
) -> LayerPrediction:
    """Returns the predictions of a model for layers.

    Args:
        device: label; None = the device that a model of kernels was fitted on.

    Raises:
        UsageError: a model of layers without a device, or a model of kernels with another device.
        DeviceError: unknown device.
    """
    if isinstance(model, SeerModel):
        if device is not None and get_device(device).name != model.device:
            raise UsageError(f"the model was fitted on {model.device!r}; got --device {device}")
        found = model.predict(shapes)
        return LayerPrediction(found.layer_ms, found.pick, found.time_ms, found.pick_type)
    if device is None:
        raise UsageError("no device: give --device NAME; list them: cdmpp device list --kind gpu")
    spec, size = _as_fitted(model, device), len(shapes)
    unknown = np.full(size, NO_ALGORITHM, np.int64)
    table = LayerTable(
        shapes, (spec,), np.zeros(size, np.int64), np.ones(size), unknown,
        np.zeros(size),
    )  # fmt: skip
    predicted = model.predict(table)
    return replace(predicted, time_ms=np.maximum(predicted.time_ms, least_ms(shapes, spec)))


def least_ms(shapes: ConvShapes, device: DeviceSpec) -> FloatArray:
    """Returns float64 [R], a lower bound of all algorithms in milliseconds: every tensor once, and
    the products that no algorithm saves at the peak.
    """
    skipped = (1.0 - np.minimum(shapes.kernel / shapes.stride, 1.0) ** 2) * shapes.inputs
    share = least_product_share(shapes.kernel**2, shapes.stride)
    nothing = np.zeros(len(shapes))
    work = LeastWork(
        wide_flop=_FLOP_PER_PRODUCT * share * shapes.multiplications, narrow_flop=nothing,
        bytes=shapes.compulsory_bytes - _BYTES * skipped, kernels=nothing + 1.0,
    )  # fmt: skip
    return 1e3 * floor_on(device, work).seconds


def _as_fitted(model: LayerModel, device: str) -> DeviceSpec:
    return as_fitted(get_device(device), model.closed.forms)


@dataclass(frozen=True)
class LayerIntervals:
    """Intervals of a `LayerPrediction`, milliseconds.

    Attributes:
        layer: interval of each layer's time.
        closed: for each layer, algorithm -> interval of its closed form.
        is_unmeasured: for each layer, whether its filter width and stride were not measured; its
            interval is from other filters.
        evidence: source of the intervals in `layer`.
        closed_evidence: source of the intervals in `closed`.
    """

    layer: list[Ends]
    closed: list[dict[ConvAlgorithm, Ends]]
    is_unmeasured: list[bool]
    evidence: Evidence
    closed_evidence: Evidence

    def total_ms(self, count: IntArray) -> Ends:
        """Returns the interval of the sum of all layers, with fully correlated errors.

        Args:
            count: int64 [R], number of occurrences of each layer.
        """
        low_ms = high_ms = 0.0
        for (low, high), times in zip(self.layer, count, strict=True):
            if low is None or high is None:
                return None, None
            low_ms, high_ms = low_ms + low * int(times), high_ms + high * int(times)
        return low_ms, high_ms


def layer_intervals(
    model: SeerModel | LayerModel, found: LayerPrediction, shapes: ConvShapes, device: str | None
) -> LayerIntervals:
    """Returns the intervals of a result of `predict_layers` for the same layers and device.

    A model of layers has the errors of whole layers. A model of kernels has the errors of each
    algorithm; its layers get the interval of the chosen algorithm.
    """
    label = model.device if isinstance(model, SeerModel) else _as_fitted(model, device or "").name
    errors = {} if model.errors is None else model.errors.of(label)
    layer: list[Ends] = []
    closed: list[dict[ConvAlgorithm, Ends]] = []
    least = np.zeros(len(shapes))
    if isinstance(model, LayerModel):
        least = least_ms(shapes, _as_fitted(model, device or ""))
    for time_ms, pick, closed_ms, floor_ms in zip(
        found.time_ms, found.algorithm, found.closed_ms, least, strict=True
    ):
        own = errors.get(LAYER, errors.get(ConvAlgorithm(int(pick)).name))
        ends = ends_of(own, float(time_ms))
        layer.append(ends if ends[0] is None else (max(ends[0], float(floor_ms)), ends[1]))
        closed.append(
            {
                algorithm: ends_of(errors.get(algorithm.name), float(closed_ms[algorithm]))
                for algorithm in ConvAlgorithm
                if np.isfinite(closed_ms[algorithm])
            }
        )
    measured = None if not errors or model.errors is None else model.errors
    is_unmeasured = [False] * len(shapes) if measured is None else measured.is_unmeasured(shapes)
    of_algorithm = f"the {'kernels' if isinstance(model, SeerModel) else 'layers'} of an algorithm"
    of_layer = f"{errors[LAYER].count:,} layers" if LAYER in errors else of_algorithm
    return LayerIntervals(
        layer, closed, is_unmeasured, _evidence(model, errors, label, of_layer),
        _evidence(model, errors, label, of_algorithm),
    )  # fmt: skip


def _evidence(
    model: SeerModel | LayerModel, errors: Mapping[str, LogErrors], label: str, what: str
) -> Evidence:
    """Returns the source of intervals.

    Args:
        errors: errors on the device.
        what: what was evaluated there.
    """
    by_device = None if model.errors is None else model.errors.by_device
    if by_device is None or not errors:
        return Evidence.missing(by_device, label, "cdmpp analytic conv fit")
    return Evidence.of_devices(by_device, label, what, "channels or width")


def limit_shares(found: LayerPrediction, count: IntArray) -> dict[str, dict[str, float]]:
    """Returns what bounds the kernels -> its share of the layers and of their time.

    Args:
        count: int64 [R], number of occurrences of each layer.
    """
    kind, time_ms = found.kernel_type, found.time_ms * count
    return {
        type_name(int(value)): {
            "layer_share": float(count[kind == value].sum() / count.sum()),
            "time_share": float(time_ms[kind == value].sum() / time_ms.sum()),
        }
        for value in np.unique(kind)
    }


@dataclass(frozen=True)
class OperatorPrediction:
    """Predictions of another operator for R layers, milliseconds.

    Attributes:
        time_ms: float64 [R].
        low_ms, high_ms: ends of the intervals; None if unknown.
        is_unmeasured: for each layer, whether its filter width and stride were not measured.
        evidence: source of the intervals.
    """

    time_ms: FloatArray
    low_ms: list[float | None]
    high_ms: list[float | None]
    is_unmeasured: list[bool]
    evidence: Evidence


@dataclass(frozen=True)
class ForwardTimes:
    """Times of forward convolutions, by which the ratios of gradients are multiplied.

    Attributes:
        time_ms: float64 [R].
        ends: their intervals.
        evidence: source of the intervals.
    """

    time_ms: FloatArray
    ends: list[Ends]
    evidence: Evidence


def forward_times(model: SeerModel | LayerModel, shapes: ConvShapes, device: str) -> ForwardTimes:
    """Returns the times of forward convolutions on a device.

    Raises:
        UsageError, DeviceError: as `predict_layers`.
    """
    found = predict_layers(model, shapes, device)
    intervals = layer_intervals(model, found, shapes, device)
    return ForwardTimes(found.time_ms, intervals.layer, intervals.evidence)


def operator_times(
    model: OtherOperators, operator: str, shapes: ConvShapes, forward: ForwardTimes | None
) -> OperatorPrediction:
    """Returns the times of another operator. The interval of a gradient combines the low ends of
    its ratio and of the forward convolution, and both high ends.

    Args:
        forward: times of the same layers; required for gradients.

    Raises:
        UsageError, DataError: as `OtherOperators.predict`.
    """
    time_ms = model.predict(operator, shapes, None if forward is None else forward.time_ms)
    held_out = model.errors.get(operator)
    evidence = Evidence.missing({} if held_out is None else None, model.device, model.again)
    ends: list[Ends] = [(None, None)] * len(shapes)
    if held_out is not None:
        what = f"{held_out.count:,} rows of {operator}"
        of_device = {model.device: {operator: held_out}}
        evidence = Evidence.of_devices(of_device, model.device, what, "channels or width")
        ends = [held_out.ends(float(one)) for one in time_ms]
    if held_out is not None and forward is not None:
        evidence = Evidence(
            f"{evidence.source}, times that of the forward convolution: {forward.evidence.source}",
            forward.evidence.is_known,
        )
        ratio = time_ms / forward.time_ms
        ends = [
            (None, None)
            if low is None or high is None
            else (held_out.ends(float(one * low))[0], held_out.ends(float(one * high))[1])
            for one, (low, high) in zip(ratio, forward.ends, strict=True)
        ]
    return OperatorPrediction(
        time_ms, [low for low, _ in ends], [high for _, high in ends],
        model.is_unmeasured(operator, shapes), evidence,
    )  # fmt: skip
