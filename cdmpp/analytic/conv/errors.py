"""Errors of a convolution model on layers held out of its fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.intervals import (
    DeviceErrors,
    LogErrors,
    errors_on,
)

#: Key of the errors of a whole layer's time, beside those of the algorithms.
LAYER = "layer"


@dataclass(frozen=True)
class ConvErrors:
    """Errors of predicted times, from a validation.

    Attributes:
        by_device: device label or `UNSEEN` -> `LAYER` or an algorithm's name -> errors. Errors of
            an algorithm are from layers that were measured with it.
        filters: (width, stride) of the measured filters.
    """

    by_device: DeviceErrors
    filters: frozenset[tuple[int, int]]

    def of(self, device: str) -> Mapping[str, LogErrors]:
        """Returns `LAYER` or algorithm -> errors on a device; empty if unknown."""
        return errors_on(self.by_device, device)

    def is_unmeasured(self, shapes: ConvShapes) -> list[bool]:
        """Returns for each layer whether its filter width and stride were not measured."""
        pairs = zip(shapes.kernel, shapes.stride, strict=True)
        return [(int(kernel), int(stride)) not in self.filters for kernel, stride in pairs]


def filters_of(shapes: Iterable[ConvShapes]) -> frozenset[tuple[int, int]]:
    """Returns (width, stride) of every filter."""
    return frozenset(
        (int(kernel), int(stride))
        for part in shapes
        for kernel, stride in zip(part.kernel, part.stride, strict=True)
    )
