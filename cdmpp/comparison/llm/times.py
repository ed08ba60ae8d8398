"""Seconds of steps: the sum of their kernels, for many steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.calls import SERVING, GpuCall, family_of
from cdmpp.analytic.gpu_kernels.model import default_software
from cdmpp.analytic.kernels.sums import Ends, KindSums
from cdmpp.analytic.kernels.times import KernelCall, KernelTimes
from cdmpp.comparison.llm.decoder import Decoder, Parallel
from cdmpp.comparison.llm.kernels import OUTSIDE, Launches, Moves, ServingStep, step_kernels
from cdmpp.comparison.llm.measured_calls import AskedCall, measured_call
from cdmpp.comparison.llm.memory import least_step_s
from cdmpp.devices.spec import DeviceSpec

_MOVES = "element-wise"
#: Framework whose products and attention represent all servers: vLLM was measured in its newest
#: version (0.24), TensorRT-LLM on B200 in 1.2.0rc5, with products up to 2.5 times as slow as in
#: 1.3.
_LIBRARIES = "vllm"
_TUNED = (
    "matrix products and experts use the best of AMD's tuned kernels (aiter); other software is "
    "slower"
)
#: A kernel that only moves data is predicted as this operator with the same bytes.
_MOVING, _BYTES_PER_ELEMENT = "relu", 8


class Times(Protocol):
    """Times of calls, as needed by a comparison."""

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """Seconds of each call."""

    @property
    def low_s(self) -> NDArray[np.float64]:
        """Lower ends."""

    @property
    def high_s(self) -> NDArray[np.float64]:
        """Upper ends."""

    @property
    def is_seen_device(self) -> bool:
        """Whether the model was fitted on the device."""


class KernelModel(Protocol):
    """A model of serving kernels, such as `GpuKernels`."""

    def times(
        self, calls: Sequence[GpuCall], device: DeviceSpec, *, software: str | None = None
    ) -> Times:
        """Returns the times of calls on a device.

        Args:
            software: framework of the kernels; None = the one measured on most GPUs.
        """


@dataclass(frozen=True)
class LayerOperator:
    """Time of one operator of one kind of layer in a step.

    Attributes:
        layer: the kind of layer, with the number of layers.
        what: the operator.
        launches: number of launches in all these layers.
        seconds: of all these launches.
    """

    layer: str
    what: str
    launches: int
    seconds: float


@dataclass(frozen=True)
class StepTime:
    """Time of a step.

    Attributes:
        ends: seconds with the ends of the interval, at least the device's lower bound.
        parts: seconds by kind of kernel.
        operators: seconds by kind of layer and operator.
        is_seen: whether all its kernels were measured on the device.
        reasons: reasons for low confidence.
    """

    ends: Ends
    parts: dict[str, float]
    operators: tuple[LayerOperator, ...]
    is_seen: bool
    reasons: tuple[str, ...]


def step_times(
    model: Decoder,
    parallel: Parallel,
    steps: Sequence[ServingStep],
    device: DeviceSpec,
    kernels: KernelModel,
    software: str | None = None,
) -> list[StepTime]:
    """Returns the times of steps on a device; the kernel model is called once for all steps.

    Args:
        software: framework of the kernels, in the newest measured version; None, or on GPUs of
            other vendors than NVIDIA = the one measured on most GPUs.

    Raises:
        UsageError: the devices cannot share the decoder.
        CdmppError: no model covers the device.
    """
    plans = [step_kernels(model, step, parallel) for step in steps]
    calls: dict[GpuCall, int] = {}
    wanted: list[list[tuple[Launches, AskedCall]]] = []
    for launches, _ in plans:
        measured = [(launch, measured_call(launch.call, device)) for launch in launches]
        for _, one in measured:
            calls.setdefault(one.call, len(calls))
        wanted.append(measured)
    ends_of, is_seen = _asked(list(calls), device, kernels, software)
    moving = _Moving(device)
    doubt = [] if is_seen else [f"some of its kernels were not measured on {device.name}"]
    if default_software("gemm", device) == "aiter":
        doubt.append(_TUNED)
    answers = []
    for step, measured, (_, moves) in zip(steps, wanted, plans, strict=True):
        sums, operators = KindSums(), list[LayerOperator]()
        for launch, one in measured:
            place = calls[one.call]
            ends = _ends(ends_of[place], launch, one)
            sums.add(launch.kind, ends, launch.count)
            operators.append(_operator(launch, ends[0]))
        for move in moves:
            ends = moving.ends(move)
            sums.add(_MOVES, ends, move.count)
            operators.append(_operator(move, ends[0]))
        reasons = dict.fromkeys(one.reason for _, one in measured if one.reason)
        answers.append(
            StepTime(
                _above(sums.total(), least_step_s(model, parallel, step, device)),
                sums.by_kind, tuple(operators), is_seen, (*doubt, *reasons),
            )
        )  # fmt: skip
    return answers


def _asked(
    calls: Sequence[GpuCall], device: DeviceSpec, kernels: KernelModel, software: str | None
) -> tuple[NDArray[np.float64], bool]:
    """Returns float64 [N, 3], seconds of calls with their ends, and whether all were measured on
    the device.
    """
    found, is_seen = np.empty((len(calls), 3)), True
    is_serving = np.array([family_of(call) in SERVING for call in calls])
    names: tuple[str | None, str | None] = (None, None)
    if software is not None and device.vendor == "NVIDIA":
        names = None if device.kernel_sweep else _LIBRARIES, software
    for place, name in enumerate(names):
        rows = np.flatnonzero(is_serving == bool(place)).tolist()
        if rows:
            times = kernels.times([calls[row] for row in rows], device, software=name)
            found[rows] = np.stack([times.latency_s, times.low_s, times.high_s], axis=1)
            is_seen &= times.is_seen_device
    return found, is_seen


def _ends(each: NDArray[np.float64], launch: Launches, one: AskedCall) -> Ends:
    value, low, high = (float(end) * launch.share for end in each)
    if one.spread == 1.0:
        return value, low, high
    return value, min(low, value / one.spread), max(high, value * one.spread)


def _operator(one: Launches | Moves, seconds: float) -> LayerOperator:
    return LayerOperator(one.layer or OUTSIDE, one.what, one.count, one.count * seconds)


def _above(total: Ends, floor_s: float) -> Ends:
    value_s, low_s, high_s = total
    latency_s = max(value_s, floor_s)
    return latency_s, max(low_s, floor_s), high_s * latency_s / value_s


class _Moving:
    """Times of kernels that move data, with one prediction per size."""

    def __init__(self, device: DeviceSpec) -> None:
        self._times = KernelTimes(device)
        self._known: dict[float, Ends] = {}

    def ends(self, move: Moves) -> Ends:
        elements = move.moved_bytes / _BYTES_PER_ELEMENT
        if elements not in self._known:
            call = KernelCall(_MOVING, {"elements": elements})
            seconds, low_s, high_s = self._times.interval_s(call)
            assert low_s is not None  # kernels that move data were measured
            assert high_s is not None
            self._known[elements] = seconds, low_s, high_s
        return self._known[elements]
