"""Predictions of torch networks on GPUs: selects the model for each mode, dtype and layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from cdmpp.devices.spec import DeviceSpec
from cdmpp.networks.gpu_operators import (
    OPERATOR_ROOFLINES,
    OPERATORS,
    RATES,
    is_modelled,
    network_sums,
    without_measurements,
)
from cdmpp.networks.graph.execution import Execution, Mode
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.kernels.gpu_memory import gpu_peak_bytes, largest_indexed_batch
from cdmpp.networks.least_time import least_product_seconds
from cdmpp.networks.prediction import UNKNOWN, Estimate, TorchPrediction
from cdmpp.networks.step_time.inputs import missing_numbers, runs_bfloat16
from cdmpp.networks.step_time.model import StepEstimate, StepTimeModel, packaged_model

STEP_TIME = "step-time model"
STEP_RATIO = "operator models and step-time model"

_TOO_LARGE = "a depthwise convolution reads 2^31 elements or more"

Predictions = Mapping[Mode, TorchPrediction]


def on_gpu(
    graph: NetworkGraph, device: DeviceSpec, found: Predictions, floor_s: float
) -> dict[Mode, TorchPrediction]:
    """Returns the predictions of a network on a GPU without whole-network training data.

    Eager float32 inference in NCHW is the sum of the operator models. Other executions are from the
    step-time model. It was not trained on float32, so other float32 executions are that sum times
    a ratio of the step-time model.

    Args:
        found: mode -> prediction of the whole-network model.
        floor_s: lower bound in seconds of a float32 iteration.
    """
    if any(getattr(device, name) is None for name in RATES):
        return {mode: _without_rates(one) for mode, one in found.items()}
    model = packaged_model()
    base = None
    if any(not one.execution.is_half for one in found.values()):
        plain = replace(found["infer"], execution=Execution())
        base = _by_operators(plain, graph, device, floor_s)
    result = {}
    for mode, one in found.items():
        one = _with_memory(one, graph, model)
        execution = one.execution
        missing = missing_numbers(device)
        if base is not None and execution == Execution():
            result[mode] = replace(one, time_s=base.time_s, parts=base.parts, method=base.method,
                                   reasons=base.reasons)  # fmt: skip
        elif missing:
            result[mode] = _refused(one, f"`{missing[0]}` of {device.name} is not known")
        elif "bf" in execution.dtype and not runs_bfloat16(device):
            result[mode] = _refused(one, f"{device.name} has no known bfloat16 units")
        elif base is None:
            step = model.estimate(graph, device, execution)
            floor = least_product_seconds(graph, device, execution)
            result[mode] = _from_step(one, step, floor)
        else:
            result[mode] = _from_ratio(one, base, graph, device, model, floor_s)
        most = largest_indexed_batch(graph, execution)
        if graph.batch > most:
            reason = (
                f"torch 2.9 cannot run it compiled: {_TOO_LARGE}; the largest batch is {most:.0f}"
            )
            result[mode] = replace(result[mode], reasons=(*result[mode].reasons, reason))
    return result


def _by_operators(
    found: TorchPrediction, graph: NetworkGraph, device: DeviceSpec, floor_s: float
) -> TorchPrediction:
    """Returns the prediction with the sum of the operators' times."""
    sums, has_models = network_sums(graph, device), is_modelled(device)
    doubt = without_measurements(graph, device)
    return replace(
        found, time_s=Estimate(*sums.total()).at_least(floor_s), parts=sums.by_kind,
        method=OPERATORS if has_models else OPERATOR_ROOFLINES,
        reasons=(doubt,) if doubt else (),
    )  # fmt: skip


def _from_step(found: TorchPrediction, step: StepEstimate, floor_s: float) -> TorchPrediction:
    time_s = Estimate(step.seconds, step.low_s, step.high_s).at_least(floor_s)
    return replace(found, time_s=time_s, parts=step.parts, method=STEP_TIME, reasons=step.doubts)


def _from_ratio(
    found: TorchPrediction,
    base: TorchPrediction,
    graph: NetworkGraph,
    device: DeviceSpec,
    model: StepTimeModel,
    floor_s: float,
) -> TorchPrediction:
    """Returns a float32 prediction: the operators' sum times the step-time model's ratio of this
    execution to plain inference. A training step is the geometric mean of that product and the
    step-time model's own prediction, because its ratio to inference is less accurate.
    """
    step = model.estimate(graph, device, found.execution)
    ratio = step.seconds / model.estimate(graph, device, Execution()).seconds
    plain_s = base.time_s.value or 0.0
    seconds = plain_s * ratio
    if found.execution.mode == "train":
        seconds = max(math.sqrt(seconds * step.seconds), plain_s)
    below, above = (
        math.exp(math.hypot(_log_ratio(of, base.time_s.value), _log_ratio(end, step.seconds)))
        for of, end in ((base.time_s.low, step.low_s), (base.time_s.high, step.high_s))
    )
    time_s = Estimate(seconds, seconds / below, seconds * above).at_least(floor_s)
    reasons = tuple(dict.fromkeys((*base.reasons, *step.doubts)))
    return replace(found, time_s=time_s, parts={}, method=STEP_RATIO, reasons=reasons)


def _log_ratio(one: float | None, other: float | None) -> float:
    return abs(math.log(one / other)) if one and other else 0.0


def _with_memory(
    found: TorchPrediction, graph: NetworkGraph, model: StepTimeModel
) -> TorchPrediction:
    needed = model.memory_bytes(gpu_peak_bytes(graph, found.execution), found.execution)
    return replace(found, memory_bytes=Estimate(*needed))


def _refused(found: TorchPrediction, reason: str) -> TorchPrediction:
    return replace(found, time_s=UNKNOWN, parts={}, method="", reasons=(reason,))


def _without_rates(found: TorchPrediction) -> TorchPrediction:
    if found.execution.is_half:
        return _refused(found, "its peak or its bandwidth is unknown")
    return found
