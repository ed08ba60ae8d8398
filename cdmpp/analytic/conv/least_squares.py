"""Relative least squares in closed form, for models that are linear in their coefficients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.errors import DataError


@dataclass(frozen=True)
class LinearFit:
    """Coefficients of a sum of columns.

    Attributes:
        names: names of the coefficients.
        coefficients: float64 [C].
        standard_errors: of the coefficients; None for a coefficient at its bound of 0, and for all
            if there are no more rows than coefficients.
        row_count: number of fitted rows.
        rmspe: root mean square percentage error on these rows, a fraction.
    """

    names: tuple[str, ...]
    coefficients: FloatArray
    standard_errors: tuple[float | None, ...]
    row_count: int
    rmspe: float

    def predict(self, columns: FloatArray) -> FloatArray:
        """Returns float64 [R], the sum of `columns` float64 [R, C] times the coefficients."""
        return columns @ self.coefficients


def relative_fit(
    columns: FloatArray, target: FloatArray, names: Sequence[str], *, is_non_negative: bool = True
) -> LinearFit:
    """Fits the coefficients b that minimise sum((columns b / target - 1)²).

    Differs from the original, which starts a general solver at all ones.

    Args:
        columns: float64 [R, C].
        target: float64 [R], above 0.
        names: names of the columns.
        is_non_negative: whether coefficients are bounded by 0 from below.

    Raises:
        DataError: no rows, or a target that is not above 0.
    """
    from scipy.optimize import nnls

    if not len(target) or not (np.isfinite(target) & (target > 0)).all():
        raise DataError(
            f"a relative fit of {', '.join(names)} got {len(target)} rows; expected at least one, "
            "all of them above 0"
        )
    relative = columns / target[:, None]
    scale = np.sqrt((relative**2).sum(axis=0))
    used = scale > 0
    scaled = relative[:, used] / scale[used]
    ones = np.ones(len(target))
    active = np.ones(int(used.sum()), np.bool_)
    if is_non_negative and active.any():
        active = nnls(scaled, ones)[0] > 0
    kept = np.flatnonzero(used)[active]
    coefficients = np.zeros(columns.shape[1])
    if len(kept):
        # Solved again on the free coefficients: exact to rounding, without iteration.
        coefficients[kept] = np.linalg.lstsq(scaled[:, active], ones, rcond=None)[0] / scale[kept]
        if is_non_negative:
            coefficients = np.maximum(coefficients, 0.0)
    residual = relative @ coefficients - 1.0
    return LinearFit(
        names=tuple(names),
        coefficients=coefficients,
        standard_errors=_standard_errors(scaled[:, active], scale[kept], kept, residual, columns),
        row_count=len(target),
        rmspe=float(np.sqrt(np.mean(residual**2))),
    )


def _standard_errors(
    scaled: FloatArray,
    scale: FloatArray,
    kept: np.ndarray[Any, np.dtype[np.int64]],
    residual: FloatArray,
    columns: FloatArray,
) -> tuple[float | None, ...]:
    """Returns sqrt(diag(s² (AᵀA)⁻¹)) of the free coefficients, with the scaling undone."""
    errors: list[float | None] = [None] * columns.shape[1]
    degrees = len(residual) - len(kept)
    if degrees < 1 or not len(kept):
        return tuple(errors)
    variance = float(residual @ residual) / degrees
    covariance = variance * np.linalg.pinv(scaled.T @ scaled)
    for index, (column, width) in enumerate(zip(kept, scale, strict=True)):
        errors[int(column)] = math.sqrt(max(float(covariance[index, index]), 0.0)) / float(width)
    return tuple(errors)
