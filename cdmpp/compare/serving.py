"""Cells of a transformer by its shape: its kernels one after the other, on every device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.calls import Family, GpuCall, family_of
from cdmpp.analytic.kernels.sums import KindSums
from cdmpp.analytic.kernels.times import KernelCall, KernelTimes
from cdmpp.compare.cell import CompareCell, no_fit
from cdmpp.compare.kernels import pass_kernels
from cdmpp.compare.transformer import WIDE_BYTES, Dtype, Pass, TransformerShape, memory_need
from cdmpp.devices.spec import DeviceSpec, fits_into
from cdmpp.errors import CdmppError

METHOD = "serving kernels"
_PEAKS: dict[Dtype, str] = {
    "bf16": "peak_bf16_flop_per_s", "fp16": "peak_tensor_flop_per_s",
    "fp8": "peak_fp8_flop_per_s", "fp4": "peak_fp4_flop_per_s",
}  # fmt: skip
_WORDS: dict[Family, str] = {
    "gemm": "products", "prefill": "attention", "decode": "attention", "collective": "collectives",
    "gemm_tuned": "products", "gemm_tile": "products",
}  # fmt: skip
_MOVES = "element-wise"
#: A kernel that only moves is timed as the operator that reads and writes as many bytes.
_MOVING, _BYTES_PER_ELEMENT = "relu", 8


class Times(Protocol):
    """Times of calls, as far as a comparison reads them."""

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """Seconds of every call."""

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

    def times(self, calls: Sequence[GpuCall], device: DeviceSpec) -> Times:
        """Returns the times of calls on a device."""


def serving_cell(
    model: TransformerShape, one: Pass, device: DeviceSpec, kernels: KernelModel
) -> CompareCell:
    """Returns the cell of a pass on a device: without latency where it does not fit, the device has
    no rate for the type, or no model covers it.

    Raises:
        UsageError: the devices cannot share the transformer.
    """
    need = memory_need(model, one).total
    cell = CompareCell(
        f"{model.name} {model.dtype}, {one.text}", one.batch, device.name, one.degree, "token",
        one.tokens, memory_bytes=need, memory_limit_bytes=device.mem_bytes,
        fits=fits_into(need, device.mem_bytes), tdp_w=device.tdp_w,
    )  # fmt: skip
    refusal = _refusal(model, device, cell)
    if refusal:
        return replace(cell, reasons=(refusal,))
    try:
        sums, is_seen = _sums(model, one, device, kernels)
    except CdmppError as error:
        return replace(cell, reasons=(str(error),))
    floor_s = least_pass_s(model, one, device)
    value_s, low_s, high_s = sums.total()
    latency_s = max(value_s, floor_s)
    low_s, high_s = max(low_s, floor_s), high_s * latency_s / value_s
    doubt = f"not all kinds of its kernels were measured on {device.name}"
    return replace(
        cell, latency_s=latency_s, low_s=low_s, high_s=high_s, method=METHOD,
        parts=sums.by_kind, reasons=() if is_seen else (doubt,),
    )  # fmt: skip


def least_pass_s(model: TransformerShape, one: Pass, device: DeviceSpec) -> float:
    """Returns seconds that no pass goes below: its products at the peak of their type; all weights
    but the embedding, and in decoding the keys and values, at the memory bandwidth, beyond what the
    last cache may hold. Kernels that were timed alone found more of their weights there.
    """
    need = memory_need(model, one)
    embedding = WIDE_BYTES * model.vocab * model.width / one.degree
    read = need.weights - embedding + (need.cache if one.kind == "decode" else 0.0)
    beyond = max(0.0, read - (device.l2_bytes or 0) - (device.l3_bytes or 0))
    products = (
        one.tokens * model.layers * model.block_weights + one.batch * model.vocab * model.width
    )
    rates = (device.mem_bandwidth_bytes_per_s, getattr(device, _PEAKS[model.dtype]))
    works = (beyond, 2.0 * products / one.degree)
    return max(work / rate if rate else 0.0 for work, rate in zip(works, rates, strict=True))


def _refusal(model: TransformerShape, device: DeviceSpec, cell: CompareCell) -> str:
    """Returns why a pass cannot run on a device; empty = it can, as far as is known."""
    if cell.fits is False:
        return no_fit(cell)
    if getattr(device, _PEAKS[model.dtype]) is None:
        return f"{device.name} has no known rate for {model.dtype} (`{_PEAKS[model.dtype]}`)"
    return ""


def _sums(
    model: TransformerShape, one: Pass, device: DeviceSpec, kernels: KernelModel
) -> tuple[KindSums, bool]:
    """Returns the seconds of all launches by family, and whether the model was fitted on the
    device.
    """
    launches, moves = pass_kernels(model, one)
    found = kernels.times([launch.call for launch in launches], device)
    sums, times = KindSums(), KernelTimes(device)
    for place, launch in enumerate(launches):
        ends = (found.latency_s[place], found.low_s[place], found.high_s[place])
        value, low, high = (float(end) for end in ends)
        sums.add(_WORDS[family_of(launch.call)], (value, low, high), launch.count)
    for move in moves:
        elements = move.moved_bytes / _BYTES_PER_ELEMENT
        seconds, low_s, high_s = times.interval_s(KernelCall(_MOVING, {"elements": elements}))
        assert low_s is not None  # kernels that move were measured
        assert high_s is not None
        sums.add(_MOVES, (seconds, low_s, high_s), move.count)
    return sums, found.is_seen_device
