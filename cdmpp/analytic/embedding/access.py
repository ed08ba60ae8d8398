"""Uniform or Zipf access to the rows of a table, as indices for measurements and simulations."""

from __future__ import annotations

import math

import numpy as np

from cdmpp.arrays import FloatArray, IntArray

#: Spreads the popular rows over the table; prime, so it is coprime to most row counts.
_SPREAD = 2_654_435_761


def zipf_probabilities(rows: int, exponent: float) -> FloatArray:
    """Returns float64 [rows], the probability of each rank: proportional to 1 / rank ** exponent.

    Args:
        exponent: 0 = uniform; must not be negative.
    """
    weight = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return np.asarray(weight / weight.sum(), np.float64)


def draw_rows(rng: np.random.Generator, count: int, rows: int, exponent: float = 0.0) -> IntArray:
    """Returns int64 [count], independent row indices from 0 to rows - 1.

    Args:
        exponent: exponent of the Zipf law; 0 = uniform. Popular rows are spread over the table.
    """
    if exponent == 0.0:
        return rng.integers(0, rows, count, dtype=np.int64)
    cumulative = np.cumsum(zipf_probabilities(rows, exponent))
    rank = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
    step = _SPREAD % rows or 1
    while math.gcd(step, rows) != 1:
        step += 1
    return np.asarray((np.minimum(rank, rows - 1) * step) % rows, np.int64)
