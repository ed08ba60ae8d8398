"""A transformer by its shape: what it holds in memory, and what a pass is asked of."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from cdmpp.config import named_values
from cdmpp.devices.device_file import nearest
from cdmpp.errors import UsageError

Dtype = Literal["bf16", "fp16", "fp8", "fp4"]
#: Type -> bytes of a weight; `fp4` has a scale of one byte for each 16 elements.
DTYPE_BYTES: dict[Dtype, float] = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5 + 1 / 16}
#: Activations, embedding and the last product are 16 bits wide, whatever the blocks' weights are.
WIDE_BYTES = 2
#: Logits are read in float32.
_LOGIT_BYTES = 4
_EXAMPLE = "layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,dtype=bf16"
_COVERED = (
    "covered: dense decoders with a gated feed-forward part. Not covered: mixtures of experts, "
    "latent attention (MLA), sliding windows, int4, int8 and fp32 weights, tied embeddings, "
    "feed-forward parts without a gate"
)


@dataclass(frozen=True)
class TransformerShape:
    """A decoder with grouped queries and a gated feed-forward part (three products).

    Attributes:
        layers: blocks.
        width: elements of a token.
        heads, kv_heads: of the queries, and of the keys and values.
        ffn: elements between the products of the feed-forward part.
        vocab: tokens there are.
        head_size: elements of a head; 0 = width over heads.
        dtype: of the blocks' weights and products.
        kv_dtype: of the cache, `bf16` or `fp8`.
        name: what people call it.

    Raises:
        UsageError: a number below 1, an unknown type, heads that do not divide.
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
        if self.dtype not in DTYPE_BYTES:
            raise UsageError(
                f"{self.name}: dtype={self.dtype}, expected one of {', '.join(DTYPE_BYTES)}; "
                f"{_COVERED}"
            )
        if self.kv_dtype not in ("bf16", "fp8"):
            raise UsageError(f"{self.name}: kv_dtype={self.kv_dtype}, expected bf16 or fp8")
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.name}: heads={self.heads}, expected a multiple of kv_heads={self.kv_heads}"
            )
        if self.head_size < 0 or (not self.head_size and self.width % self.heads):
            raise UsageError(
                f"{self.name}: width={self.width} over heads={self.heads} is no whole number; say "
                "head_size=N"
            )

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.head_size or self.width // self.heads

    @property
    def block_weights(self) -> int:
        """Elements of the matrices of one block."""
        attention = self.width * self.head * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.width * self.ffn

    @property
    def parameters(self) -> int:
        """Elements in all: blocks, norms, the embedding and the last product."""
        norms = (2 * self.layers + 1) * self.width
        return self.layers * self.block_weights + norms + 2 * self.vocab * self.width


@dataclass(frozen=True)
class Pass:
    """One pass through a transformer.

    Attributes:
        kind: `prefill` reads the prompt; `decode` makes one token of every sequence.
        length: tokens of each sequence: of the prompt, or in the cache with the new one.
        batch: sequences.
        degree: devices that share every product (tensor parallel).

    Raises:
        UsageError: a number below 1.
    """

    kind: Literal["prefill", "decode"]
    length: int
    batch: int = 1
    degree: int = 1

    def __post_init__(self) -> None:
        for name in ("length", "batch", "degree"):
            if getattr(self, name) < 1:
                raise UsageError(f"{self.kind}: {name} {getattr(self, name)}, expected at least 1")

    @property
    def tokens(self) -> int:
        """Tokens that the pass takes in."""
        return self.batch * (self.length if self.kind == "prefill" else 1)

    @property
    def text(self) -> str:
        """What it is, in words."""
        return (
            f"prefill {self.length:,}" if self.kind == "prefill" else f"decode at {self.length:,}"
        )


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that one device must hold during a pass.

    Attributes:
        weights: its share of all weights.
        cache: keys and values of all tokens of all sequences.
        activations: the most that is alive at once inside of a block, and the logits.
    """

    weights: float
    cache: float
    activations: float

    @property
    def total(self) -> float:
        """Bytes in all."""
        return self.weights + self.cache + self.activations


def memory_need(model: TransformerShape, one: Pass) -> MemoryNeed:
    """Returns what a device must hold; the libraries' own memory is not in it.

    Weights of blocks have the model's type, the embedding, the last product and the norms 16 bits.
    Activations live as long as a later kernel of the block reads them, as `cdmpp.networks` counts:
    the residual and what the widest kernel reads and writes, and the logits of the last tokens.

    Raises:
        UsageError: the heads do not divide among the devices.
    """
    check_degree(model, one.degree)
    share, kv_heads = one.degree, max(1, model.kv_heads // one.degree)
    blocks = model.layers * model.block_weights * DTYPE_BYTES[model.dtype]
    wide = WIDE_BYTES * (
        2 * model.vocab * model.width / share + (2 * model.layers + 1) * model.width
    )
    kv_bytes = DTYPE_BYTES[model.kv_dtype]
    cache = 2.0 * model.layers * one.batch * one.length * kv_heads * model.head * kv_bytes
    attention = (2 * model.heads // share + 2 * kv_heads) * model.head  # q, k, v and the result
    feed_forward = 3 * model.ffn // share  # gate, up and their product
    alive = WIDE_BYTES * one.tokens * (model.width + max(model.width + attention, feed_forward))
    logits = _LOGIT_BYTES * one.batch * model.vocab
    return MemoryNeed(blocks / share + wide, cache, float(alive + logits))


def check_degree(model: TransformerShape, degree: int) -> None:
    """Checks that so many devices can share a transformer.

    Raises:
        UsageError: they cannot.
    """
    is_even = model.heads % degree == 0 and model.ffn % degree == 0 and model.vocab % degree == 0
    kv_is_even = model.kv_heads % degree == 0 or degree % model.kv_heads == 0
    if not (is_even and kv_is_even):
        raise UsageError(
            f"{model.name}: {degree} devices cannot share {model.heads} heads, {model.kv_heads} "
            f"kv_heads, ffn {model.ffn} and vocab {model.vocab} evenly; expected a "
            "--tensor-parallel that divides them"
        )


def parse_transformer(text: str) -> TransformerShape:
    """Returns the transformer of `layers=32,width=4096,...`.

    Raises:
        UsageError: a `config.json`, a key that is unknown, missing or there twice, or a value that
            it cannot have.
    """
    known = [one.name for one in fields(TransformerShape)]
    form = f"expected e.g. {_EXAMPLE}; keys: {', '.join(known)}; {_COVERED}"
    if "=" not in text and text.endswith(".json"):
        raise UsageError(f"--transformer {text!r}: a model's config.json is not read; {form}")
    words = {"name", "dtype", "kv_dtype"}
    values: dict[str, str | int] = {}
    for key, value in named_values(text, "--transformer", f"e.g. {_EXAMPLE}").items():
        if key not in known:
            raise UsageError(f"--transformer has no key {key!r}{nearest(key, known)}; {form}")
        if key not in words and not value.isdecimal():
            raise UsageError(
                f"--transformer '{key}={value}', expected a whole number of at least 1"
            )
        values[key] = value if key in words else int(value)
    missing = [one for one in ("layers", "width", "heads", "ffn", "vocab") if one not in values]
    if missing:
        raise UsageError(f"--transformer {text!r} lacks {missing[0]}=N; expected e.g. {_EXAMPLE}")
    values.setdefault("kv_heads", values["heads"])
    return TransformerShape(**values)  # type: ignore[arg-type]
