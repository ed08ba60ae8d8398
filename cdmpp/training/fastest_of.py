"""What a program takes that was the fastest of several: it is faster than it looks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Deviation of the logarithm by which programs of one task err apart from each other. On held-out
#: tasks of one CPU it makes the fastest of what a search or a model chose right in the median
#: (`docs/experiments.md`); errors that all programs of a task share move none before another.
NOISE = 0.1
_POINTS, _WIDEST = 801, 8.0


def fastest_log_s(log_s: FloatArray, place: int, *, noise: float = NOISE) -> float:
    """Returns the expected logarithm of the seconds of the program that was the fastest.

    Every program errs by a normal deviate of its own; that this one was faster than all others says
    something of its deviate.

    Args:
        log_s: float64 [N], logarithms of the predicted seconds of all that were measured.
        place: of the fastest.
        noise: standard deviation of the deviates.
    """
    from scipy.special import log_ndtr

    rivals = np.delete(log_s, place)
    if len(rivals) == 0:
        return float(log_s[place])
    deviates = np.linspace(-_WIDEST, _WIDEST, _POINTS)
    slower = log_ndtr((rivals[None] - log_s[place]) / noise - deviates[:, None]).sum(axis=1)
    weight = slower - 0.5 * np.square(deviates)
    weight = np.exp(weight - weight.max())
    return float(log_s[place] + noise * (weight @ deviates) / weight.sum())
