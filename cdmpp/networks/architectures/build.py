"""The torch module of a generated architecture."""

from __future__ import annotations

import torch
from torch import nn

from cdmpp.errors import DataError
from cdmpp.networks.architectures.blocks import (
    ConvUnit,
    DenseStage,
    InceptionBlock,
    ResidualBlock,
    SeparableBlock,
    make_activation,
)
from cdmpp.networks.architectures.sequences import Mlp, Transformer
from cdmpp.networks.architectures.spec import ArchitectureSpec, CnnSpec, StageSpec

_IMAGE_CHANNELS = 3


def build_module(spec: ArchitectureSpec) -> nn.Module:
    """Returns the network in training mode with torch's default initial weights.

    It is on torch's default device, so nothing is allocated under `torch.device("meta")`.

    Raises:
        DataError: an unknown style of blocks.
    """
    if spec.cnn is not None:
        return Cnn(spec.cnn)
    if spec.transformer is not None:
        return Transformer(spec.transformer)
    assert spec.mlp is not None
    return Mlp(spec.mlp)


def input_shapes(spec: ArchitectureSpec) -> tuple[tuple[int, ...], ...]:
    """Returns the shape of every input without the batch dimension."""
    if spec.resolution is not None:
        return ((_IMAGE_CHANNELS, spec.resolution, spec.resolution),)
    if spec.transformer is not None:
        return ((spec.transformer.tokens,),)
    assert spec.mlp is not None
    return ((spec.mlp.features,),)


def make_inputs(
    spec: ArchitectureSpec, batch: int, *, seed: int = 0, device: str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """Returns random inputs [batch, ...]: integers for an embedding, else floats."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, *shape) for shape in input_shapes(spec)]
    if spec.transformer is not None and spec.transformer.source == "tokens":
        rows = spec.transformer.vocabulary
        return tuple(torch.randint(rows, shape, generator=generator).to(device) for shape in shapes)
    return tuple(torch.randn(shape, generator=generator).to(device) for shape in shapes)


class Cnn(nn.Module):
    """Stem, stages, head. Input [batch, 3, height, width], output [batch, classes]."""

    def __init__(self, spec: CnnSpec) -> None:
        super().__init__()
        self.stem = _stem(spec)
        channels = spec.stem_width
        stages = []
        for stage in spec.stages:
            stages.append(_stage(stage, channels, spec))
            channels = stage.width
        self.stages = nn.Sequential(*stages)
        self.head = _head(spec, channels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.stages(self.stem(images)))
        return outputs


def _stem(spec: CnnSpec) -> nn.Sequential:
    layers: list[nn.Module] = [
        ConvUnit(_IMAGE_CHANNELS, spec.stem_width, spec.stem_kernel, spec, stride=spec.stem_stride)
    ]
    if spec.has_stem_pool:
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    return nn.Sequential(*layers)


def _head(spec: CnnSpec, channels: int) -> nn.Sequential:
    if spec.head == "conv":
        return nn.Sequential(
            nn.Conv2d(channels, spec.classes, 1), make_activation(spec.activation),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
    layers: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if spec.head == "hidden":
        layers += [nn.Linear(channels, 2 * channels), make_activation(spec.activation)]
        channels *= 2
    return nn.Sequential(*layers, nn.Linear(channels, spec.classes))


def _stage(stage: StageSpec, channels: int, spec: CnnSpec) -> nn.Module:
    """Returns a stage from `channels` to `stage.width` channels that halves height and width."""
    pool: list[nn.Module] = []
    if stage.halving == "max-pool":
        pool = [nn.MaxPool2d(3, stride=2, padding=1)]
    elif stage.halving == "average-pool":
        pool = [nn.AvgPool2d(3, stride=2, padding=1)]
    if stage.style == "dense":
        return nn.Sequential(DenseStage(stage, channels, spec), *pool)
    blocks = []
    strided = {"first-conv": 0, "last-conv": stage.depth - 1}.get(stage.halving)
    for number in range(stage.depth):
        blocks.append(_block(stage, channels, spec, stride=2 if number == strided else 1))
        channels = stage.width
    return nn.Sequential(*blocks, *pool)


def _block(stage: StageSpec, channels: int, spec: CnnSpec, *, stride: int) -> nn.Module:
    if stage.style == "plain":
        return ConvUnit(channels, stage.width, stage.kernel, spec, stride=stride)
    if stage.style == "inception":
        return InceptionBlock(stage, channels, spec, stride=stride)
    if stage.style == "residual":
        return ResidualBlock(stage, channels, spec, stride=stride)
    if stage.style == "separable":
        return SeparableBlock(stage, channels, spec, stride=stride)
    raise DataError(f"a block of style {stage.style!r}; expected one that has blocks")
