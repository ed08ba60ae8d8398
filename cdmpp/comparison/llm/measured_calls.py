"""The measured kernel for each call of a layer, by device and serving framework."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

from cdmpp.analytic.gpu_kernels.calls import Collective, Gemm, GpuCall, taken_for_one_machine
from cdmpp.analytic.gpu_kernels.serving_calls import (
    DIRECT_LINK_BYTES_PER_S,
    LatentDecode,
    LatentPrefill,
    MoeLayer,
    OneShotReduce,
)
from cdmpp.comparison.llm.decoder import (
    COMPRESSED,
    WEIGHT_BYTES,
    WIDE_BYTES,
    LatentAttention,
)
from cdmpp.comparison.llm.kernels import (
    ExpertProducts,
    LatentKernel,
    LayerCall,
    SparseKernels,
    WeightProduct,
)
from cdmpp.devices.spec import DeviceSpec

_GEMM_TYPES = {
    "bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "fp4": "nvfp4",
}  # fmt: skip
#: MXFP4 uses 8-bit arithmetic on devices with 4-bit units, otherwise 16-bit.
_MOE_TYPES = {**_GEMM_TYPES, "int4": "int4_wo", "mxfp4": "w4a16_mxfp4"}
#: Distribution of tokens over experts: the lowest measured skew above an even distribution, in
#: which fewer experts are idle than with random choices (32 tokens with 4 of 128 experts hit all;
#: random choices hit 81).
_DISTRIBUTION = "power_law_1.01"
#: Frameworks use their own all-reduce for messages up to 8 MiB of up to 8 GPUs: the default
#: `max_size` of CustomAllreduce in vLLM and SGLang, and TensorRT-LLM's workspace
#: (NVIDIA/TensorRT-LLM #9145). More than two GPUs need a direct link between all of them.
_ONE_SHOT_BYTES, _ONE_SHOT_GPUS = 8 * 2**20, 8
#: Measured sizes of latent attention.
_LATENT = LatentAttention(0, 0, 512, 128, 64, 128)
#: Types of the products of sparse attention, and the nearest type for other formats.
_SPARSE_TYPES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8_block": "fp8_block", "fp4": "nvfp4"}
_NEAR_TYPES = {"fp8": "fp8_block", "mxfp4": "nvfp4", "int4": "bfloat16"}
#: The same for DeepSeek-V4.
_COMPRESSED_TYPES = {name: one for name, one in _SPARSE_TYPES.items() if one != "nvfp4"}
_NEAR_COMPRESSED_TYPES = {**_NEAR_TYPES, "fp4": "fp8_block", "mxfp4": "fp8_block"}
#: Maximum tokens of expert layers, prompts and latent-attention caches in llm-kernels.
_MOST_TOKENS = {MoeLayer: 65_536, LatentPrefill: 65_536, LatentDecode: 2**24}
#: Maximum tokens of prompts and caches of sparse attention.
_MOST_SPARSE = {"prefill": 2**17, "decode": 2**25}
#: Factor that covers 90 % of 939 expert layers with weight-only products, predicted as 16-bit
#: products (llm-kernels); and the factor for sizes other, or larger, than the measured ones.
_WEIGHT_ONLY_SPREAD, _OTHER_SIZES_SPREAD = 6.1, 2.0


@dataclass(frozen=True)
class AskedCall:
    """The call to request from the kernel models for a call of a layer.

    Attributes:
        call: call of a measured family.
        reason: why it replaces the layer's call; empty = it is the call itself.
        spread: factor that widens the interval on both sides.
    """

    call: GpuCall
    reason: str = ""
    spread: float = 1.0


@singledispatch
def measured_call(call: LayerCall, device: DeviceSpec) -> AskedCall:
    """Returns the call to request for a call of a layer on a device."""
    return AskedCall(call)  # type: ignore[arg-type]


@measured_call.register
def _sum(call: Collective, device: DeviceSpec) -> AskedCall:
    has_links = (device.link_bandwidth_bytes_per_s or 0) > DIRECT_LINK_BYTES_PER_S
    is_one_shot = (
        call.kind == "all_reduce"
        and call.message_bytes <= _ONE_SHOT_BYTES
        and call.gpus <= (_ONE_SHOT_GPUS if has_links else 2)
    )
    if is_one_shot:
        return AskedCall(OneShotReduce(call.message_bytes, call.gpus))
    return AskedCall(call, taken_for_one_machine(call))


@measured_call.register
def _product(call: WeightProduct, device: DeviceSpec) -> AskedCall:
    if call.format in _GEMM_TYPES:
        return AskedCall(Gemm(call.m, call.n, call.k, _GEMM_TYPES[call.format]))
    if call.format == "mxfp4" and device.peak_fp4_flop_per_s:
        return AskedCall(Gemm(call.m, call.n, call.k, "nvfp4"))
    # The same operations and the same bytes of weights: fewer columns and more rows.
    ratio = WIDE_BYTES / WEIGHT_BYTES[call.format]
    same = Gemm(max(1, round(call.m * ratio)), max(1, round(call.n / ratio)), call.k)
    reason = (
        f"no measurements of such products: products with {call.format} weights and 16-bit "
        "arithmetic are predicted as 16-bit products with the same operations and bytes"
    )
    return AskedCall(same, reason, _WEIGHT_ONLY_SPREAD)


@measured_call.register
def _experts(call: ExpertProducts, device: DeviceSpec) -> AskedCall:
    dtype = _MOE_TYPES[call.format]
    if call.format == "mxfp4" and device.peak_fp4_flop_per_s:
        dtype = "w4a8_mxfp4_mxfp8"
    return _within(
        MoeLayer(
            call.tokens, call.width, call.ffn, call.active, call.experts, call.tensor, call.expert,
            dtype, _DISTRIBUTION,
        ),
        call.tokens,
    )  # fmt: skip


def _within(call: MoeLayer | LatentPrefill | LatentDecode, tokens: int) -> AskedCall:
    most = _MOST_TOKENS[type(call)]
    if tokens <= most:
        return AskedCall(call)
    what = "expert layers" if isinstance(call, MoeLayer) else "latent attention"
    reason = f"{what} of more than {most:,} tokens at once were not measured"
    return AskedCall(call, reason, _OTHER_SIZES_SPREAD)


@measured_call.register
def _latent(call: LatentKernel, device: DeviceSpec) -> AskedCall:
    one, known = call.attention, _LATENT
    if call.kind == "prefill":
        ratio = (one.nope + one.rope + one.value) / (known.nope + known.rope + known.value)
        heads = max(1, round(call.heads * ratio))
        same: LatentPrefill | LatentDecode = LatentPrefill(
            call.batch, call.length, heads, call.kv_dtype
        )
    else:
        ratio = (one.kv_rank + one.rope) / (known.kv_rank + known.rope)
        context = max(1, round(call.length * ratio))
        same = LatentDecode(call.batch, context, call.heads, call.kv_dtype)
    sizes = [(a.kv_rank, a.nope, a.rope, a.value) for a in (one, known)]
    if sizes[0] == sizes[1]:
        return _within(same, call.batch * call.length)
    reason = (
        "latent attention was measured with a latent of 512 + 64 and heads of 128 + 64 and 128: "
        "other sizes are predicted by their amount of work"
    )
    return AskedCall(same, reason, _OTHER_SIZES_SPREAD)


@measured_call.register
def _sparse(call: SparseKernels, device: DeviceSpec) -> AskedCall:
    is_compressed = call.block.kind in COMPRESSED
    types = _COMPRESSED_TYPES if is_compressed else _SPARSE_TYPES
    near = types.get(call.format) or (
        _NEAR_COMPRESSED_TYPES if is_compressed else _NEAR_TYPES
    )[call.format]  # fmt: skip
    kv_dtype = "fp8" if is_compressed else call.block.kv_dtype
    block = replace(call.block, dtype=near, kv_dtype=kv_dtype)
    tokens, most = block.batch * block.length, _MOST_SPARSE[block.phase]
    if block.phase == "decode":
        tokens *= block.past + 1
    if call.format not in types:
        reason = f"sparse attention was not measured with {call.format} weights"
    elif kv_dtype != call.block.kv_dtype:
        reason = "compressed attention was measured with an fp8 cache only"
    elif tokens > most:
        reason = f"sparse attention of more than {most:,} tokens at once was not measured"
    elif call.is_window:
        reason = "attention with a window alone is predicted as heavily compressed attention"
    else:
        return AskedCall(block)
    return AskedCall(block, reason, _OTHER_SIZES_SPREAD)
