"""The kernels of one step of a decoder in a serving framework."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cdmpp.analytic.gpu_kernels.account.sparse import SPARSE_SIZES
from cdmpp.analytic.gpu_kernels.calls import (
    Collective,
    DecodeAttention,
    GpuCall,
    PrefillAttention,
)
from cdmpp.analytic.gpu_kernels.serving_calls import (
    EXCHANGE_STEPS,
    HYPER_STEPS,
    NODE_RANKS,
    HyperConnections,
    MoeExchange,
    SparseBlock,
)
from cdmpp.comparison.llm.decoder import (
    WIDE_BYTES,
    Decoder,
    Experts,
    Format,
    GatedFeedForward,
    GroupedAttention,
    LatentAttention,
    Layer,
    Parallel,
    SparseAttention,
    check_parallel,
)

_CACHE_TYPES = {"bf16": "bfloat16", "fp8": "fp8"}
_WIDE = {"bf16": "bfloat16", "fp16": "float16"}
#: Maximum tokens per rank for DeepEP's low-latency kernels (from its README).
_LOW_LATENCY_TOKENS = 128
#: Kinds of kernels in results, see `Launches.kind`.
Kind = Literal["products", "attention", "experts", "collectives", "element-wise"]
#: Name of the kernels outside layers.
OUTSIDE = "embedding and logits"
#: Name of a block of sparse attention with its products.
WHOLE_BLOCK = "attention with its products"


@dataclass(frozen=True)
class ServingStep:
    """One step of an attention replica.

    Attributes:
        prompts: number of prompts to process.
        chunk, past: tokens of each prompt in this step, and its tokens already in the cache.
        sequences: number of sequences that generate one token.
        context: tokens in the cache of each sequence, including the new one.
    """

    prompts: int = 0
    chunk: int = 0
    past: int = 0
    sequences: int = 0
    context: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens in the products."""
        return self.prompts * self.chunk + self.sequences

    @property
    def rows(self) -> int:
        """Number of tokens with logits."""
        return self.prompts + self.sequences


@dataclass(frozen=True)
class WeightProduct:
    """A matrix product [m, k] x [k, n] with a weight in a format."""

    m: int
    n: int
    k: int
    format: Format


@dataclass(frozen=True)
class ExpertProducts:
    """All expert products on one device.

    Attributes:
        tokens: tokens of the whole group that shares the experts.
        width: elements of a token.
        ffn: elements between the products of one expert, undivided.
        experts, active: number of experts, in total and per token.
        tensor, expert: devices that share an expert, and groups of experts.
        format: format of the weights.
    """

    tokens: int
    width: int
    ffn: int
    experts: int
    active: int
    tensor: int
    expert: int
    format: Format


@dataclass(frozen=True)
class LatentKernel:
    """The attention kernel of latent attention, without its products.

    Attributes:
        kind: `prefill` uses keys and values of every head; `decode` reads only the latents.
        batch: sequences.
        length: new tokens of each (prefill), or tokens in its cache (decode).
        attention: the sizes.
        heads: heads on this device.
        dtype, kv_dtype: types of the arithmetic and of the cache.
    """

    kind: Literal["prefill", "decode"]
    batch: int
    length: int
    attention: LatentAttention
    heads: int
    dtype: str
    kv_dtype: str


@dataclass(frozen=True)
class SparseKernels:
    """A whole block of sparse attention, with its products.

    Attributes:
        block: the measured block, with products in 16 bits.
        format: format of the weights.
        is_window: whether the layer has only a window.
    """

    block: SparseBlock
    format: Format
    is_window: bool = False


#: A call of a layer: a call with a kernel model, or one that is composed of such calls.
LayerCall = GpuCall | WeightProduct | ExpertProducts | LatentKernel | SparseKernels


@dataclass(frozen=True)
class Launches:
    """A kernel with a model, and how often a step launches it.

    Attributes:
        what: its role in the layer.
        layer: the kind of layer; empty = `OUTSIDE`.
        kind: kind of kernel, for sums.
        call: the modelled call.
        count: launches in all layers of the kind.
        share: counted share of its time: a chunk has a part of the whole prompt's time; negative =
            subtracted, because another launch includes it.
    """

    what: str
    layer: str
    kind: Kind
    call: LayerCall
    count: int
    share: float = 1.0


@dataclass(frozen=True)
class Moves:
    """A kernel that only moves elements.

    Attributes:
        what: its role in the layer.
        moved_bytes: bytes read and written by one launch.
        count: number of launches.
        layer: the kind of layer; empty = `OUTSIDE`.
    """

    what: str
    moved_bytes: float
    count: int
    layer: str = ""


def step_kernels(
    model: Decoder, step: ServingStep, parallel: Parallel
) -> tuple[list[Launches], list[Moves]]:
    """Returns the kernels of a step on one of the devices that share it, for all layers.

    A layer has: norm, product of queries, keys and values, rotation and cache, attention, output
    product and its sum over devices; norm, feed-forward part and its sum over devices. A dense part
    has a product for gate and up, their element-wise product, and a down product. Experts have a
    router, the dense products per expert, and a dense part for a shared expert. With several
    attention replicas, tokens travel to the experts' devices and back instead of a sum. After the
    layers come a norm and the logits of the last token of every sequence. Residuals are added
    inside the norms, or mixed by hyper-connections.

    Raises:
        UsageError: the devices cannot share the decoder.
    """
    check_parallel(model, parallel)
    launches: list[Launches] = []
    moves: list[Moves] = []
    tokens, width = step.tokens, model.width
    element = WIDE_BYTES * tokens
    for layer in model.layers:
        launches += _attention(model, layer, step, parallel)
        launches += _feed_forward(model, layer, step, parallel)
        for place in HYPER_STEPS if model.streams > 1 else ():
            mixed = HyperConnections(place, tokens, width, model.streams)
            launches.append(
                Launches("hyper-connections", layer.text, "element-wise", mixed, layer.count)
            )
    degree, wide = parallel.tensor, model.wide
    vocab = model.vocab_on(degree)
    launches.append(_outside("logits", "products", WeightProduct(step.rows, vocab, width, wide)))
    if degree > 1:
        launches += _sums(model, step, parallel)
        logits = WIDE_BYTES * step.rows * degree * vocab
        call = Collective("all_gather", logits, degree)
        launches.append(_outside("logits of all devices", "collectives", call))
    if parallel.pipeline > 1:
        sent = Collective("all_gather", 2 * WIDE_BYTES * tokens * width, 2)  # half of it is sent
        launches.append(
            Launches("tokens to the next stage", "", "collectives", sent, parallel.pipeline - 1)
        )
    # token and residual, in and out
    normed = (4.0 if model.streams == 1 else 2.0) * element * width
    moves.append(Moves("norm", normed, 2 * model.depth + 1))
    for layer in model.layers:
        moves += _layer_moves(layer, step, parallel)
    moves.append(Moves("embedding", 2.0 * element * width, 1))
    return launches, moves


def _outside(what: str, kind: Kind, call: LayerCall) -> Launches:
    return Launches(what, "", kind, call, 1)


def _attention(
    model: Decoder, layer: Layer, step: ServingStep, parallel: Parallel
) -> Iterator[Launches]:
    attention, tokens, width = layer.attention, step.tokens, model.width
    format, degree = model.formats.attention, parallel.tensor
    heads = attention.heads // degree

    def product(what: str, n: int, k: int, dtype: Format = format) -> Launches:
        return Launches(
            what, layer.text, "products", WeightProduct(tokens, n, k, dtype), layer.count
        )

    if isinstance(attention, SparseAttention):
        for block, share in _blocks(attention, step, heads, _CACHE_TYPES[model.kv_dtype]):
            whole = SparseKernels(block, format, attention.kind == "window")
            yield Launches(WHOLE_BLOCK, layer.text, "attention", whole, layer.count, share)
        return
    if isinstance(attention, GroupedAttention):
        yield product("queries, keys, values", _qkv(attention, degree), width)
        attended = heads * attention.head
    else:
        queried = heads * (attention.nope + attention.rope)
        yield product("latents", attention.down if attention.q_rank else attention.down + queried,
                      width)  # fmt: skip
        if attention.q_rank:
            yield product("queries", queried, attention.q_rank)
        if step.prompts:
            keys = WeightProduct(
                step.prompts * step.chunk, heads * (attention.nope + attention.value),
                attention.kv_rank, format,
            )  # fmt: skip
            yield Launches("keys and values", layer.text, "products", keys, layer.count)
        if step.sequences:
            # One product per head, modelled as one product of all heads' width.
            absorbed = WeightProduct(
                step.sequences, heads * (attention.nope + attention.value), attention.kv_rank,
                model.wide,
            )  # fmt: skip
            yield Launches("into the latent and back", layer.text, "products", absorbed,
                           layer.count)  # fmt: skip
        attended = heads * attention.value
    for call, share in _attention_calls(model, attention, step, heads, degree):
        yield Launches("attention", layer.text, "attention", call, layer.count, share)
    yield product("attention's output", width, attended)


def _blocks(
    attention: SparseAttention, step: ServingStep, heads: int, kv_dtype: str
) -> Iterator[tuple[SparseBlock, float]]:
    """Yields the blocks of a step with their shares. A block includes its products. If a step has
    prompts and sequences, the prompts' block has the products of all tokens, and sequences add the
    difference of their block to one with an empty cache. A layer with only a window counts as a
    heavily compressed one with little before the window.
    """
    is_window = attention.kind == "window"
    kind = "hca" if is_window else attention.kind

    def block(phase: str, batch: int, length: int, past: int) -> SparseBlock:
        past = min(past, SPARSE_SIZES[attention.model].window) if is_window else past
        return SparseBlock(
            attention.model, kind, phase, batch, length, past, heads,
            int(attention.indexed), kv_dtype=kv_dtype,
        )  # fmt: skip

    if step.prompts:
        others = -(-step.sequences // step.prompts)
        yield block("prefill", step.prompts, step.chunk + others, step.past), 1.0
    if step.sequences:
        yield block("decode", step.sequences, 1, max(0, step.context - 1)), 1.0
        if step.prompts:
            yield block("decode", step.sequences, 1, 0), -1.0


def _qkv(attention: GroupedAttention, degree: int) -> int:
    kv_heads = max(1, attention.kv_heads // degree)
    return attention.heads // degree * attention.head + 2 * kv_heads * attention.head


def _attention_calls(
    model: Decoder,
    attention: GroupedAttention | LatentAttention,
    step: ServingStep,
    heads: int,
    degree: int,
) -> Iterator[tuple[LayerCall, float]]:
    """Yields the attention of prompts and of sequences with their shares. A chunk has its share of
    the token pairs of the whole prompt up to its end, because no kernel with a past was measured.
    """
    dtype, kv_dtype = _WIDE[model.wide], _CACHE_TYPES[model.kv_dtype]
    length = step.past + step.chunk
    if isinstance(attention, LatentAttention):
        if step.prompts:
            yield LatentKernel(
                "prefill", step.prompts, length, attention, heads, dtype, kv_dtype
            ), _chunk_share(step, 0)  # fmt: skip
        if step.sequences:
            yield LatentKernel(
                "decode", step.sequences, step.context, attention, heads, dtype, kv_dtype
            ), 1.0  # fmt: skip
        return
    kv_heads = max(1, attention.kv_heads // degree)
    if step.prompts:
        yield PrefillAttention(
            step.prompts, length, heads, kv_heads, attention.head, window=attention.window,
            dtype=dtype, kv_dtype=kv_dtype,
        ), _chunk_share(step, attention.window)  # fmt: skip
    if step.sequences:
        yield DecodeAttention(
            step.sequences, step.context, heads, kv_heads, attention.head,
            window=attention.window, dtype=dtype, kv_dtype=kv_dtype,
        ), 1.0  # fmt: skip


def _chunk_share(step: ServingStep, window: int) -> float:
    """Returns the chunk's share of a prompt's token pairs up to the chunk's end."""
    if not step.past:
        return 1.0

    def pairs(length: int) -> float:
        near = min(length, window) if window else length
        return near * near / 2 + (length - near) * near

    whole = pairs(step.past + step.chunk)
    return (whole - pairs(step.past)) / whole


def _feed_forward(
    model: Decoder, layer: Layer, step: ServingStep, parallel: Parallel
) -> Iterator[Launches]:
    part, tokens, width = layer.feed_forward, step.tokens, model.width

    def product(what: str, n: int, k: int, dtype: Format) -> Launches:
        return Launches(
            what, layer.text, "products", WeightProduct(tokens, n, k, dtype), layer.count
        )

    dense = part.ffn if isinstance(part, GatedFeedForward) else part.shared_ffn
    if isinstance(part, Experts):
        yield product("router", part.experts, width, model.wide)
        call = ExpertProducts(
            tokens * parallel.data, width, part.ffn, part.experts, part.active,
            parallel.expert_tensor, parallel.expert, model.formats.experts,
        )  # fmt: skip
        yield Launches("experts", layer.text, "experts", call, layer.count)
        if parallel.data > 1:
            for sent in _exchanges(part, tokens, width, parallel.stage):
                yield Launches(
                    "tokens to experts and back", layer.text, "collectives", sent, layer.count
                )
    if dense:
        names = (
            ("gate and up", "down")
            if isinstance(part, GatedFeedForward)
            else ("shared gate and up", "shared down")
        )
        share = dense // parallel.tensor
        yield product(names[0], 2 * share, width, model.formats.dense)
        yield product(names[1], width, share, model.formats.dense)


def _exchanges(part: Experts, tokens: int, width: int, ranks: int) -> list[GpuCall]:
    """Returns the exchange of a rank's tokens with their experts: NCCL's all-to-all within a
    machine, DeepEP between machines.
    """
    nodes, rest = divmod(ranks, NODE_RANKS)
    if nodes < 2 or rest:
        copies = min(part.active, ranks)
        return [Collective("alltoall", WIDE_BYTES * tokens * copies * width, ranks)] * 2
    mode = "low_latency" if tokens <= _LOW_LATENCY_TOKENS else "normal"
    return [
        MoeExchange(step, tokens, width, part.active, part.experts, nodes, mode)
        for step in EXCHANGE_STEPS
    ]


def _sums(model: Decoder, step: ServingStep, parallel: Parallel) -> Iterator[Launches]:
    """Yields the sums over devices for every kind of layer: after attention, and after the
    feed-forward part unless its tokens travel to experts.
    """
    message = WIDE_BYTES * step.tokens * model.width
    for layer in model.layers:
        travels = isinstance(layer.feed_forward, Experts) and parallel.data > 1
        call = Collective("all_reduce", message, parallel.tensor)
        count = (1 if travels else 2) * layer.count
        yield Launches("sum over devices", layer.text, "collectives", call, count)


def _layer_moves(layer: Layer, step: ServingStep, parallel: Parallel) -> Iterator[Moves]:
    element = WIDE_BYTES * step.tokens
    attention, part = layer.attention, layer.feed_forward
    if isinstance(attention, GroupedAttention):
        turned = _qkv(attention, parallel.tensor)
    elif isinstance(attention, LatentAttention):
        heads = attention.heads // parallel.tensor
        turned = heads * (attention.nope + attention.rope) + attention.kv_rank + attention.rope
    if not isinstance(attention, SparseAttention):  # its block includes them
        yield Moves("rotation and cache", 2.0 * element * turned, layer.count, layer.text)
    if isinstance(part, GatedFeedForward):
        ffn = part.ffn // parallel.tensor
        yield Moves("gate times up", 3.0 * element * ffn, layer.count, layer.text)
    elif part.shared_ffn:
        ffn = part.shared_ffn // parallel.tensor
        yield Moves("shared gate times up", 3.0 * element * ffn, layer.count, layer.text)
