"""The kernels of one pass through a transformer, as a serving framework launches them."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.analytic.gpu_kernels.calls import (
    Collective,
    DecodeAttention,
    Gemm,
    GpuCall,
    PrefillAttention,
)
from cdmpp.compare.transformer import WIDE_BYTES, Pass, TransformerShape, check_degree

_GEMM_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "fp4": "nvfp4"}
_CACHE_TYPES = {"bf16": "bfloat16", "fp8": "fp8"}
_WIDE = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Launches:
    """A kernel that has a model, and how often a pass launches it.

    Attributes:
        what: its part in the transformer.
    """

    what: str
    call: GpuCall
    count: int


@dataclass(frozen=True)
class Moves:
    """A kernel that only moves elements.

    Attributes:
        what: its part in the transformer.
        moved_bytes: read and written by one launch.
    """

    what: str
    moved_bytes: float
    count: int


def pass_kernels(model: TransformerShape, one: Pass) -> tuple[list[Launches], list[Moves]]:
    """Returns the kernels of a pass on one of the devices that share it.

    A block: norm, one product for queries, keys and values, rotation and cache, attention, product
    and sum over devices; norm, one product for gate and up, their product, product and sum over
    devices. After the blocks a norm, and the logits of the last token of every sequence. Residuals
    are added inside of the norms.

    Raises:
        UsageError: the devices cannot share the transformer.
    """
    check_degree(model, one.degree)
    degree, tokens, width = one.degree, one.tokens, model.width
    heads, kv_heads = model.heads // degree, max(1, model.kv_heads // degree)
    attended, ffn = heads * model.head, model.ffn // degree
    dtype = _GEMM_TYPES[model.dtype]
    wide = _WIDE.get(model.dtype, "bfloat16")
    qkv = attended + 2 * kv_heads * model.head

    def product(what: str, n: int, k: int) -> Launches:
        return Launches(what, Gemm(tokens, n, k, dtype), model.layers)

    launches = [
        product("queries, keys, values", qkv, width),
        Launches("attention", _attention(model, one, heads, kv_heads), model.layers),
        product("attention's output", width, attended),
        product("gate and up", 2 * ffn, width),
        product("down", width, ffn),
        Launches("logits", Gemm(one.batch, model.vocab // degree, width, wide), 1),
    ]
    if degree > 1:
        message = WIDE_BYTES * tokens * width
        logits = WIDE_BYTES * one.batch * model.vocab
        launches += [
            Launches(
                "sum over devices", Collective("all_reduce", message, degree), 2 * model.layers
            ),
            Launches("logits of all devices", Collective("all_gather", logits, degree), 1),
        ]
    element = WIDE_BYTES * tokens
    moves = [
        Moves(
            "norm", 4.0 * element * width, 2 * model.layers + 1
        ),  # token and residual, in and out
        Moves("rotation and cache", 2.0 * element * qkv, model.layers),
        Moves("gate times up", 3.0 * element * ffn, model.layers),
        Moves("embedding", 2.0 * element * width, 1),
    ]
    return launches, moves


def _attention(model: TransformerShape, one: Pass, heads: int, kv_heads: int) -> GpuCall:
    dtype, kv_dtype = _WIDE.get(model.dtype, "bfloat16"), _CACHE_TYPES[model.kv_dtype]
    if one.kind == "prefill":
        return PrefillAttention(
            one.batch, one.length, heads, kv_heads, model.head, dtype=dtype, kv_dtype=kv_dtype
        )
    return DecodeAttention(
        one.batch, one.length, heads, kv_heads, model.head, dtype=dtype, kv_dtype=kv_dtype
    )
