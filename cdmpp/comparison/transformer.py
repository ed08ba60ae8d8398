"""A transformer by its shape, and passes through it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from cdmpp.comparison.llm.decoder import (
    Decoder,
    Formats,
    GatedFeedForward,
    GroupedAttention,
    Layer,
    Parallel,
)
from cdmpp.comparison.llm.kernels import ServingStep
from cdmpp.config import named_values
from cdmpp.errors import UsageError
from cdmpp.text import nearest

Dtype = Literal["bf16", "fp16", "fp8", "fp4"]
_DTYPES: tuple[Dtype, ...] = ("bf16", "fp16", "fp8", "fp4")
_MOST_SIZE = 2**63
_EXAMPLE = "layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,dtype=bf16"
_COVERED = (
    "covered: dense decoders with a gated feed-forward part. Mixtures of experts, latent attention "
    "(MLA), sliding windows and int4 weights are read from a config.json (--model). Not covered: "
    "int8 and fp32 weights, feed-forward parts without a gate"
)


@dataclass(frozen=True)
class TransformerShape:
    """A decoder with grouped-query attention and a gated feed-forward part (three products).

    Attributes:
        layers: number of blocks.
        width: elements of a token.
        heads, kv_heads: number of query heads, and of key-value heads.
        ffn: elements between the products of the feed-forward part.
        vocab: size of the vocabulary.
        head_size: elements of a head; 0 = width / heads.
        dtype: of the blocks' weights and products.
        kv_dtype: of the cache, `bf16` or `fp8`.
        name: display name.

    Raises:
        UsageError: a number below 1 or too large, an unknown type, or heads that do not divide.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    head_size: int = 0
    dtype: Dtype = "bf16"
    kv_dtype: Literal["bf16", "fp8"] = "bf16"
    name: str = "transformer"

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "ffn", "vocab"):
            if getattr(self, name) < 1:
                raise UsageError(f"{self.name}: {name}={getattr(self, name)}, expected at least 1")
            if max(getattr(self, name), self.head_size) > _MOST_SIZE:
                raise UsageError(f"{self.name}: {name} or head_size is more than {_MOST_SIZE}")
        if self.dtype not in _DTYPES:
            raise UsageError(
                f"{self.name}: dtype={self.dtype}, expected one of {', '.join(_DTYPES)}; {_COVERED}"
            )
        if self.kv_dtype not in ("bf16", "fp8"):
            raise UsageError(f"{self.name}: kv_dtype={self.kv_dtype}, expected bf16 or fp8")
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.name}: heads={self.heads}, expected a multiple of kv_heads={self.kv_heads}"
            )
        if self.head_size < 0 or (not self.head_size and self.width % self.heads):
            raise UsageError(
                f"{self.name}: width={self.width} over heads={self.heads} is not a whole number; "
                "give head_size=N"
            )

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.head_size or self.width // self.heads

    @property
    def decoder(self) -> Decoder:
        """The transformer as a `Decoder` with one kind of layer."""
        attention = GroupedAttention(self.heads, self.kv_heads, self.head)
        layer = Layer(attention, GatedFeedForward(self.ffn), self.layers)
        return Decoder(
            self.name, self.width, self.vocab, (layer,),
            Formats(self.dtype, self.dtype, self.dtype),
            wide="fp16" if self.dtype == "fp16" else "bf16", kv_dtype=self.kv_dtype,
        )  # fmt: skip


@dataclass(frozen=True)
class Pass:
    """One pass through a transformer.

    Attributes:
        kind: `prefill` processes the prompt; `decode` generates one token per sequence.
        length: tokens per sequence: of the prompt, or in the cache including the new one.
        batch: sequences.
        degree: tensor parallelism: devices that share every product.
        expert, data, pipeline: see `Parallel`; data-parallel replicas divide the sequences.

    Raises:
        UsageError: a number below 1 or too large.
    """

    kind: Literal["prefill", "decode"]
    length: int
    batch: int = 1
    degree: int = 1
    expert: int = 1
    data: int = 1
    pipeline: int = 1

    def __post_init__(self) -> None:
        for name in ("length", "batch", "degree"):
            if getattr(self, name) < 1:
                raise UsageError(f"{self.kind}: {name} {getattr(self, name)}, expected at least 1")
            if getattr(self, name) > _MOST_SIZE:
                raise UsageError(f"{self.kind}: {name} is more than {_MOST_SIZE}")

    @property
    def parallel(self) -> Parallel:
        """How the devices share the model."""
        return Parallel(self.degree, self.data, self.expert, self.pipeline)

    @property
    def sequences(self) -> int:
        """Sequences of the largest replica."""
        return -(-self.batch // self.data)

    @property
    def step(self) -> ServingStep:
        """Step of the largest replica."""
        if self.kind == "prefill":
            return ServingStep(prompts=self.sequences, chunk=self.length)
        return ServingStep(sequences=self.sequences, context=self.length)

    @property
    def tokens(self) -> int:
        """Input tokens of the pass."""
        return self.batch * (self.length if self.kind == "prefill" else 1)

    @property
    def text(self) -> str:
        """The pass in words."""
        return (
            f"prefill {self.length:,}" if self.kind == "prefill" else f"decode at {self.length:,}"
        )


def all_parallels(
    tensor: Sequence[int], data: Sequence[int], expert: Sequence[int], pipeline: Sequence[int]
) -> list[Parallel]:
    """Returns the valid combinations of parallelism.

    Raises:
        UsageError: no combination is valid.
    """
    found = list(itertools.product(tensor, data, expert, pipeline))
    fitting = [one for one in found if one[2] and not one[0] * one[1] % one[2]]
    return [Parallel(*one) for one in fitting or found]


def all_passes(
    prefill: Sequence[int], decode_at: Sequence[int], batches: Sequence[int],
    parallels: Sequence[Parallel],
) -> list[Pass]:  # fmt: skip
    """Returns the passes of all lengths, parallelisms and batches."""
    kinds: tuple[tuple[Literal["prefill", "decode"], Sequence[int]], ...] = (
        ("prefill", prefill), ("decode", decode_at),
    )  # fmt: skip
    return [
        Pass(kind, length, batch, one.tensor, one.expert, one.data, one.pipeline)
        for kind, lengths in kinds
        for length in lengths
        for one in parallels
        for batch in batches
    ]


def parse_transformer(text: str) -> TransformerShape:
    """Returns the transformer of `layers=32,width=4096,...`.

    Raises:
        UsageError: a `config.json`, an unknown, missing or duplicate key, or an invalid value.
    """
    known = [one.name for one in fields(TransformerShape)]
    form = f"expected e.g. {_EXAMPLE}; keys: {', '.join(known)}; {_COVERED}"
    if "=" not in text and text.endswith(".json"):
        raise UsageError(f"--transformer {text!r} is a file; run --model {text} instead")
    words = {"name", "dtype", "kv_dtype"}
    values: dict[str, str | int] = {}
    for key, value in named_values(text, "--transformer", f"e.g. {_EXAMPLE}").items():
        if key not in known:
            raise UsageError(f"--transformer has no key {key!r}{nearest(key, known)}; {form}")
        if key not in words and not (value.isdecimal() and len(value) < 1000):
            raise UsageError(
                f"--transformer '{key}={value:.60}', expected a whole number of at least 1"
            )
        values[key] = value if key in words else int(value)
    missing = [one for one in ("layers", "width", "heads", "ffn", "vocab") if one not in values]
    if missing:
        raise UsageError(f"--transformer {text!r} lacks {missing[0]}=N; expected e.g. {_EXAMPLE}")
    values.setdefault("kv_heads", values["heads"])
    return TransformerShape(**values)  # type: ignore[arg-type]
