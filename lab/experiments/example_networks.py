"""Networks with random weights, built from torch's own layers; nothing is downloaded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Network = tuple[nn.Module, tuple[Tensor, ...]]


def _convolution(ci: int, co: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(ci, co, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(co),
    )


class _Residual(nn.Module):
    """A body and a shortcut (He et al., 2015)."""

    def __init__(self, body: list[nn.Module], ci: int, co: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        is_same = stride == 1 and ci == co
        self.shortcut = nn.Identity() if is_same else _convolution(ci, co, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's output activations."""
        result: Tensor = torch.relu(self.body(x) + self.shortcut(x))
        return result


def _basic_block(ci: int, width: int, stride: int) -> _Residual:
    body = [_convolution(ci, width, 3, stride), nn.ReLU(), _convolution(width, width, 3)]
    return _Residual(body, ci, width, stride)


def _bottleneck(ci: int, width: int, stride: int) -> _Residual:
    body = [
        _convolution(ci, width, 1), nn.ReLU(), _convolution(width, width, 3, stride), nn.ReLU(),
        _convolution(width, 4 * width, 1),
    ]  # fmt: skip
    return _Residual(body, ci, 4 * width, stride)


def _classifier(layers: list[nn.Module], ci: int, batch: int, side: int = 224) -> Network:
    """Returns layers, a mean over the image and 1,000 classes, with images of `side` x `side`."""
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ci, 1000)]
    return nn.Sequential(*layers).eval(), (torch.zeros(batch, 3, side, side),)


def _resnet(
    block: Callable[[int, int, int], _Residual], counts: Sequence[int], widening: int, batch: int
) -> Network:
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    ci = 64
    for stage, count in enumerate(counts):
        for number in range(count):
            width = 64 << stage
            layers.append(block(ci, width, 2 if stage and not number else 1))
            ci = widening * width
    return _classifier(layers, ci, batch)


def resnet18(batch: int = 1) -> Network:
    """ResNet-18 for images of 224 x 224."""
    return _resnet(_basic_block, (2, 2, 2, 2), 1, batch)


def resnet50(batch: int = 1) -> Network:
    """ResNet-50 for images of 224 x 224."""
    return _resnet(_bottleneck, (3, 4, 6, 3), 4, batch)


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
        """Returns the block's output activations."""
        y: Tensor = self.body(x)
        return x + y if self.is_residual else y


def mobilenet_v2(batch: int = 1) -> Network:
    """MobileNet-v2 (width 1.0) for images of 224 x 224."""
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
    return _classifier([*layers, _convolution(ci, 1280, 1), nn.ReLU6()], 1280, batch)


class _BertLayer(nn.Module):
    """One encoder layer of BERT-base (Devlin et al., 2018) with explicit attention."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, width, hidden = 12, 768, 3072
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


class _Joined(nn.Module):
    """Parallel branches with concatenated channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the concatenated channels of all branches."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def _fire(ci: int, squeezed: int, expanded: int) -> nn.Sequential:
    """Returns a narrow 1x1 convolution, then parallel 1x1 and 3x3 ones (Iandola et al., 2016)."""
    return nn.Sequential(
        nn.Conv2d(ci, squeezed, 1), nn.ReLU(),
        _Joined(
            nn.Sequential(nn.Conv2d(squeezed, expanded, 1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(squeezed, expanded, 3, padding=1), nn.ReLU()),
        ),
    )  # fmt: skip


def squeezenet(batch: int = 1) -> Network:
    """SqueezeNet 1.1 for images of 224 x 224."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    ci = 64
    sizes = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    for number, (squeezed, expanded) in enumerate(sizes):
        if number in (2, 4):
            layers.append(nn.MaxPool2d(3, 2))
        layers.append(_fire(ci, squeezed, expanded))
        ci = 2 * expanded
    layers += [nn.Conv2d(ci, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers).eval(), (torch.zeros(batch, 3, 224, 224),)


def _inception(ci: int, widths: tuple[int, int, int, int, int, int]) -> _Joined:
    """Returns 1x1; 1x1, 3x3; 1x1, 3x3, 3x3; pooling, 1x1 in parallel (Szegedy et al., 2015)."""
    one, narrow, three, narrower, double, pooled = widths
    return _Joined(
        nn.Sequential(_convolution(ci, one, 1), nn.ReLU()),
        nn.Sequential(_convolution(ci, narrow, 1), nn.ReLU(),
                      _convolution(narrow, three, 3), nn.ReLU()),
        nn.Sequential(_convolution(ci, narrower, 1), nn.ReLU(),
                      _convolution(narrower, double, 3), nn.ReLU(),
                      _convolution(double, double, 3), nn.ReLU()),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), _convolution(ci, pooled, 1), nn.ReLU()),
    )  # fmt: skip


def inception(batch: int = 1) -> Network:
    """Nine Inception blocks as in v3, without asymmetric convolutions, for images of 299 x 299."""
    layers: list[nn.Module] = [
        _convolution(3, 32, 3, 2), nn.ReLU(), _convolution(32, 64, 3), nn.ReLU(),
        nn.MaxPool2d(3, 2), _convolution(64, 192, 3), nn.ReLU(), nn.MaxPool2d(3, 2),
    ]  # fmt: skip
    ci = 192
    stages = (((64, 48, 64, 64, 96, 32), 3), ((192, 128, 192, 128, 192, 192), 4),
              ((320, 384, 768, 448, 384, 192), 2))  # fmt: skip
    for place, (widths, count) in enumerate(stages):
        if place:
            layers.append(nn.MaxPool2d(3, 2))
        for _ in range(count):
            layers.append(_inception(ci, widths))
            ci = widths[0] + widths[2] + widths[4] + widths[5]
    return _classifier(layers, ci, batch, 299)


def bert_encoder(batch: int = 1, layers: int = 4) -> Network:
    """The first layers of BERT-base for 128 tokens."""
    blocks = [_BertLayer() for _ in range(layers)]
    return nn.Sequential(*blocks).eval(), (torch.zeros(batch, 128, 768),)


def dcgan(batch: int = 1) -> Network:
    """DCGAN's generator for images of 64 x 64 (Radford et al., 2015)."""
    layers: list[nn.Module] = []
    widths = (100, 512, 256, 128, 64)
    for number, (ci, co) in enumerate(itertools.pairwise(widths)):
        stride, padding = (1, 0) if number == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(ci, co, 4, stride, padding, bias=False),
                   nn.BatchNorm2d(co), nn.ReLU()]  # fmt: skip
    layers += [nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1, bias=False), nn.Tanh()]
    return nn.Sequential(*layers).eval(), (torch.zeros(batch, 100, 1, 1),)


class _Dlrm(nn.Module):
    """Perceptron on dense features, one row of each table, products of all pairs, second perceptron
    (Naumov et al., 2019).
    """

    def __init__(self) -> None:
        super().__init__()
        rows, tables, width = 20000, 8, 64
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)
        )
        vectors = tables + 1
        self.top = nn.Sequential(
            nn.Linear(width + vectors * vectors, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """Returns [batch, 1]."""
        bottom = self.bottom(dense)
        rows = [table(indices[:, place]) for place, table in enumerate(self.tables)]
        vectors = torch.stack([bottom, *rows], 1)
        products = torch.matmul(vectors, vectors.transpose(1, 2)).flatten(1)
        result: Tensor = self.top(torch.cat([bottom, products], 1))
        return result


def dlrm(batch: int = 1) -> Network:
    """A small DLRM with 8 tables: 128 samples per unit of `batch`."""
    samples = 128 * batch
    inputs = (torch.zeros(samples, 13), torch.zeros(samples, 8, dtype=torch.int64))
    return _Dlrm().eval(), inputs


def short_operators() -> Network:
    """A chain of 64 tiny products, whose latency is mostly the time between operators."""
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(64))).eval(), (torch.zeros(1, 16),)


#: Networks that validate the replay: name -> function from batch to network and inputs.
REPLAYED: dict[str, Callable[[int], Network]] = {
    "dlrm": dlrm, "resnet-18": resnet18, "resnet-50": resnet50, "mobilenet-v2": mobilenet_v2,
    "squeezenet": squeezenet, "inception": inception, "bert-encoder": bert_encoder,
    "dcgan": dcgan,
}  # fmt: skip
