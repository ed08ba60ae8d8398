"""Correction of predictions by the model's residuals on measured programs of the same task."""

from __future__ import annotations

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.models.parts.pooling import pooled_features

#: Maximum number of measured programs of a task, the newest: the cost of a fit is cubic in it.
MOST_NEIGHBOURS = 512
#: Ratio of the variance of independent residuals to that of residuals that programs share.
_NOISE = 0.3
#: Mean squared distance (standardised columns) at which residuals have covariance 1/e.
_SPREAD = 2.0


def neighbour_columns(samples: Samples) -> FloatArray:
    """Returns float64 [sample, column]: sums and maxima of the leaf columns, log-scaled."""
    pooled = pooled_features(samples.programs, samples.program).astype(np.float64)
    return np.asarray(np.sign(pooled) * np.log1p(np.abs(pooled)))


class Misses:
    """Gaussian process regression of a model's residuals, relative to their mean.

    Columns are divided by their standard deviation over the measured programs; constant columns
    are dropped. The correction goes to 0 for programs far from all measured ones.

    Args:
        measured: float64 [M, column], columns of the measured programs of a task.
        miss: float64 [M], log of measured over predicted seconds of these programs.
    """

    def __init__(self, measured: FloatArray, miss: FloatArray) -> None:
        deviation = measured.std(axis=0)
        self._is_told = deviation > 1e-6
        self._deviation = deviation[self._is_told]
        self._measured = measured[:, self._is_told] / self._deviation
        shared = _likeness(self._measured, self._measured) + _NOISE * np.eye(len(miss))
        self._weight = np.linalg.solve(shared, miss - miss.mean())

    def told(self, asked: FloatArray) -> FloatArray:
        """Returns float64 [A], the correction to add to predicted log seconds.

        Args:
            asked: float64 [A, column], columns of programs of the same task.
        """
        new = asked[:, self._is_told] / self._deviation
        return np.asarray(_likeness(new, self._measured) @ self._weight)


def _likeness(first: FloatArray, second: FloatArray) -> FloatArray:
    """Returns float64 [F, S] in (0, 1], the kernel: 1 for programs with equal columns."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :]
    distance = np.maximum(squares - 2.0 * first @ second.T, 0.0) / max(1, first.shape[1])
    return np.asarray(np.exp(-distance / _SPREAD))
