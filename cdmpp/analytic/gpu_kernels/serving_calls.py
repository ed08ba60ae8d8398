"""Calls of kernels of mixtures of experts, latent, sparse and linear attention, and exchanges."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdmpp.analytic.gpu_kernels.call_checks import check_divides, check_sizes, check_word
from cdmpp.errors import UsageError

#: Types of expert layers: `int4_wo`, `w4a16_mxfp4` have 4-bit weights and 16-bit arithmetic,
#: `w4a8_mxfp4_mxfp8` and `w4afp8` 8-bit arithmetic; the others are as in `Gemm`.
MOE_DTYPES = (
    "bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "w4afp8",
)  # fmt: skip
#: Distribution of tokens over experts: even, or a power law with this exponent.
DISTRIBUTIONS = ("balanced", "power_law_1.01", "power_law_1.2")
#: Kinds of kernels of an expert layer; "" = the software's most frequent kind in the data.
MOE_KERNELS = (
    "", "cutlass", "trtllm", "triton", "marlin", "deepgemm", "cutedsl", "min_latency", "other",
)  # fmt: skip
LATENT_KERNELS = ("", "trtllm", "triton", "flash")
CACHE_DTYPES = ("bfloat16", "fp8")
LINEAR_KINDS = ("gdn", "kda", "mamba2")
#: Steps of a linear attention block: the short convolution, and the recurrence.
LINEAR_STEPS = ("conv", "scan")
LINEAR_KERNELS = ("", "plain", "flash")
#: GPUs per machine that exchange tokens.
NODE_RANKS = 8
#: Minimum bytes per second of direct links (NVLink and similar); slower links go through the host.
DIRECT_LINK_BYTES_PER_S = 100e9
#: Kinds of sparse attention: DeepSeek-V3.2's and GLM-5's, two of DeepSeek-V4, and MiniMax-M3's.
SPARSE_KINDS = ("dsa", "csa", "hca", "msa")
SPARSE_MODELS = ("deepseek-v3.2", "glm-5", "deepseek-v4-pro", "deepseek-v4-flash", "minimax-m3")
SPARSE_DTYPES = ("bfloat16", "fp8_block", "nvfp4")
_SPARSE_KINDS_OF = {
    "deepseek-v3.2": ("dsa",), "glm-5": ("dsa",), "deepseek-v4-pro": ("csa", "hca"),
    "deepseek-v4-flash": ("csa", "hca"), "minimax-m3": ("msa",),
}  # fmt: skip
PHASES = ("prefill", "decode")
EXCHANGE_STEPS = ("dispatch", "combine")
#: Steps of hyper-connections: before and after each part of a layer.
HYPER_STEPS = ("pre", "post")
EXCHANGE_MODES = ("normal", "low_latency")


@dataclass(frozen=True)
class MoeLayer:
    """The fused expert layer of one rank: the products of the rank's own experts.

    Attributes:
        tokens: tokens of all ranks that share the experts.
        hidden: elements per token.
        inter: elements per expert, before tensor parallelism.
        top_k: experts per token.
        experts: total number of experts.
        tensor_parallel: ranks that share each expert.
        expert_parallel: ranks that share the set of experts. With a power law the time is that of
            the rank with the highest load.
        dtype: one of `MOE_DTYPES`.
        distribution: one of `DISTRIBUTIONS`.
        gated: 1 = three products per expert (SwiGLU), 0 = two.
        kernel: one of `MOE_KERNELS`.

    Raises:
        UsageError: a size is out of range or does not divide, or a word is unknown.
    """

    tokens: int
    hidden: int
    inter: int
    top_k: int
    experts: int
    tensor_parallel: int = 1
    expert_parallel: int = 1
    dtype: str = "bfloat16"
    distribution: str = "balanced"
    gated: int = 1
    kernel: str = ""

    def __post_init__(self) -> None:
        check_sizes(self, may_be_zero=("gated",))
        check_word(self, "gated", (0, 1))
        check_word(self, "dtype", MOE_DTYPES)
        check_word(self, "distribution", DISTRIBUTIONS)
        check_word(self, "kernel", MOE_KERNELS)
        check_divides(self, "experts", "expert_parallel")
        check_divides(self, "inter", "tensor_parallel")
        if self.top_k > self.experts:
            raise UsageError(
                f"MoeLayer: top_k is {self.top_k}; expected at most the {self.experts} experts"
            )


@dataclass(frozen=True)
class LatentPrefill:
    """Causal multi-head latent attention of new tokens (DeepSeek, Kimi), without its projections:
    heads of 192 for queries and keys and of 128 for values.

    Attributes:
        batch: number of sequences.
        length: new tokens per sequence.
        heads: heads of this rank.
        kv_dtype: type of the cache, `bfloat16` or `fp8`.
        kernel: one of `LATENT_KERNELS`; "" = the software's most frequent kind.

    Raises:
        UsageError: a size is not positive, or a word is unknown.
    """

    batch: int
    length: int
    heads: int
    kv_dtype: str = "bfloat16"
    kernel: str = ""

    def __post_init__(self) -> None:
        _check_latent(self)


@dataclass(frozen=True)
class LatentDecode:
    """Multi-head latent attention of one new token per sequence to its cache of 512 + 64 elements
    per token, which all heads share.

    Attributes:
        context: tokens per sequence that are read, including the new one.
        batch, heads, kv_dtype, kernel: as in `LatentPrefill`.

    Raises:
        UsageError: as `LatentPrefill`.
    """

    batch: int
    context: int
    heads: int
    kv_dtype: str = "bfloat16"
    kernel: str = ""

    def __post_init__(self) -> None:
        _check_latent(self)


def _check_latent(call: LatentPrefill | LatentDecode) -> None:
    check_sizes(call)
    check_word(call, "kv_dtype", CACHE_DTYPES)
    check_word(call, "kernel", LATENT_KERNELS)


@dataclass(frozen=True)
class LinearAttention:
    """One step of a linear attention block; `steps` returns all steps of the block.

    Attributes:
        kind: one of `LINEAR_KINDS`.
        step: one of `LINEAR_STEPS`.
        phase: `prefill` or `decode`.
        batch: number of sequences.
        length: new tokens per sequence, 1 in decode.
        key_heads: heads of queries and keys (mamba2: groups) of `key_size` elements (mamba2:
            state).
        value_heads: heads of values (mamba2: heads) of `value_size` elements.
        kernel: one of `LINEAR_KERNELS`; `flash` = FlashInfer's or FlashKDA's kernel.

    Raises:
        UsageError: a size is out of range, or a word is unknown.
    """

    kind: str
    step: str
    phase: str
    batch: int
    length: int
    key_heads: int
    value_heads: int
    key_size: int = 128
    value_size: int = 128
    kernel: str = ""

    def __post_init__(self) -> None:
        check_sizes(self)
        check_word(self, "kind", LINEAR_KINDS)
        check_word(self, "step", LINEAR_STEPS)
        _check_phase(self)
        check_word(self, "kernel", LINEAR_KERNELS)

    def steps(self) -> list[LinearAttention]:
        """Returns the calls of all steps; their times add up to the block's time."""
        return [replace(self, step=step) for step in LINEAR_STEPS]


@dataclass(frozen=True)
class SparseBlock:
    """A whole sparse attention block on one rank: products, index, and attention to its selection.

    Attributes:
        model: model that defines the sizes, one of `SPARSE_MODELS`.
        kind: one of the model's `SPARSE_KINDS`.
        phase: `prefill` or `decode`.
        batch: number of sequences.
        length: new tokens per sequence, 1 in decode.
        past: tokens that are already in the cache.
        heads: heads of this rank.
        indexed: 1 = the block selects tokens itself, 0 = it reuses the selection of an earlier
            block.
        dtype: type of the products, one of `SPARSE_DTYPES`.
        kv_dtype: type of the cache, `bfloat16` or `fp8`.

    Raises:
        UsageError: a size is out of range, or a word is unknown.
    """

    model: str
    kind: str
    phase: str
    batch: int
    length: int
    past: int
    heads: int
    indexed: int = 1
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_sizes(self, may_be_zero=("past", "indexed"))
        check_word(self, "model", SPARSE_MODELS)
        check_word(self, "kind", _SPARSE_KINDS_OF[self.model])
        check_word(self, "indexed", (0, 1))
        _check_phase(self)
        check_word(self, "dtype", SPARSE_DTYPES)
        check_word(self, "kv_dtype", CACHE_DTYPES)


def _check_phase(call: LinearAttention | SparseBlock) -> None:
    check_word(call, "phase", PHASES)
    if call.phase == "decode" and call.length > 1:
        name = type(call).__name__
        raise UsageError(f"{name}: length is {call.length}; expected 1 in decode")


@dataclass(frozen=True)
class MoeExchange:
    """Exchange of a rank's tokens with the ranks of their experts (DeepEP).

    Attributes:
        step: `dispatch` or `combine`.
        tokens: tokens of one rank.
        hidden: elements per token.
        top_k: experts per token.
        experts: total number of experts.
        nodes: number of machines with 8 GPUs.
        mode: `normal` or `low_latency`.
        multiprocessors: multiprocessors that normal mode uses; 0 = chosen by low-latency mode.

    Raises:
        UsageError: a size is out of range, or a word is unknown.
    """

    step: str
    tokens: int
    hidden: int
    top_k: int
    experts: int
    nodes: int = 1
    mode: str = "normal"
    multiprocessors: int = 20

    def __post_init__(self) -> None:
        check_sizes(self, may_be_zero=("multiprocessors",))
        check_word(self, "step", EXCHANGE_STEPS)
        check_word(self, "mode", EXCHANGE_MODES)


@dataclass(frozen=True)
class OneShotReduce:
    """An all-reduce inside one machine by the framework's own kernel instead of NCCL's.

    Attributes:
        message_bytes: size of the tensor.
        gpus: number of GPUs, at least 2.

    Raises:
        UsageError: a number is out of range.
    """

    message_bytes: int
    gpus: int

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.gpus < 2:
            raise UsageError(f"OneShotReduce: gpus is {self.gpus}; expected at least 2")


@dataclass(frozen=True)
class QuantizeMatrix:
    """Conversion of a 16-bit matrix [rows, columns] to fp8 with a known scale.

    Raises:
        UsageError: a size is not positive.
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        check_sizes(self)


@dataclass(frozen=True)
class HyperConnections:
    """Hyper-connections of the attention and feed-forward parts of a layer (DeepSeek-V4): `pre`
    mixes the copies of a token into one, `post` spreads the result over them.

    Attributes:
        step: one of `HYPER_STEPS`.
        tokens: tokens of a rank.
        hidden: elements per token.
        streams: copies of a token.

    Raises:
        UsageError: a size is not positive, or the step is unknown.
    """

    step: str
    tokens: int
    hidden: int
    streams: int = 4

    def __post_init__(self) -> None:
        check_sizes(self)
        check_word(self, "step", HYPER_STEPS)


ServingCall = (
    MoeLayer
    | LatentPrefill
    | LatentDecode
    | LinearAttention
    | SparseBlock
    | MoeExchange
    | OneShotReduce
    | QuantizeMatrix
    | HyperConnections
)
