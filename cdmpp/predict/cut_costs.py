"""Costs of operators that TVM cannot import: rooflines by element type, marked as bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cdmpp.analytic.roofline.floor import (
    CPU_CLOCK_RATIO,
    LEAST_SHARE,
    LeastWork,
    floor_on,
    least_kernel_s,
)
from cdmpp.analytic.roofline.programs import bound_s
from cdmpp.devices.spec import DeviceSpec
from cdmpp.networks.onnx_files.cut import CONTROL_FLOW, CutOperator
from cdmpp.replay.costs import CostSource, OperatorCost, bound
from cdmpp.replay.graph import OperatorGraph

#: End of the reason for an operator with unknown operations.
UNKNOWN_WORK = ", its operations are not known: only its bytes are counted"
_HALVES, _BYTES = ("float16", "bfloat16"), "int8"


class CutCosts(CostSource):
    """Rooflines of operators that were cut out of a network.

    The low end is the lower bound of their work by element type (`floor_on`). A recurrent operator
    computes its steps sequentially, each at least a small kernel; this counts in the latency but
    not in the lower bound, because one kernel may do all steps.

    Args:
        cut: operator id -> operator.
        device: the device.
    """

    def __init__(self, cut: Mapping[str, CutOperator], device: DeviceSpec) -> None:
        self._cut, self._device = cut, device

    def costs(self, graph: OperatorGraph) -> dict[str, OperatorCost]:
        """Returns operator id -> cost."""
        return {
            one.id: self._cost(self._cut[one.id], bound(one, self._device, ""))
            for one in graph.operators
            if one.id in self._cut
        }

    def _cost(self, one: CutOperator, plain: OperatorCost) -> OperatorCost:
        least_s = least_kernel_s(self._device)
        high_s = one.steps * max(plain.high_s, least_s / LEAST_SHARE)
        if one.flop is None:
            what = f"TVM cannot import {one.kind}"
            if one.kind in CONTROL_FLOW:
                what = f"control flow ({one.kind}) cannot be traced"
            reason = f"{what}{UNKNOWN_WORK}"
            return OperatorCost(plain.latency_s, least_s, high_s, "bound", reason)
        device, low_s = self._device, _floor_s(one, one.least_flop, self._device)
        nominal = CPU_CLOCK_RATIO if device.kind == "cpu" else 1.0
        latency_s = max(nominal * _floor_s(one, one.flop, device), one.steps * least_s)
        latency_s = max(latency_s, float(bound_s(device, 0.0, one.bytes)))
        if _column(one.dtype) == "wide_flop":
            latency_s = max(latency_s, plain.latency_s)
        return OperatorCost(
            latency_s, low_s, max(high_s, latency_s), "bound",
            f"TVM cannot import {one.kind}: its roofline"
            + (f", {one.steps} sequential steps" if one.steps > 1 else ""),
        )  # fmt: skip


def _floor_s(one: CutOperator, operations: float, device: DeviceSpec) -> float:
    """Returns the lower bound in seconds of one kernel with these operations and its bytes."""
    nothing = np.zeros(1)
    work = LeastWork(nothing, nothing, np.array([one.bytes]), kernels=np.ones(1))
    work = replace(work, **{_column(one.dtype): np.array([operations])})
    return float(floor_on(device, work).seconds[0])


def _column(dtype: str) -> str:
    """Returns the field of `LeastWork` that counts operations of a type."""
    if dtype.startswith("float8"):
        return "fp8_flop"
    if dtype.startswith("float4"):
        return "fp4_flop"
    return "narrow_flop" if dtype in _HALVES else "int8_op" if dtype == _BYTES else "wide_flop"
