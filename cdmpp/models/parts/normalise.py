"""Column statistics of a training part and what they turn raw values into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.arrays import Float32Array


@dataclass(frozen=True)
class Normalisation:
    """Standardises columns after clipping them to the range seen in training.

    Attributes:
        low: float32 [F], least value seen.
        high: float32 [F], greatest value seen.
        mean: float32 [F].
        scale: float32 [F], 1 / standard deviation; 0 for a column that never varied, which removes
            it.
    """

    low: Float32Array
    high: Float32Array
    mean: Float32Array
    scale: Float32Array

    @classmethod
    def fit(cls, values: Float32Array) -> Normalisation:
        """Returns the statistics of float32 [N, F], N ≥ 1."""
        exact = values.astype(np.float64)
        deviation = exact.std(axis=0)
        varies = deviation > 1e-6
        scale = np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0.0)
        return cls(
            values.min(axis=0),
            values.max(axis=0),
            exact.mean(axis=0).astype(np.float32),
            scale.astype(np.float32),
        )

    def apply(self, values: Float32Array) -> Float32Array:
        """Returns float32 [N, F], zero mean and unit deviation on the training part."""
        clipped = np.clip(values, self.low, self.high)
        return np.asarray((clipped - self.mean) * self.scale, np.float32)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Normalisation:
        """Returns what `cdmpp.files.stored.to_json` wrote.

        Raises:
            ValueError: it is something else.
        """
        names = ("low", "high", "mean", "scale")
        columns = [np.asarray(value[name], np.float32) for name in names]
        if {one.shape for one in columns} != {(len(columns[0]),)}:
            raise ValueError("statistics of another number of columns")
        if not all(np.isfinite(one).all() for one in columns):
            raise ValueError("statistics that are not finite")
        return cls(*columns)
