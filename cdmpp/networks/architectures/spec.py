"""A generated network in words: what is needed to build it, as plain values with an identity."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from cdmpp.config import from_dict, to_dict
from cdmpp.errors import DataError, UsageError
from cdmpp.files.json_text import parse_json

Style = Literal["plain", "inception", "residual", "dense", "separable"]
Halving = Literal["first-conv", "last-conv", "max-pool", "average-pool"]
Activation = Literal["relu", "relu6", "silu", "gelu"]
Head = Literal["linear", "hidden", "conv"]

_ID_LENGTH = 16


@dataclass(frozen=True)
class StageSpec:
    """A stage of a convolutional network; it halves height and width once.

    Options that the style does not use keep their defaults, so that equal networks are equal here.

    Attributes:
        style: `plain` = VGG, `inception` = GoogLeNet's parallel branches, `residual` = ResNet and
            ResNeXt, `dense` = DenseNet, `separable` = MobileNet.
        depth: blocks.
        width: output channels.
        halving: which convolution has stride 2, or which pooling ends the stage.
        kernel: of the spatial convolutions.
        groups: of the residual style's spatial convolutions.
        growth: channels that a layer of the dense style adds.
        expansion: residual: inner channels = width / expansion, 0 = a block without bottleneck.
            separable: inner channels = input channels * expansion, 0 = MobileNet's first version.
            dense: channels between the two convolutions of a layer = growth * expansion, 0 = one
            convolution.
        branches: parallel paths of the inception style, 2 to 4.
        has_shared_squeeze: whether the branches begin with one 1x1 convolution for all.
    """

    style: Style
    depth: int
    width: int
    halving: Halving
    kernel: int = 3
    groups: int = 1
    growth: int = 0
    expansion: int = 0
    branches: int = 0
    has_shared_squeeze: bool = False


@dataclass(frozen=True)
class CnnSpec:
    """A convolutional network: stem, stages, head.

    Attributes:
        stem_width: channels after the stem.
        stem_kernel: of the stem's convolution.
        stem_stride: 1 or 2.
        has_stem_pool: whether a 3x3 max pooling of stride 2 follows.
        stages: in order.
        activation: of all blocks.
        has_norm: whether convolutions are followed by batch normalisation (without bias then).
        head: `linear` = global average pooling and a fully connected layer, `hidden` = with one
            hidden layer, `conv` = a 1x1 convolution, then the pooling.
        classes: outputs.
    """

    stem_width: int
    stem_kernel: int
    stem_stride: int
    has_stem_pool: bool
    stages: tuple[StageSpec, ...]
    activation: Activation = "relu"
    has_norm: bool = True
    head: Head = "linear"
    classes: int = 1000

    @property
    def halvings(self) -> int:
        """How often height and width are halved from the input to the head."""
        return (self.stem_stride == 2) + self.has_stem_pool + len(self.stages)


@dataclass(frozen=True)
class TransformerSpec:
    """A transformer encoder with a classifier on the mean of its tokens.

    Attributes:
        source: `tokens` = integers through an embedding, `patches` = squares of an image through a
            strided convolution.
        tokens: length of the sequence; for patches (resolution / patch)^2.
        width: of a token; a multiple of `heads`.
        depth: layers.
        heads: of the attention.
        mlp_ratio: hidden width of the perceptron = width * mlp_ratio.
        activation: of the perceptron.
        is_attention_fused: one fused operator instead of two products and a softmax.
        is_norm_first: normalisation before attention and perceptron instead of after them.
        vocabulary: rows of the embedding, 0 for patches.
        patch: side of a patch in pixels, 0 for tokens.
        classes: outputs.
    """

    source: Literal["tokens", "patches"]
    tokens: int
    width: int
    depth: int
    heads: int
    mlp_ratio: int = 4
    activation: Activation = "gelu"
    is_attention_fused: bool = False
    is_norm_first: bool = True
    vocabulary: int = 0
    patch: int = 0
    classes: int = 10


@dataclass(frozen=True)
class MlpSpec:
    """Fully connected layers.

    Attributes:
        features: inputs.
        width: of the hidden layers.
        depth: hidden layers.
        activation: after each hidden layer.
        has_norm: whether a layer normalisation comes before the activation.
        is_residual: whether hidden layers after the first add their input.
        classes: outputs.
    """

    features: int
    width: int
    depth: int
    activation: Activation = "relu"
    has_norm: bool = False
    is_residual: bool = False
    classes: int = 10


@dataclass(frozen=True)
class ArchitectureSpec:
    """A network at one resolution; exactly one of `cnn`, `transformer` and `mlp` is there.

    Attributes:
        resolution: side of the input image in pixels, None for inputs that are no images.

    Raises:
        DataError: not exactly one of the three, or a resolution that the network cannot have.
    """

    resolution: int | None = None
    cnn: CnnSpec | None = None
    transformer: TransformerSpec | None = None
    mlp: MlpSpec | None = None

    def __post_init__(self) -> None:
        present = [part for part in (self.cnn, self.transformer, self.mlp) if part is not None]
        if len(present) != 1:
            raise DataError(
                f"an architecture of {len(present)} networks; expected one of cnn, transformer, mlp"
            )
        if self.takes_images != (self.resolution is not None):
            raise DataError(
                f"resolution {self.resolution} for a {self.family}; only image networks have a "
                "resolution"
            )

    @property
    def family(self) -> Literal["cnn", "transformer", "mlp"]:
        """Which of the three it is."""
        if self.cnn is not None:
            return "cnn"
        return "mlp" if self.transformer is None else "transformer"

    @property
    def takes_images(self) -> bool:
        """Whether the input is an image."""
        patches = self.transformer is not None and self.transformer.source == "patches"
        return self.cnn is not None or patches

    @property
    def architecture_id(self) -> str:
        """Hash of the network without resolution and batch: what data are split by."""
        values = self._values()
        values.pop("resolution", None)
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]

    def to_text(self) -> str:
        """Returns one line of JSON that `from_text` reads back equal."""
        return json.dumps(self._values(), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> ArchitectureSpec:
        """Returns the architecture of a line of `to_text`.

        Raises:
            DataError: it is none.
        """
        try:
            value = parse_json(text)
            if not isinstance(value, dict):
                raise ValueError(f"got {type(value).__name__}, expected an object")
            return from_dict(ArchitectureSpec, value)
        except (ValueError, UsageError) as error:
            raise DataError(
                f"not an architecture: {error}; expected the JSON of cdmpp networks generate"
            ) from None

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in to_dict(self).items() if value is not None}
