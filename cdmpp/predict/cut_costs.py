"""Costs of operators that TVM cannot import: a roofline by the type of their numbers, marked."""

from __future__ import annotations

from collections.abc import Mapping

from cdmpp.analytic.roofline.floor import LEAST_SHARE, least_kernel_s
from cdmpp.analytic.roofline.programs import bound_s, device_rates
from cdmpp.devices.spec import DeviceSpec
from cdmpp.networks.onnx_files.cut import CONTROL_FLOW, CutOperator
from cdmpp.replay.costs import CostSource, OperatorCost, bound
from cdmpp.replay.graph import OperatorGraph

#: How the reason of an operator ends of which only the bytes are known.
UNKNOWN_WORK = ", its operations are not known: the time of its bytes stands in"
#: How much faster than in float32 a CPU computes in a type of which no peak is known, at most.
_NARROW = {"int8": 4.0, "float16": 2.0, "bfloat16": 2.0}


class CutCosts(CostSource):
    """Rooflines of operators that were cut out of a network.

    Their low end is the lower bound: operations at the highest peak of their type and bytes at the
    memory bandwidth. A recurrent one computes step after step, each at least a small kernel: that
    counts in the time, not in the lower bound, as one kernel may do all steps.

    Args:
        cut: operator id -> operator.
        device: hardware.
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
                what = f"control flow ({one.kind}) is not followed"
            reason = f"{what}{UNKNOWN_WORK}"
            return OperatorCost(plain.latency_s, least_s, high_s, "bound", reason)
        peak = device_rates(self._device)[0]
        typed = one.flop * peak / self._peak(one.dtype, peak)
        low_s = max(float(bound_s(self._device, typed, one.bytes)), least_s)
        latency_s = max(low_s, one.steps * least_s)
        if one.dtype not in _NARROW:
            latency_s = max(latency_s, plain.latency_s)
        return OperatorCost(
            latency_s, low_s, max(high_s, latency_s), "bound",
            f"TVM cannot import {one.kind}: its roofline"
            + (f", {one.steps} steps one after another" if one.steps > 1 else ""),
        )  # fmt: skip

    def _peak(self, dtype: str, fp32: float) -> float:
        """Returns the highest rate of a type, operations a second."""
        device = self._device
        half = (device.peak_fp16_flop_per_s, device.peak_tensor_flop_per_s)
        known = {
            "int8": (device.peak_int8_op_per_s,),
            "float16": half,
            "bfloat16": (device.peak_bf16_flop_per_s, *half),
        }.get(dtype, ())
        return max([fp32 * _NARROW.get(dtype, 1.0), *(rate for rate in known if rate)])
