"""What a model missed on the measured programs of a task, told of the task's other programs."""

from __future__ import annotations

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.models.parts.pooling import pooled_features

#: Measured programs of a task that tell at most, the newest: telling takes their number cubed.
MOST_NEIGHBOURS = 512
#: Variance of the misses that programs do not share, over that of those that they do.
_NOISE = 0.3
#: Squared distance (mean over columns, in deviations) at which programs share 1/e of their misses.
_SPREAD = 2.0


def neighbour_columns(samples: Samples) -> FloatArray:
    """Returns float64 [sample, column], what tells the programs of a task apart: sums and maxima
    of the leaf columns, their sizes as logarithms.
    """
    pooled = pooled_features(samples.programs, samples.program).astype(np.float64)
    return np.asarray(np.sign(pooled) * np.log1p(np.abs(pooled)))


class Misses:
    """The mean of a Gaussian process over what a model missed, around the mean of that.

    Columns count in deviations over the measured programs; those that are alike in all of them do
    not count. A program unlike all measured ones is told nothing.

    Args:
        measured: float64 [M, column], columns of the measured programs of a task.
        miss: float64 [M], log of their measured over their predicted seconds.
    """

    def __init__(self, measured: FloatArray, miss: FloatArray) -> None:
        deviation = measured.std(axis=0)
        self._is_told = deviation > 1e-6
        self._deviation = deviation[self._is_told]
        self._measured = measured[:, self._is_told] / self._deviation
        shared = _likeness(self._measured, self._measured) + _NOISE * np.eye(len(miss))
        self._weight = np.linalg.solve(shared, miss - miss.mean())

    def told(self, asked: FloatArray) -> FloatArray:
        """Returns float64 [A], what is to be added to predicted log seconds.

        Args:
            asked: float64 [A, column], columns of programs of the same task.
        """
        new = asked[:, self._is_told] / self._deviation
        return np.asarray(_likeness(new, self._measured) @ self._weight)


def _likeness(first: FloatArray, second: FloatArray) -> FloatArray:
    """Returns float64 [F, S] in (0, 1], 1 for programs with equal columns."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :]
    distance = np.maximum(squares - 2.0 * first @ second.T, 0.0) / max(1, first.shape[1])
    return np.asarray(np.exp(-distance / _SPREAD))
