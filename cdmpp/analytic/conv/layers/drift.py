"""A cost that grows while a table is measured, independent of the layers.

Differs from the paper: SEER times isolated kernels. Tables of whole framework calls include the
host's cost of a call. If the host slows down from row to row, two equal layers measured hours apart
differ by several times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.conv.least_squares import relative_fit
from cdmpp.arrays import FloatArray

#: Linear pieces of the drift.
_PIECES = 8
#: Share of the rows, those with the least work, that the drift is fitted to.
_SMALL_SHARE = 0.15
_MIN_ROWS = 40
#: Minimum of a corrected time, as a share of the measured one.
_LEAST_SHARE = 0.1


@dataclass(frozen=True)
class Drift:
    """An additive time, piecewise linear in the position, non-decreasing, 0 at the start.

    Attributes:
        slopes: float64 [pieces], milliseconds over each piece.
        row_count: number of fitted rows; 0 without a fit.
    """

    slopes: FloatArray
    row_count: int

    def added_ms(self, position: FloatArray) -> FloatArray:
        """Returns float64 [R], milliseconds added at positions from 0 to 1."""
        return np.asarray(_ramps(position, len(self.slopes)) @ self.slopes, np.float64)

    def corrected(self, time_ms: FloatArray, position: FloatArray) -> FloatArray:
        """Returns float64 [R], the times without the drift, at least a tenth of `time_ms`."""
        return np.maximum(time_ms - self.added_ms(position), _LEAST_SHARE * time_ms)


def no_drift() -> Drift:
    """Returns a drift of zero."""
    return Drift(np.zeros(1), 0)


def fit_drift(time_ms: FloatArray, position: FloatArray, work_ms: FloatArray) -> Drift:
    """Fits the drift of one device's rows.

    Rows with little work show the drift. For them, relative least squares with non-negative
    coefficients fits time = constant + a work + drift(position).

    Args:
        time_ms: float64 [R], measured.
        position: float64 [R], 0 to 1.
        work_ms: float64 [R], lower bound of the layer's time; selects the rows.
    """
    rows = np.argsort(work_ms, kind="stable")[: round(_SMALL_SHARE * len(work_ms))]
    if len(rows) < _MIN_ROWS:
        return no_drift()
    ramps = _ramps(position[rows], _PIECES)
    columns = np.concatenate([ramps, np.ones((len(rows), 1)), work_ms[rows, None]], axis=1)
    names = [*(f"piece{index}" for index in range(_PIECES)), "constant", "work"]
    fit = relative_fit(columns, time_ms[rows], names)
    return Drift(fit.coefficients[:_PIECES], len(rows))


def _ramps(position: FloatArray, pieces: int) -> FloatArray:
    """Returns float64 [R, pieces], the share of each piece before a position."""
    return np.clip(position[:, None] * pieces - np.arange(pieces), 0.0, 1.0)
