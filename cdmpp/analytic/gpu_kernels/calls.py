"""Calls of a serving framework's kernels, independent of a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from cdmpp.analytic.gpu_kernels.call_checks import check_sizes, check_word
from cdmpp.analytic.gpu_kernels.serving_calls import (
    NODE_RANKS,
    HyperConnections,
    LatentDecode,
    LatentPrefill,
    LinearAttention,
    MoeExchange,
    MoeLayer,
    OneShotReduce,
    QuantizeMatrix,
    ServingCall,
    SparseBlock,
)
from cdmpp.errors import UsageError

Family = Literal[
    "gemm", "prefill", "decode", "collective", "gemm_tuned", "gemm_tile", "moe_tuned", "moe",
    "latent_prefill", "latent_decode", "linear", "sparse", "exchange", "one_shot", "quantize",
    "hyper",
]  # fmt: skip
FAMILIES: tuple[Family, ...] = ("gemm", "prefill", "decode", "collective")
#: Families whose calls have a framework's version, with data in the layout of llm-kernels.
SERVING: tuple[Family, ...] = (
    "moe", "latent_prefill", "latent_decode", "linear", "sparse", "exchange", "one_shot",
    "quantize", "hyper",
)  # fmt: skip

#: Families whose calls use the links between GPUs.
LINKED: tuple[Family, ...] = ("collective", "exchange", "one_shot")

#: Types of a product: `fp8` takes 16-bit input and scales it itself, `fp8_static` is only the
#: product, `fp8_block` has a scale per block of 128 elements, `nvfp4` one per 16 elements.
GEMM_DTYPES = ("bfloat16", "float16", "fp8", "fp8_static", "fp8_block", "nvfp4")
#: Types of attention's arithmetic and cache. `float16` is predicted as `bfloat16`.
ATTENTION_DTYPES = ("bfloat16", "float16", "fp8")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
#: Software that launches the kernels; each makes its own choice of kernels. `vllm_xpu`: vLLM on
#: Intel GPUs; `aiter`: AMD's library, with its fastest kernel for each product and expert layer
#: (best of tuned); `pipeweave`: an fp8 product with one tile for all shapes, as in pipeweave's
#: table.
SOFTWARE = ("trtllm", "vllm", "vllm_xpu", "sglang", "aiter", "pipeweave")
#: Family of a library's own kernels -> the library, and the family whose calls it predicts. A
#: folder of measured kernels may lack these.
LIBRARIES: Mapping[Family, tuple[str, Family]] = {
    "gemm_tuned": ("aiter", "gemm"), "gemm_tile": ("pipeweave", "gemm"),
    "moe_tuned": ("aiter", "moe"),
}  # fmt: skip


@dataclass(frozen=True)
class Gemm:
    """A matrix product [m, k] x [k, n] of a linear layer; the weight is [k, n].

    Raises:
        UsageError: a size is not positive, or the type is not one of `GEMM_DTYPES`.
    """

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_sizes(self)
        check_word(self, "dtype", GEMM_DTYPES)


@dataclass(frozen=True)
class PrefillAttention:
    """Causal attention of new tokens to themselves and to earlier tokens.

    Attributes:
        batch: number of sequences.
        length: new tokens per sequence.
        heads: number of heads of the queries, a multiple of `kv_heads`.
        kv_heads: number of heads of the keys and values.
        head_size: elements per head.
        past: tokens that are already in the cache. The packaged model's data only have 0: other
            values are out of distribution.
        window: maximum number of tokens that a token attends to; 0 = all.
        dtype: type of the arithmetic.
        kv_dtype: type of the cache.

    Raises:
        UsageError: a size is out of range, or a type is not one of `ATTENTION_DTYPES`.
    """

    batch: int
    length: int
    heads: int
    kv_heads: int
    head_size: int
    past: int = 0
    window: int = 0
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_sizes(self, may_be_zero=("past", "window"))
        _check_attention(self)


@dataclass(frozen=True)
class DecodeAttention:
    """Attention of one new token per sequence to its cache.

    Attributes:
        batch: number of sequences.
        context: tokens per sequence that are read from the cache, including the new one.
        heads, kv_heads, head_size, window, dtype, kv_dtype: as in `PrefillAttention`.

    Raises:
        UsageError: as `PrefillAttention`.
    """

    batch: int
    context: int
    heads: int
    kv_heads: int
    head_size: int
    window: int = 0
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_sizes(self, may_be_zero=("window",))
        _check_attention(self)


@dataclass(frozen=True)
class Collective:
    """A collective over the GPUs of one machine.

    Attributes:
        kind: one of `COLLECTIVES`.
        message_bytes: size of the whole tensor: reduced, gathered, before it is scattered, or sent
            by each GPU to all others.
        gpus: number of GPUs, at least 2.

    Raises:
        UsageError: the kind is unknown or a number is out of range.
    """

    kind: str
    message_bytes: int
    gpus: int

    def __post_init__(self) -> None:
        check_sizes(self)
        check_word(self, "kind", COLLECTIVES)
        if self.gpus < 2:
            raise UsageError(f"Collective: gpus is {self.gpus}; expected at least 2")


GpuCall = Gemm | PrefillAttention | DecodeAttention | Collective | ServingCall

#: Class of a call -> its family.
_FAMILY: Mapping[type[GpuCall], Family] = {
    Gemm: "gemm",
    PrefillAttention: "prefill",
    DecodeAttention: "decode",
    Collective: "collective",
    MoeLayer: "moe",
    LatentPrefill: "latent_prefill",
    LatentDecode: "latent_decode",
    LinearAttention: "linear",
    SparseBlock: "sparse",
    MoeExchange: "exchange",
    OneShotReduce: "one_shot",
    QuantizeMatrix: "quantize",
    HyperConnections: "hyper",
}


#: Name of a kernel on the command line -> class of its call; a collective has the name of its kind.
KERNELS: Mapping[str, type[GpuCall]] = {
    "gemm": Gemm,
    "prefill": PrefillAttention,
    "decode": DecodeAttention,
    **dict.fromkeys(COLLECTIVES, Collective),
    "moe": MoeLayer,
    "latent_prefill": LatentPrefill,
    "latent_decode": LatentDecode,
    "linear": LinearAttention,
    "sparse": SparseBlock,
    "exchange": MoeExchange,
    "one_shot": OneShotReduce,
    "quantize": QuantizeMatrix,
    "hyper": HyperConnections,
}


def make_call(kernel: str, values: Mapping[str, str]) -> GpuCall:
    """Returns the call of a kernel (one of `KERNELS`) from its fields as text.

    Raises:
        UsageError: unknown kernel, or a field is missing, unknown or invalid.
    """
    if kernel not in KERNELS:
        raise UsageError(f"no kernel {kernel!r}; expected one of {', '.join(KERNELS)}")
    made = KERNELS[kernel]
    given = {**({"kind": kernel} if made is Collective else {}), **values}
    known = {one.name: one for one in fields(made)}
    needed = [name for name, one in known.items() if one.default is MISSING]
    missing = [name for name in needed if name not in given]
    unknown = [name for name in given if name not in known]
    if missing or unknown:
        what = f"{', '.join(missing)} missing" if missing else f"no field {', '.join(unknown)}"
        options = [name for name in known if name not in needed]
        raise UsageError(
            f"{kernel}: {what}; expected {', '.join(needed)}"
            + (f", and if wanted {', '.join(options)}" if options else "")
        )
    filled: dict[str, Any] = {name: _value(text) for name, text in given.items()}
    return made(**filled)


def _value(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def family_of(call: GpuCall) -> Family:
    """Returns the family of a call."""
    return _FAMILY[type(call)]


def taken_for_one_machine(call: GpuCall) -> str:
    """Returns why the prediction of a collective is low-confidence: more GPUs take part than the
    machines have whose collectives were measured. Empty for all other calls.
    """
    if getattr(call, "gpus", 0) <= NODE_RANKS:
        return ""
    return (
        f"more than {NODE_RANKS} devices are taken to be joined by the links of one machine; "
        "networks between machines are slower"
    )


def field_names(family: Family) -> tuple[str, ...]:
    """Returns the fields of a family's calls, in order."""
    made = next(call for call, name in _FAMILY.items() if name == family)
    return tuple(one.name for one in fields(made))


def _check_attention(call: PrefillAttention | DecodeAttention) -> None:
    check_word(call, "dtype", ATTENTION_DTYPES)
    check_word(call, "kv_dtype", ATTENTION_DTYPES)
    if call.heads % call.kv_heads:
        raise UsageError(
            f"{type(call).__name__}: {call.heads} heads do not divide among {call.kv_heads} "
            "kv_heads; expected a multiple"
        )
