"""Errors of a convolution model on layers that were held out of its fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.intervals import (
    DeviceErrors,
    LogErrors,
    errors_on,
)

#: Name of a layer's own time, beside those of the algorithms.
LAYER = "layer"


@dataclass(frozen=True)
class ConvErrors:
    """What a validation says of the predicted times.

    Attributes:
        by_device: device label or `UNSEEN` -> `LAYER` or an algorithm's name -> errors. An
            algorithm's are those of layers that were measured with it.
        filters: (width, stride) of the filters that were measured.
    """

    by_device: DeviceErrors
    filters: frozenset[tuple[int, int]]

    def of(self, device: str) -> Mapping[str, LogErrors]:
        """Returns `LAYER` or algorithm -> errors on a device; empty = unknown."""
        return errors_on(self.by_device, device)

    def is_unmeasured(self, shapes: ConvShapes) -> list[bool]:
        """Returns for each layer whether no filter of its width and stride was measured."""
        pairs = zip(shapes.kernel, shapes.stride, strict=True)
        return [(int(kernel), int(stride)) not in self.filters for kernel, stride in pairs]


def filters_of(shapes: Iterable[ConvShapes]) -> frozenset[tuple[int, int]]:
    """Returns (width, stride) of every filter."""
    return frozenset(
        (int(kernel), int(stride))
        for part in shapes
        for kernel, stride in zip(part.kernel, part.stride, strict=True)
    )
