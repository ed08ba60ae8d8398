"""Errors of a convolution model on layers that were held out of its fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.shapes import ConvShapes, FloatArray
from cdmpp.analytic.intervals import LogErrors

#: Name of a layer's own time, beside those of the algorithms.
LAYER = "layer"
#: Name of the devices that the model was not fitted on.
UNSEEN = "unseen"


@dataclass(frozen=True)
class ConvErrors:
    """What a validation says of the predicted times.

    Attributes:
        by_device: device label or `UNSEEN` -> `LAYER` or an algorithm's name -> errors. An
            algorithm's are those of layers that were measured with it.
        filters: (width, stride) of the filters that were measured.
    """

    by_device: dict[str, dict[str, LogErrors]]
    filters: frozenset[tuple[int, int]]

    def of(self, device: str) -> Mapping[str, LogErrors]:
        """Returns `LAYER` or algorithm -> errors on a device; empty = unknown."""
        return self.by_device.get(device, self.by_device.get(UNSEEN, {}))

    def is_unmeasured(self, shapes: ConvShapes) -> list[bool]:
        """Returns for each layer whether no filter of its width and stride was measured."""
        pairs = zip(shapes.kernel, shapes.stride, strict=True)
        return [(int(kernel), int(stride)) not in self.filters for kernel, stride in pairs]

    def to_json(self) -> dict[str, Any]:
        """Returns a value for JSON."""
        return {
            "by_device": {
                label: {name: errors.to_json() for name, errors in own.items()}
                for label, own in self.by_device.items()
            },
            "filters": [list(pair) for pair in sorted(self.filters)],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> ConvErrors | None:
        """Returns the errors of `to_json`; None = the model was fitted without."""
        if value is None:
            return None
        by_device = {
            label: {name: LogErrors.from_json(errors) for name, errors in own.items()}
            for label, own in value["by_device"].items()
        }
        return cls(by_device, frozenset((kernel, stride) for kernel, stride in value["filters"]))


def filters_of(shapes: Iterable[ConvShapes]) -> frozenset[tuple[int, int]]:
    """Returns (width, stride) of every filter."""
    return frozenset(
        (int(kernel), int(stride))
        for part in shapes
        for kernel, stride in zip(part.kernel, part.stride, strict=True)
    )


class ErrorSamples:
    """Errors log(measured / predicted), collected by device and by what they are of."""

    def __init__(self) -> None:
        self._seen: _Samples = {}
        self._unseen: _Samples = {}

    def add(
        self, device: str, name: str, measured: FloatArray, predicted: FloatArray, *, is_seen: bool
    ) -> None:
        """Adds rows, float64 [R] both; those without a prediction (inf) are left out.

        Args:
            is_seen: whether other rows of the device were in the fit.
        """
        is_known = np.isfinite(predicted)
        errors = np.log(measured[is_known] / predicted[is_known])
        of_device = (self._seen if is_seen else self._unseen).setdefault(device, {})
        of_device.setdefault(name, []).append(errors)

    def by_device(self) -> dict[str, dict[str, LogErrors]]:
        """Returns `ConvErrors.by_device`.

        An algorithm with too few rows on a device of the fit has the errors of all these devices
        together. `UNSEEN` has the widest ends of the devices that were left out: each errs in a way
        of its own, and few say how the next one will.
        """
        names = (LAYER, *(algorithm.name for algorithm in ConvAlgorithm))
        everywhere = {name: _errors(self._seen.values(), name) for name in names}
        found = {
            label: {name: _errors([own], name) or everywhere[name] for name in names}
            for label, own in sorted(self._seen.items())
        }
        found[UNSEEN] = {
            name: LogErrors.widest([_errors([own], name) for own in self._unseen.values()])
            or _errors(self._unseen.values(), name)
            for name in names
        }
        kept = {
            label: {name: errors for name, errors in own.items() if errors is not None}
            for label, own in found.items()
        }
        return {label: own for label, own in kept.items() if own}


_Samples = dict[str, dict[str, list[FloatArray]]]


def _errors(devices: Iterable[dict[str, list[FloatArray]]], name: str) -> LogErrors | None:
    parts = [part for own in devices for part in own.get(name, [])]
    return LogErrors.of(np.concatenate(parts)) if parts else None
