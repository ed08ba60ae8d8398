"""Convolution layers of known networks."""

from __future__ import annotations

import numpy as np

from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import IntArray
from cdmpp.errors import UsageError

#: (input channels, width, output channels, kernel, stride, padding, count)
_Layer = tuple[int, int, int, int, int, int, int]

_VGG19: tuple[_Layer, ...] = (
    (3, 224, 64, 3, 1, 1, 1), (64, 224, 64, 3, 1, 1, 1), (64, 112, 128, 3, 1, 1, 1),
    (128, 112, 128, 3, 1, 1, 1), (128, 56, 256, 3, 1, 1, 1), (256, 56, 256, 3, 1, 1, 3),
    (256, 28, 512, 3, 1, 1, 1), (512, 28, 512, 3, 1, 1, 3), (512, 14, 512, 3, 1, 1, 4),
)  # fmt: skip
# width, input channels, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection
_INCEPTIONS = (
    (28, 192, 64, 96, 128, 16, 32, 32), (28, 256, 128, 128, 192, 32, 96, 64),
    (14, 480, 192, 96, 208, 16, 48, 64), (14, 512, 160, 112, 224, 24, 64, 64),
    (14, 512, 128, 128, 256, 24, 64, 64), (14, 512, 112, 144, 288, 32, 64, 64),
    (14, 528, 256, 160, 320, 32, 128, 128), (7, 832, 256, 160, 320, 32, 128, 128),
    (7, 832, 384, 192, 384, 48, 128, 128),
)  # fmt: skip
# input width, input channels, bottleneck, output channels, blocks, stride of the first block
_RESNET50_STAGES = (
    (56, 64, 64, 256, 3, 1), (56, 256, 128, 512, 4, 2), (28, 512, 256, 1024, 6, 2),
    (14, 1024, 512, 2048, 3, 2),
)  # fmt: skip

NETWORKS = ("vgg19", "inception-v1", "resnet50")


def network_layers(name: str, batch: int = 128) -> tuple[ConvShapes, IntArray]:
    """Returns (distinct convolution layers, int64 [R] count of each) for 224x224 images.

    Raises:
        UsageError: unknown network.
    """
    layers = {"vgg19": _VGG19, "inception-v1": _inception(), "resnet50": _resnet50()}.get(name)
    if layers is None:
        raise UsageError(f"unknown network {name!r}; known: {', '.join(NETWORKS)}")
    cin, width, cout, kernel, stride, padding, count = np.array(layers, np.int64).T
    return ConvShapes.of(batch, cin, width, cout, kernel, stride, padding), count


def _inception() -> tuple[_Layer, ...]:
    layers: list[_Layer] = [
        (3, 224, 64, 7, 2, 3, 1), (64, 56, 64, 1, 1, 0, 1), (64, 56, 192, 3, 1, 1, 1),
    ]  # fmt: skip
    for width, cin, one, reduce3, three, reduce5, five, pool in _INCEPTIONS:
        layers += [(cin, width, out, 1, 1, 0, 1) for out in (one, reduce3, reduce5, pool)]
        layers += [(reduce3, width, three, 3, 1, 1, 1), (reduce5, width, five, 5, 1, 2, 1)]
    return tuple(layers)


def _resnet50() -> tuple[_Layer, ...]:
    layers: list[_Layer] = [(3, 224, 64, 7, 2, 3, 1)]
    for width, cin, inner, out, blocks, stride in _RESNET50_STAGES:
        small = width // stride
        layers += [
            (cin, width, inner, 1, 1, 0, 1),
            (inner, width, inner, 3, stride, 1, 1),
            (inner, small, out, 1, 1, 0, blocks),
            (cin, width, out, 1, stride, 0, 1),
            (out, small, inner, 1, 1, 0, blocks - 1),
            (inner, small, inner, 3, 1, 1, blocks - 1),
        ]
    return tuple(layers)
