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
        spec: has the kind of activation and whether there is normalisation.
        is_activated: whether there is an activation.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int,
        spec: CnnSpec,
        *,
        stride: int = 1,
        groups: int = 1,
        is_activated: bool = True,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(
                channels, width, kernel, stride=stride, padding=kernel // 2, groups=groups,
                bias=not spec.has_norm,
            )
        ]  # fmt: skip
        if spec.has_norm:
            layers.append(nn.BatchNorm2d(width))
        if is_activated:
            layers.append(make_activation(spec.activation))
        super().__init__(*layers)


class InceptionBlock(nn.Module):
    """Concatenated outputs of parallel paths: 1x1; 1x1 and k x k; 1x1 and (k+2) x (k+2); pooling
    and 1x1.
    """

    def __init__(self, stage: StageSpec, channels: int, spec: CnnSpec, *, stride: int) -> None:
        super().__init__()
        share = stage.width // stage.branches
        first = stage.width - share * (stage.branches - 1)
        inner = max(4, share // 2)
        self.squeeze = (
            ConvUnit(channels, inner, 1, spec) if stage.has_shared_squeeze else nn.Identity()
        )
        inputs = inner if stage.has_shared_squeeze else channels
        paths: list[nn.Module] = [ConvUnit(inputs, first, 1, spec, stride=stride)]
        for kernel in (stage.kernel, stage.kernel + 2)[: stage.branches - 1]:
            path = [] if stage.has_shared_squeeze else [ConvUnit(inputs, inner, 1, spec)]
            path.append(ConvUnit(inner, share, kernel, spec, stride=stride))
            paths.append(nn.Sequential(*path) if len(path) > 1 else path[0])
        if stage.branches > 3:
            pool = nn.MaxPool2d(3, stride=stride, padding=1)
            paths.append(nn.Sequential(pool, ConvUnit(inputs, share, 1, spec)))
        self.paths = nn.ModuleList(paths)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        squeezed = self.squeeze(inputs)
        return torch.cat([path(squeezed) for path in self.paths], dim=1)


class ResidualBlock(nn.Module):
    """Two k x k convolutions, or 1x1, k x k, 1x1, plus the input, projected if shapes differ."""

    def __init__(self, stage: StageSpec, channels: int, spec: CnnSpec, *, stride: int) -> None:
        super().__init__()
        width, kernel, groups = stage.width, stage.kernel, stage.groups
        if stage.expansion:
            inner = width // stage.expansion
            self.body = nn.Sequential(
                ConvUnit(channels, inner, 1, spec),
                ConvUnit(inner, inner, kernel, spec, stride=stride, groups=groups),
                ConvUnit(inner, width, 1, spec, is_activated=False),
            )
        else:
            self.body = nn.Sequential(
                ConvUnit(channels, width, kernel, spec, stride=stride),
                ConvUnit(width, width, kernel, spec, groups=groups, is_activated=False),
            )
        self.shortcut = (
            ConvUnit(channels, width, 1, spec, stride=stride, is_activated=False)
            if stride != 1 or channels != width
            else nn.Identity()
        )
        self.activation = make_activation(spec.activation)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.activation(self.body(inputs) + self.shortcut(inputs))
        return outputs


class SeparableBlock(nn.Module):
    """A depthwise convolution with 1x1 convolutions before (if expanded) and after; with an
    expansion, the input is added if the shapes are equal.
    """

    def __init__(self, stage: StageSpec, channels: int, spec: CnnSpec, *, stride: int) -> None:
        super().__init__()
        inner = channels * max(1, stage.expansion)
        layers = [ConvUnit(channels, inner, 1, spec)] if stage.expansion else []
        layers.append(ConvUnit(inner, inner, stage.kernel, spec, stride=stride, groups=inner))
        layers.append(ConvUnit(inner, stage.width, 1, spec, is_activated=not stage.expansion))
        self.body = nn.Sequential(*layers)
        self.adds_input = bool(stage.expansion) and stride == 1 and channels == stage.width

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(inputs)
        return inputs + outputs if self.adds_input else outputs


class DenseStage(nn.Module):
    """Layers that read the outputs of all earlier layers, then a 1x1 convolution to the width."""

    def __init__(self, stage: StageSpec, channels: int, spec: CnnSpec) -> None:
        super().__init__()
        self.entry: nn.Module = nn.Identity()
        if stage.halving == "first-conv":
            self.entry = ConvUnit(channels, channels, 3, spec, stride=2)
        layers = []
        for _ in range(stage.depth):
            inner = stage.growth * stage.expansion
            units = [ConvUnit(channels, inner, 1, spec)] if inner else []
            units.append(ConvUnit(inner or channels, stage.growth, stage.kernel, spec))
            layers.append(nn.Sequential(*units))
            channels += stage.growth
        self.layers = nn.ModuleList(layers)
        stride = 2 if stage.halving == "last-conv" else 1
        self.exit = ConvUnit(channels, stage.width, 1, spec, stride=stride)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.entry(inputs)
        for layer in self.layers:
            features = torch.cat([features, layer(features)], dim=1)
        outputs: torch.Tensor = self.exit(features)
        return outputs
