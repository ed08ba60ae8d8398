"""Networks with random weights, built of torch's own layers: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def _convolution(ci: int, co: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(ci, co, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(co),
    )


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al., 2015)."""

    def __init__(self, ci: int, co: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(ci, co, 3, stride), nn.ReLU(), _convolution(co, co, 3)
        )
        is_same = stride == 1 and ci == co
        self.shortcut = nn.Identity() if is_same else _convolution(ci, co, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the activations behind the block."""
        result: Tensor = torch.relu(self.body(x) + self.shortcut(x))
        return result


def resnet18() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """ResNet-18 for one image of 224 x 224."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    ci = 64
    for co, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_BasicBlock(ci, co, stride), _BasicBlock(co, co, 1)]
        ci = co
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*layers).eval(), (torch.zeros(1, 3, 224, 224),)


class _InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection (Sandler et al., 2018)."""

    def __init__(self, ci: int, co: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = ci * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [_convolution(ci, hidden, 1), nn.ReLU6()]
        layers += [_convolution(hidden, hidden, 3, stride, hidden), nn.ReLU6()]
        self.body = nn.Sequential(*layers, _convolution(hidden, co, 1))
        self.is_residual = stride == 1 and ci == co

    def forward(self, x: Tensor) -> Tensor:
        """Returns the activations behind the block."""
        y: Tensor = self.body(x)
        return x + y if self.is_residual else y


def mobilenet_v2() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """MobileNet-v2 (width 1.0) for one image of 224 x 224."""
    layers: list[nn.Module] = [_convolution(3, 32, 3, 2), nn.ReLU6()]
    ci = 32
    stages = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    )  # fmt: skip
    for expansion, co, count, stride in stages:
        for number in range(count):
            layers.append(_InvertedResidual(ci, co, stride if number == 0 else 1, expansion))
            ci = co
    layers += [_convolution(ci, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers.append(nn.Linear(1280, 1000))
    return nn.Sequential(*layers).eval(), (torch.zeros(1, 3, 224, 224),)


class _BertLayer(nn.Module):
    """One encoder layer of BERT-base (Devlin et al., 2018), attention written out."""

    def __init__(self, width: int = 768, heads: int = 12, hidden: int = 3072) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, token, width]."""
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        query, key, value = (
            layer(x).reshape(shape).permute(0, 2, 1, 3)
            for layer in (self.query, self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(-1, -2)) / float(width // self.heads) ** 0.5
        mixed = torch.matmul(torch.softmax(scores, -1), value)
        mixed = mixed.permute(0, 2, 1, 3).reshape(batch, tokens, width)
        x = self.norm_1(x + self.output(mixed))
        result: Tensor = self.norm_2(x + self.down(nn.functional.gelu(self.up(x))))
        return result


def bert_layer() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """One layer of BERT-base for 128 tokens."""
    return _BertLayer().eval(), (torch.zeros(1, 128, 768),)


#: Name -> what makes the network and its inputs.
NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "resnet-18": resnet18, "mobilenet-v2": mobilenet_v2, "bert-layer": bert_layer,
}  # fmt: skip
