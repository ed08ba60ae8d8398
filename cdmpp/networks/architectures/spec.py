"""Specifications of generated networks as plain values with an id."""

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

    Options that the style does not use keep their defaults, so equal networks have equal specs.

    Attributes:
        style: `plain` = VGG, `inception` = GoogLeNet's parallel branches, `residual` = ResNet and
            ResNeXt, `dense` = DenseNet, `separable` = MobileNet.
        depth: number of blocks.
        width: number of output channels.
        halving: which convolution has stride 2, or which pooling ends the stage.
        kernel: size of the spatial convolutions.
        groups: groups of the residual style's spatial convolutions.
        growth: channels that a layer of the dense style adds.
        expansion: residual: inner channels = width / expansion, 0 = no bottleneck. separable: inner
            channels = input channels * expansion, 0 = MobileNetV1. dense: channels between the two
            convolutions of a layer = growth * expansion, 0 = one convolution.
        branches: number of parallel paths of the inception style, 2 to 4.
        has_shared_squeeze: whether all branches share their first 1x1 convolution.
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
        stem_kernel: size of the stem's convolution.
        stem_stride: stride of the stem's convolution, 1 or 2.
        has_stem_pool: whether the stem ends with a 3x3 max pooling of stride 2.
        stages: stages in order.
        activation: activation of all blocks.
        has_norm: whether convolutions have batch normalisation instead of a bias.
        head: `linear` = global average pooling and a fully connected layer, `hidden` = also with a
            hidden layer, `conv` = a 1x1 convolution, then the pooling.
        classes: number of outputs.
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
        """Number of halvings of height and width between the input and the head."""
        return (self.stem_stride == 2) + self.has_stem_pool + len(self.stages)


@dataclass(frozen=True)
class TransformerSpec:
    """A transformer encoder with a classifier on the mean of its tokens.

    Attributes:
        source: `tokens` = integers through an embedding, `patches` = squares of an image through a
            strided convolution.
        tokens: length of the sequence; for patches (resolution / patch)^2.
        width: width of a token, a multiple of `heads`.
        depth: number of layers.
        heads: number of attention heads.
        mlp_ratio: hidden width of the perceptron / `width`.
        activation: activation of the perceptron.
        is_attention_fused: whether attention is one operator, not two products and a softmax.
        is_norm_first: whether normalisation is before attention and perceptron, not after.
        vocabulary: rows of the embedding; 0 for patches.
        patch: side of a patch in pixels; 0 for tokens.
        classes: number of outputs.
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
    """A multilayer perceptron.

    Attributes:
        features: number of inputs.
        width: width of the hidden layers.
        depth: number of hidden layers.
        activation: activation after each hidden layer.
        has_norm: whether a layer normalisation precedes the activation.
        is_residual: whether hidden layers after the first add their input.
        classes: number of outputs.
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
    """A network at one resolution; exactly one of `cnn`, `transformer` and `mlp` is given.

    Attributes:
        resolution: side of the input image in pixels; None if the input is no image.

    Raises:
        DataError: not exactly one of the three is given, the resolution is missing for an image
            network, or given for another network.
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
        """Family of the network."""
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
        """Hash of the network without its resolution, by which data are split."""
        values = self._values()
        values.pop("resolution", None)
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]

    def to_text(self) -> str:
        """Returns one line of JSON for `from_text`."""
        return json.dumps(self._values(), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> ArchitectureSpec:
        """Returns the architecture from a line of `to_text`.

        Raises:
            DataError: the text is not an architecture.
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
