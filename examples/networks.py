"""Two networks to compare devices with, built of torch's layers with random weights."""

import torch
from torch import Tensor, nn


def _convolution(ci: int, co: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(ci, co, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(co)
    )


class _Bottleneck(nn.Module):
    def __init__(self, ci: int, inner: int, stride: int) -> None:
        super().__init__()
        co = 4 * inner
        self.body = nn.Sequential(
            _convolution(ci, inner, 1), nn.ReLU(),
            _convolution(inner, inner, 3, stride), nn.ReLU(),
            _convolution(inner, co, 1),
        )  # fmt: skip
        self.shortcut = (
            nn.Identity() if ci == co and stride == 1 else _convolution(ci, co, 1, stride)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """ResNet-50 (He et al., 2015); one input of 3x224x224."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    ci = 64
    for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(_Bottleneck(ci, inner, stride if block == 0 else 1))
            ci = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        head = width // self.heads
        split = (batch, length, self.heads, head)
        query, key, value = (
            one(x).view(split).transpose(1, 2) for one in (self.query, self.key, self.value)
        )
        scores = torch.softmax(query @ key.transpose(-2, -1) * head**-0.5, dim=-1)
        return self.out((scores @ value).transpose(1, 2).reshape(batch, length, width))


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.first = _Attention(width, heads), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.second = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + self.attention(x))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class _Bert(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(30522, width), nn.LayerNorm(width)
        self.layers = nn.Sequential(*(_Layer(width, heads) for _ in range(layers)))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.norm(self.tokens(tokens)))


def bert_large() -> nn.Module:
    """The encoder of BERT-large (Devlin et al., 2018); one input of 384:int64."""
    return _Bert(24, 1024, 16)
