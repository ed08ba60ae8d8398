"""Blocks of the generated convolutional networks."""

from __future__ import annotations

import torch
from torch import nn

from cdmpp.networks.architectures.spec import Activation, CnnSpec, StageSpec


def make_activation(name: Activation) -> nn.Module:
    """Returns the activation of this name."""
    kinds: dict[Activation, type[nn.Module]] = {
        "relu": nn.ReLU, "relu6": nn.ReLU6, "silu": nn.SiLU, "gelu": nn.GELU,
    }  # fmt: skip
    return kinds[name]()


class ConvUnit(nn.Sequential):
    """Convolution, batch normalisation (or a bias), activation. [batch, channel, height, width].

    Args:
        activation: None = none.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int,
        *,
        activation: Activation | None,
        has_norm: bool,
        stride: int = 1,
        groups: int = 1,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(
                channels, width, kernel, stride=stride, padding=kernel // 2, groups=groups,
                bias=not has_norm,
            )
        ]  # fmt: skip
        if has_norm:
            layers.append(nn.BatchNorm2d(width))
        if activation is not None:
            layers.append(make_activation(activation))
        super().__init__(*layers)


class InceptionBlock(nn.Module):
    """Parallel paths whose outputs are concatenated: 1x1, 1x1 and k x k, 1x1 and (k+2) x (k+2),
    pooling and 1x1.
    """

    def __init__(self, stage: StageSpec, channels: int, spec: CnnSpec, *, stride: int) -> None:
        super().__init__()

        def unit(inputs: int, outputs: int, kernel: int, stride: int = 1) -> ConvUnit:
            return ConvUnit(
                inputs, outputs, kernel, stride=stride, activation=spec.activation,
                has_norm=spec.has_norm,
            )  # fmt: skip

        share = stage.width // stage.branches
        first = stage.width - share * (stage.branches - 1)
        inner = max(4, share // 2)
        self.squeeze = unit(channels, inner, 1) if stage.has_shared_squeeze else nn.Identity()
        inputs = inner if stage.has_shared_squeeze else channels
        paths: list[nn.Module] = [unit(inputs, first, 1, stride)]
        for kernel in (stage.kernel, stage.kernel + 2)[: stage.branches - 1]:
            if stage.has_shared_squeeze:
                paths.append(unit(inputs, share, kernel, stride))
            else:
                paths.append(
                    nn.Sequential(unit(inputs, inner, 1), unit(inner, share, kernel, stride))
                )
        if stage.branches > 3:
            pool = nn.MaxPool2d(3, stride=stride, padding=1)
            paths.append(nn.Sequential(pool, unit(inputs, share, 1)))
        self.paths = nn.ModuleList(paths)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        squeezed = self.squeeze(inputs)
        return torch.cat([path(squeezed) for path in self.paths], dim=1)


class ResidualBlock(nn.Module):
    """Two k x k convolutions, or 1x1, k x k, 1x1; the input is added, projected where it must."""

    def __init__(self, stage: StageSpec, channels: int, spec: CnnSpec, *, stride: int) -> None:
        super().__init__()
        width, kernel, groups, norm = stage.width, stage.kernel, stage.groups, spec.has_norm
        activation = spec.activation
        if stage.expansion:
            inner = width // stage.expansion
            self.body = nn.Sequential(
                ConvUnit(channels, inner, 1, activation=activation, has_norm=norm),
                ConvUnit(
                    inner, inner, kernel, stride=stride, groups=groups, activation=activation,
                    has_norm=norm,
                ),
                ConvUnit(inner, width, 1, activation=None, has_norm=norm),
            )  # fmt: skip
        else:
            self.body = nn.Sequential(
                ConvUnit(
                    channels, width, kernel, stride=stride, activation=activation, has_norm=norm
                ),
                ConvUnit(width, width, kernel, groups=groups, activation=None, has_norm=norm),
            )
        self.shortcut = (
            ConvUnit(channels, width, 1, stride=stride, activation=None, has_norm=norm)
            if stride != 1 or channels != width
            else nn.Identity()
        )
        self.activation = make_activation(activation)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.activation(self.body(inputs) + self.shortcut(inputs))
        return outputs


class SeparableBlock(nn.Module):
    """A depthwise convolution between 1x1 ones; the input is added where the shapes allow it."""

    def __init__(self, stage: StageSpec, channels: int, spec: CnnSpec, *, stride: int) -> None:
        super().__init__()
        norm, activation = spec.has_norm, spec.activation
        inner = channels * max(1, stage.expansion)
        layers = []
        if stage.expansion:
            layers.append(ConvUnit(channels, inner, 1, activation=activation, has_norm=norm))
        layers.append(
            ConvUnit(
                inner, inner, stage.kernel, stride=stride, groups=inner, activation=activation,
                has_norm=norm,
            )
        )  # fmt: skip
        last = None if stage.expansion else activation
        layers.append(ConvUnit(inner, stage.width, 1, activation=last, has_norm=norm))
        self.body = nn.Sequential(*layers)
        self.adds_input = bool(stage.expansion) and stride == 1 and channels == stage.width

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(inputs)
        return inputs + outputs if self.adds_input else outputs


class DenseStage(nn.Module):
    """Layers that each see the outputs of all before them, then a 1x1 convolution to the width."""

    def __init__(self, stage: StageSpec, channels: int, spec: CnnSpec) -> None:
        super().__init__()

        def unit(inputs: int, outputs: int, kernel: int, stride: int = 1) -> ConvUnit:
            return ConvUnit(
                inputs, outputs, kernel, stride=stride, activation=spec.activation,
                has_norm=spec.has_norm,
            )  # fmt: skip

        self.entry: nn.Module = nn.Identity()
        if stage.halving == "first-conv":
            self.entry = unit(channels, channels, 3, 2)
        layers = []
        for _ in range(stage.depth):
            inner = stage.growth * stage.expansion
            if inner:
                layers.append(
                    nn.Sequential(unit(channels, inner, 1), unit(inner, stage.growth, stage.kernel))
                )
            else:
                layers.append(nn.Sequential(unit(channels, stage.growth, stage.kernel)))
            channels += stage.growth
        self.layers = nn.ModuleList(layers)
        self.exit = unit(channels, stage.width, 1, 2 if stage.halving == "last-conv" else 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.entry(inputs)
        for layer in self.layers:
            features = torch.cat([features, layer(features)], dim=1)
        outputs: torch.Tensor = self.exit(features)
        return outputs
