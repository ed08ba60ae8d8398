"""Standardisation of columns with statistics of a training part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cdmpp.arrays import Float32Array, FloatArray, IntArray
from cdmpp.datasets.samples import UnlikeColumns


@dataclass(frozen=True)
class Normalisation:
    """Standardises columns after clipping them to the range seen in training.

    Attributes:
        low: float32 [F], minimum in training.
        high: float32 [F], maximum in training.
        mean: float32 [F].
        scale: float32 [F], 1 / standard deviation; 0 for constant columns, which removes them.
    """

    low: Float32Array
    high: Float32Array
    mean: Float32Array
    scale: Float32Array

    @classmethod
    def fit(cls, values: Float32Array) -> Normalisation:
        """Returns the statistics of float32 [N, F], N ≥ 1."""
        return cls.fit_parts(lambda: iter([values]))

    @classmethod
    def fit_parts(cls, parts: Callable[[], Iterator[Float32Array]]) -> Normalisation:
        """Returns the statistics of rows given in parts, equal to `fit` of all rows.

        Args:
            parts: returns an iterator of float32 [n, F]; called twice.
        """
        lows, highs, count = [], [], 0
        total: FloatArray | None = None
        for values in parts():
            lows.append(values.min(axis=0))
            highs.append(values.max(axis=0))
            total = _added(total, values.astype(np.float64))
            count += len(values)
        assert total is not None
        mean = total / count
        square: FloatArray | None = None
        for values in parts():
            square = _added(square, np.square(values.astype(np.float64) - mean))
        assert square is not None
        deviation = np.sqrt(square / count)
        varies = deviation > 1e-6
        scale = np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0.0)
        return cls(
            np.min(lows, axis=0),
            np.max(highs, axis=0),
            mean.astype(np.float32),
            scale.astype(np.float32),
        )

    def apply(self, values: Float32Array) -> Float32Array:
        """Returns float32 [N, F], zero mean and unit deviation on the training part."""
        found = np.maximum(values, self.low)  # with `minimum` 2.5 times as fast as `clip`
        np.minimum(found, self.high, out=found)
        found -= self.mean
        found *= self.scale
        return np.asarray(found, np.float32)

    def apply_unlike(self, rows: UnlikeColumns) -> tuple[Float32Array, IntArray, Float32Array]:
        """Applies the standardisation to rows stored as `UnlikeColumns`.

        Returns:
            float32 [L, C], the columns in which rows differ; int64 [C], their indices; and
            float32 [F], the common values of the other columns, 0 in the differing ones.
        """
        if self._key not in rows.standardised:  # the parts of an ensemble ask for the same
            columns = rows.columns
            own = (one[columns] for one in (self.low, self.high, self.mean, self.scale))
            unlike = Normalisation(*own).apply(rows.values)
            alike = self.apply(rows.first)
            alike[columns] = 0.0
            rows.standardised[self._key] = unlike, columns, alike
        return rows.standardised[self._key]

    @cached_property
    def _key(self) -> bytes:
        return b"".join(one.tobytes() for one in (self.low, self.high, self.mean, self.scale))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Normalisation:
        """Rebuilds the statistics from `cdmpp.files.stored.to_json`.

        Raises:
            ValueError: the columns differ in number or are not finite.
        """
        names = ("low", "high", "mean", "scale")
        columns = [np.asarray(value[name], np.float32) for name in names]
        if {one.shape for one in columns} != {(len(columns[0]),)}:
            raise ValueError("statistics of another number of columns")
        if not all(np.isfinite(one).all() for one in columns):
            raise ValueError("statistics that are not finite")
        return cls(*columns)


def _added(total: FloatArray | None, values: FloatArray) -> FloatArray:
    """Returns the column sums of `values` plus `total`.

    Rows are added in numpy's order, so the split into parts does not change the last digit.
    """
    rows = values if total is None else np.concatenate([total[None], values])
    return np.asarray(rows.sum(axis=0))
