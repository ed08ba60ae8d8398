"""A decoder as a list of layer kinds, each with attention and a feed-forward part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cdmpp.analytic.gpu_kernels.account.sparse import (
    INDEX_HEAD,
    RATIOS,
    SPARSE_SIZES,
    sparse_weights,
)
from cdmpp.errors import UsageError
from cdmpp.text import counted

#: Storage formats of weights. `fp8_block` has a scale per block of 128 x 128, `fp4` (NVFP4) one
#: byte per 16 elements, `mxfp4` one per 32, `int4` two per 128.
Format = Literal["bf16", "fp16", "fp8", "fp8_block", "fp4", "mxfp4", "int4"]
FORMATS: tuple[Format, ...] = ("bf16", "fp16", "fp8", "fp8_block", "fp4", "mxfp4", "int4")
#: Format -> bytes of a weight.
WEIGHT_BYTES: Mapping[Format, float] = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128**2, "fp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32, "int4": 0.5 + 2 / 128,
}  # fmt: skip
CacheFormat = Literal["bf16", "fp8"]
CACHE_BYTES: Mapping[CacheFormat, float] = {"bf16": 2.0, "fp8": 1.0}
#: Kinds of sparse attention whose cache entries represent several tokens.
COMPRESSED = ("csa", "hca")
#: Bytes of activations, embedding and the last product, which have 16 bits in every format.
WIDE_BYTES = 2
#: Bytes of a logit (float32).
LOGIT_BYTES = 4


@dataclass(frozen=True)
class GroupedAttention:
    """Grouped-query attention.

    Attributes:
        heads, kv_heads: number of query heads, and of key-value heads.
        head: elements of a head.
        window: maximum number of tokens that a token attends to; 0 = all.
    """

    heads: int
    kv_heads: int
    head: int
    window: int = 0

    @property
    def text(self) -> str:
        """The attention in words."""
        return f"attention, window {self.window:,}" if self.window else "attention"

    def weights(self, width: int) -> int:
        """Returns the number of elements of its matrices."""
        return width * self.head * (2 * self.heads + 2 * self.kv_heads)

    def weights_on(self, width: int, tensor: int) -> float:
        """Returns the number of elements of its matrices on one of the devices that share it."""
        kv_heads = max(1, self.kv_heads / tensor)
        return width * self.head * (2 * self.heads / tensor + 2 * kv_heads)

    def cached(self, length: int, tensor: int) -> int:
        """Returns the number of cached elements of a sequence on one device."""
        kept = min(length, self.window) if self.window else length
        return 2 * kept * max(1, self.kv_heads // tensor) * self.head

    def alive(self, tensor: int) -> int:
        """Returns the live elements of a token: queries, keys, values and the result."""
        kv_heads = max(1, self.kv_heads // tensor)
        return (2 * self.heads // tensor + 2 * kv_heads) * self.head


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA, DeepSeek-V2): the cache has one latent per token.

    Attributes:
        heads: number of query heads.
        q_rank: elements of the queries' latent; 0 = queries are computed from the token itself.
        kv_rank: elements of the latent of keys and values.
        nope, rope: elements of a query head without and with rotation.
        value: elements of a value head.
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int

    @property
    def text(self) -> str:
        """The attention in words."""
        return "latent attention"

    @property
    def down(self) -> int:
        """Elements per token of the first product, which every device computes in full."""
        return self.q_rank + self.kv_rank + self.rope

    def weights(self, width: int) -> int:
        """Returns the number of elements of its matrices."""
        return width * self.down + self._of_heads(width)

    def weights_on(self, width: int, tensor: int) -> float:
        """Returns the number of elements of its matrices on one of the devices that share it."""
        return width * self.down + self._of_heads(width) / tensor

    def _of_heads(self, width: int) -> int:
        queries = (self.q_rank or width) * (self.nope + self.rope)
        return self.heads * (queries + self.kv_rank * (self.nope + self.value) + width * self.value)

    def cached(self, length: int, tensor: int) -> int:
        """Returns the cached elements of a sequence on one device; every device has the latents."""
        return length * (self.kv_rank + self.rope)

    def alive(self, tensor: int) -> int:
        """Returns the live elements of a token: queries, keys, values and the result."""
        return self.heads // tensor * (2 * (self.nope + self.rope) + 2 * self.value) + self.down


SparseKind = Literal["dsa", "msa", "csa", "hca", "window"]


@dataclass(frozen=True)
class SparseAttention:
    """Attention to tokens selected by an index, with the sizes of a measured model.

    Attributes:
        model: the measured model, one of `SPARSE_SIZES`.
        kind: `dsa` (DeepSeek-V3.2, GLM-5), `msa` (MiniMax-M3), or of DeepSeek-V4 `csa`, `hca` or
            `window`, which has no compression.
        indexed: whether it selects itself; otherwise it reuses the selection of an earlier layer.
    """

    model: str
    kind: SparseKind
    indexed: bool = True

    @property
    def text(self) -> str:
        """The attention in words."""
        what = {
            "csa": "compressed sparse attention", "hca": "heavily compressed attention",
            "window": f"attention, window {SPARSE_SIZES[self.model].window}",
        }.get(self.kind, "sparse attention")  # fmt: skip
        return what + ("" if self.indexed else " without an index")

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return SPARSE_SIZES[self.model].heads

    @property
    def kv_heads(self) -> int:
        """Number of heads by which devices divide keys and values."""
        return SPARSE_SIZES[self.model].kv_heads or self.heads

    def weights(self, width: int) -> int:
        """Returns the number of elements of its matrices."""
        return round(self.weights_on(width, 1))

    def weights_on(self, width: int, tensor: int) -> float:
        """Returns the elements of its matrices on one device; every device has the index."""
        heads = self.heads / tensor
        return float(sparse_weights(self.kind, self.model, heads, float(self.indexed)))

    def cached(self, length: int, tensor: int) -> int:
        """Returns the cached elements of a sequence on one device, with the keys of the index."""
        entries, key = self._entries(length), self._key
        return self._near(length) * self._entry(tensor) + entries * (self._entry(tensor) + key)

    def read(self, length: int, tensor: int) -> int:
        """Returns the cached elements that a new token reads."""
        entries = self._entries(length)
        selected = (
            min(entries, SPARSE_SIZES[self.model].selected) if self.kind != "hca" else entries
        )
        return (self._near(length) + selected) * self._entry(tensor) + entries * self._key

    def _entries(self, length: int) -> int:
        """Returns the number of cache entries, each of one or several tokens."""
        return 0 if self.kind == "window" else length // int(RATIOS[self.kind])

    def _near(self, length: int) -> int:
        """Returns the number of tokens that are also cached one by one."""
        return min(length, SPARSE_SIZES[self.model].window)

    def _entry(self, tensor: int) -> int:
        sizes = SPARSE_SIZES[self.model]
        return sizes.latent or 2 * max(1, sizes.kv_heads // tensor) * sizes.head

    @property
    def _key(self) -> int:
        return INDEX_HEAD if self.indexed and self.kind not in ("hca", "window") else 0

    def alive(self, tensor: int) -> int:
        """Returns the live elements of a token: queries, keys, values and the result."""
        sizes = SPARSE_SIZES[self.model]
        down = sizes.query_rank + self._entry(tensor)
        return self.heads // tensor * 2 * (sizes.head + sizes.value) + down


@dataclass(frozen=True)
class GatedFeedForward:
    """A feed-forward part of three products, with a gate.

    Attributes:
        ffn: elements between the products.
    """

    ffn: int

    @property
    def text(self) -> str:
        """The feed-forward part in words."""
        return "feed-forward"


@dataclass(frozen=True)
class Experts:
    """A mixture of gated feed-forward parts.

    Attributes:
        experts: number of experts.
        active: number of experts per token.
        ffn: elements between the products of one expert.
        shared_ffn: elements between the products of all shared experts together; 0 = none.
    """

    experts: int
    active: int
    ffn: int
    shared_ffn: int = 0

    @property
    def text(self) -> str:
        """The feed-forward part in words."""
        shared = " and a shared one" if self.shared_ffn else ""
        return f"{self.active} of {self.experts} experts{shared}"


Attention = GroupedAttention | LatentAttention | SparseAttention
FeedForward = GatedFeedForward | Experts


@dataclass(frozen=True)
class Layer:
    """A kind of layer, and the number of its layers in a decoder."""

    attention: Attention
    feed_forward: FeedForward
    count: int

    @property
    def text(self) -> str:
        """The layers in words."""
        return f"{self.count} x {self.attention.text} + {self.feed_forward.text}"


@dataclass(frozen=True)
class Formats:
    """Formats of a decoder's weights: attention, dense feed-forward parts (and shared experts),
    and experts.
    """

    attention: Format = "bf16"
    dense: Format = "bf16"
    experts: Format = "bf16"


@dataclass(frozen=True)
class Decoder:
    """A decoder.

    Attributes:
        name: display name.
        width: elements of a token.
        vocab: size of the vocabulary.
        layers: its kinds of layers.
        formats: of the weights.
        wide: type of activations, embedding and the last product.
        kv_dtype: of the cache.
        is_tied: whether the embedding is also the weight of the last product.
        streams: copies of a token between layers, mixed by hyper-connections; 1 = a residual.
        has_drafts: whether it has layers for speculative decoding, which servers use on request.
        context: maximum number of tokens of a sequence; None = unknown.
    """

    name: str
    width: int
    vocab: int
    layers: tuple[Layer, ...]
    formats: Formats = Formats()
    wide: Literal["bf16", "fp16"] = "bf16"
    kv_dtype: CacheFormat = "bf16"
    is_tied: bool = False
    streams: int = 1
    has_drafts: bool = False
    context: int | None = None

    def beyond_context(self, length: int) -> tuple[str, ...]:
        """Returns a note on sequences of `length` tokens that exceed the context; else nothing."""
        if self.context is None or length <= self.context:
            return ()
        return (
            f"{length:,} tokens exceed the model's context of {self.context:,} "
            "(max_position_embeddings): predicted as if it were longer",
        )

    @property
    def depth(self) -> int:
        """Total number of layers."""
        return sum(layer.count for layer in self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether any layer has experts."""
        return self.expert_layers > 0

    @property
    def expert_layers(self) -> int:
        """Number of layers with experts."""
        return sum(one.count for one in self.layers if isinstance(one.feed_forward, Experts))

    @property
    def main_format(self) -> Format:
        """The format of most of its weights."""
        return self.formats.experts if self.has_experts else self.formats.dense

    @property
    def used_formats(self) -> tuple[Format, ...]:
        """All formats of its layers' weights, without duplicates."""
        found = [self.main_format, self.formats.attention]
        if any(
            isinstance(layer.feed_forward, GatedFeedForward) or layer.feed_forward.shared_ffn
            for layer in self.layers
        ):
            found.append(self.formats.dense)
        return tuple(dict.fromkeys(found))

    @property
    def norms(self) -> int:
        """Elements of its norms, and of the weights that mix its streams."""
        mixing = (self.streams + 2) * self.streams**2 if self.streams > 1 else 0
        return (2 * self.depth * (1 + mixing) + 1) * self.width

    @property
    def parameters(self) -> int:
        """Total number of elements: layers, norms, embedding and last product."""
        layers = sum(
            layer.count
            * (
                layer.attention.weights(self.width)
                + sum(matrix_weights(layer.feed_forward, self.width).values())
            )
            for layer in self.layers
        )
        return layers + self.norms + (1 if self.is_tied else 2) * self.vocab * self.width

    def vocab_on(self, devices: int) -> int:
        """Returns the tokens on each of the devices that share the vocabulary: servers pad it until
        they divide it.
        """
        return -(-self.vocab // devices)


def matrix_weights(part: FeedForward, width: int) -> dict[str, int]:
    """Returns the elements of a feed-forward part's matrices: `dense`, `experts`, `router`."""
    if isinstance(part, GatedFeedForward):
        return {"dense": 3 * width * part.ffn}
    return {
        "dense": 3 * width * part.shared_ffn,
        "experts": 3 * width * part.ffn * part.experts,
        "router": width * part.experts,
    }


@dataclass(frozen=True)
class Parallel:
    """How devices share a decoder.

    Attributes:
        tensor: devices that share every product of an attention replica.
        data: attention replicas, each with its own sequences.
        expert: groups of experts; the devices of one group share each of its experts.
        pipeline: stages, each with a part of the layers.

    Raises:
        UsageError: a number below 1, or `expert` does not divide `tensor` x `data`.
    """

    tensor: int = 1
    data: int = 1
    expert: int = 1
    pipeline: int = 1

    def __post_init__(self) -> None:
        for option, value in (
            ("--tensor-parallel", self.tensor), ("--data-parallel-attention", self.data),
            ("--expert-parallel", self.expert), ("--pipeline-parallel", self.pipeline),
        ):  # fmt: skip
            if value < 1:
                raise UsageError(f"{option} {value}, expected at least 1")
        if self.stage % self.expert:
            raise UsageError(
                f"--expert-parallel {self.expert} does not divide the "
                f"{counted(self.stage, 'device')} of "
                "--tensor-parallel times --data-parallel-attention"
            )

    @property
    def stage(self) -> int:
        """Devices of one stage."""
        return self.tensor * self.data

    @property
    def gpus(self) -> int:
        """Total number of devices."""
        return self.stage * self.pipeline

    @property
    def expert_tensor(self) -> int:
        """Number of devices that share one expert."""
        return self.stage // self.expert

    @property
    def text(self) -> str:
        """The parallelism in words; empty for tensor parallelism only."""
        words = [
            f"{name} {value}"
            for name, value in (
                ("tensor", self.tensor), ("data", self.data), ("expert", self.expert),
                ("pipeline", self.pipeline),
            )
            if value > 1
        ]  # fmt: skip
        is_plain = self.data == self.expert == self.pipeline == 1
        return "" if is_plain else f"{', '.join(words)} parallel"


def check_names(models: Sequence[Decoder]) -> None:
    """Checks that the names of the models differ.

    Raises:
        UsageError: two models have the same name.
    """
    names = [one.name for one in models]
    again = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if again is not None:
        raise UsageError(
            f"two models have the name {again!r}; give each its own name, e.g. "
            "layers=32,...,name=small, or another folder of its config.json"
        )


def check_parallel(model: Decoder, parallel: Parallel) -> None:
    """Checks that devices can share a decoder.

    Raises:
        UsageError: they cannot share it.
    """
    degree = parallel.tensor
    for layer in model.layers:
        attention, part = layer.attention, layer.feed_forward
        heads, kv_heads = attention.heads, getattr(attention, "kv_heads", attention.heads)
        ffn = part.ffn if isinstance(part, GatedFeedForward) else part.shared_ffn
        kv_is_even = kv_heads % degree == 0 or degree % kv_heads == 0
        uneven = {
            f"{heads} heads": heads % degree, f"{kv_heads} kv_heads": not kv_is_even,
            f"ffn {ffn}": ffn % degree,
        }  # fmt: skip
        if any(uneven.values()):
            what = ", ".join(name for name, is_uneven in uneven.items() if is_uneven)
            raise UsageError(
                f"{model.name}: {degree} devices cannot share {what} evenly; expected a "
                "--tensor-parallel that divides it"
            )
        if isinstance(part, Experts):
            _check_experts(model, part, parallel)
    if not model.has_experts and (parallel.expert > 1 or parallel.data > 1):
        option = "--expert-parallel" if parallel.expert > 1 else "--data-parallel-attention"
        raise UsageError(
            f"{model.name} has no experts, so {option} does not apply; use --tensor-parallel or "
            "--pipeline-parallel"
        )
    if parallel.pipeline > model.depth:
        raise UsageError(
            f"{model.name}: --pipeline-parallel {parallel.pipeline}, expected at most its "
            f"{model.depth} layers"
        )


def _check_experts(model: Decoder, part: Experts, parallel: Parallel) -> None:
    if part.experts % parallel.expert:
        raise UsageError(
            f"{model.name}: --expert-parallel {parallel.expert} does not divide its "
            f"{part.experts} experts"
        )
    if part.ffn % parallel.expert_tensor:
        raise UsageError(
            f"{model.name}: {parallel.expert_tensor} devices cannot share an expert of ffn "
            f"{part.ffn} evenly; expected another --expert-parallel"
        )
