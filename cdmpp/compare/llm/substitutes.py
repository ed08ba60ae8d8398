"""What stands in for kernels that have no model yet: calls that read and do as much.

`measured_calls` is the seam: a family of kernels that gets its model answers its call directly, and
its rule here goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch

from cdmpp.analytic.gpu_kernels.calls import (
    Collective,
    DecodeAttention,
    Gemm,
    GpuCall,
    PrefillAttention,
)
from cdmpp.compare.llm.decoder import WEIGHT_BYTES, WIDE_BYTES, Format
from cdmpp.compare.llm.kernels import ExpertProducts, LatentKernel, LayerCall, WeightProduct
from cdmpp.devices.spec import DeviceSpec

_GEMM_TYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "fp8_block": "fp8_block", "fp4": "nvfp4",
}  # fmt: skip
#: Experts take the product's time, that of routing, sorting and adding up, and that of so many
#: passages of their tokens over the memory: least log error over 4,126 fused expert layers of
#: llm-kernels (8 GPUs, groups of up to 8, no weight-only ones).
_EXPERTS_S, _PASSAGES = 2e-5, 4
#: Factors that hold 90 % of 4,092 such layers, of 939 weight-only ones (taken for all products
#: with such weights), and of 8,920 kernels of latent attention there.
_EXPERTS_SPREAD, _WEIGHT_ONLY_SPREAD, _LATENT_SPREAD = 2.3, 6.1, 5.9


@dataclass(frozen=True)
class SubstitutedCall:
    """A call whose family has a model, in the place of a layer's call.

    Attributes:
        call: what is asked.
        reason: what it stands in for; empty = it is the call itself.
        spread: factor by which the interval is wider on both sides.
        more_s: seconds that it takes beside the call.
    """

    call: GpuCall
    reason: str = ""
    spread: float = 1.0
    more_s: float = 0.0


def measured_call(call: LayerCall, device: DeviceSpec) -> SubstitutedCall:
    """Returns the call to ask for a call of a layer on a device."""
    return _measured(call, device)


@singledispatch
def _measured(call: LayerCall, device: DeviceSpec) -> SubstitutedCall:
    assert isinstance(call, Gemm | PrefillAttention | DecodeAttention | Collective)
    return SubstitutedCall(call)


@_measured.register
def _product(call: WeightProduct, device: DeviceSpec) -> SubstitutedCall:
    format = usable_format(call.format, device)
    if format in _GEMM_TYPES:
        return SubstitutedCall(Gemm(call.m, call.n, call.k, _GEMM_TYPES[format]))
    # As many operations, and as many bytes of weights: fewer columns and more rows.
    ratio = WIDE_BYTES / WEIGHT_BYTES[format]
    same = Gemm(max(1, round(call.m * ratio)), max(1, round(call.n / ratio)), call.k)
    reason = (
        f"no kernels of that kind were measured: products with {format} weights and 16-bit "
        "arithmetic are taken for 16-bit products with as many operations and bytes"
    )
    return SubstitutedCall(same, reason, _WEIGHT_ONLY_SPREAD)


@_measured.register
def _experts(call: ExpertProducts, device: DeviceSpec) -> SubstitutedCall:
    m, active = busiest(call)
    # Three products of [m, width] and [m, ffn] for each expert are one of all their columns.
    columns = 3 * active * (call.ffn // call.tensor)
    found = _product(WeightProduct(m, columns, call.width, call.format), device)
    reason = (
        "no kernels of that kind were measured: experts are taken for one product of their sizes, "
        "with the load of the busiest device"
    )
    copies, ffn = m * active, call.ffn // call.tensor
    moved = WIDE_BYTES * copies * (2 * call.width + 3 * ffn)
    moves_s = _PASSAGES * moved / (device.mem_bandwidth_bytes_per_s or math.inf)
    spread = max(found.spread, _EXPERTS_SPREAD)
    return SubstitutedCall(found.call, reason, spread, _EXPERTS_S + moves_s)


def busiest(call: ExpertProducts) -> tuple[int, int]:
    """Returns tokens of an expert and how many experts have any, on the device with the highest
    load, were every token to draw its experts evenly.
    """
    here = call.experts // call.expert
    hit = here * (1.0 - (1.0 - call.active / call.experts) ** call.tokens)
    active = min(here, max(1, round(hit)))
    mean = call.tokens * call.active / call.expert
    load = min(
        mean + math.sqrt(2.0 * mean * math.log(call.expert)),
        call.tokens * min(here, call.active),
    )
    return max(1, math.ceil(load / active)), active


@_measured.register
def _latent(call: LatentKernel, device: DeviceSpec) -> SubstitutedCall:
    one = call.attention
    reason = (
        "no kernels of that kind were measured: latent attention is taken for attention with as "
        "many operations and bytes"
    )
    if call.kind == "prefill":
        head = (one.nope + one.rope + one.value) // 2
        same: GpuCall = PrefillAttention(
            call.batch,
            call.length,
            call.heads,
            call.heads,
            head,
            dtype=call.dtype,
            kv_dtype=call.kv_dtype,
        )
    else:  # one latent is key and value: half as many elements as a key and a value of its size
        head = (one.kv_rank + one.rope) // 2
        same = DecodeAttention(
            call.batch,
            call.length,
            2 * call.heads,
            1,
            head,
            dtype=call.dtype,
            kv_dtype=call.kv_dtype,
        )
    return SubstitutedCall(same, reason, _LATENT_SPREAD)


def usable_format(format: Format, device: DeviceSpec) -> Format:
    """Returns the format as a device computes with it: `mxfp4` as `fp4` where it has units for
    4-bit products.
    """
    return "fp4" if format == "mxfp4" and device.peak_fp4_flop_per_s else format
