"""What more trials of a task may bring, and when to stop: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import FloatArray

#: Trials over which the trend is taken, and measured programs on which the scores are scaled.
WINDOW = 32
#: Measured programs below which scores say nothing about latencies.
_LEAST_SCALED = 4


@dataclass(frozen=True)
class Gain:
    """What is expected of more trials of a task, as shares of its best latency (0.1 = 10 % less).

    Attributes:
        trend: by how much the last `WINDOW` trials shortened the best latency; None while the task
            has no more trials than that.
        predicted: by how much the best candidate of the next round is predicted to shorten it, 0
            where it is predicted to be slower; None where the cost model predicts no latencies.
    """

    trend: float | None
    predicted: float | None

    @property
    def expected(self) -> float | None:
        """The larger one of the two; None while there is no trend: a model's word on candidates
        that nothing measured has borne out yet is no expectation.
        """
        return None if self.trend is None else max(self.trend, self.predicted or 0.0)


def trend(latencies_s: Sequence[float], *, window: int = WINDOW) -> float | None:
    """Returns the share by which the last `window` trials shortened the best latency.

    Args:
        latencies_s: of a task's trials in their order; infinity where a trial failed.

    Returns:
        None where there were no trials before the window, 1 where all of those failed.
    """
    if len(latencies_s) <= window:
        return None
    before, now = min(latencies_s[:-window]), min(latencies_s)
    if math.isinf(now):
        return 0.0
    return 1.0 if math.isinf(before) else 1.0 - now / before


def predicted_gain(
    candidates: FloatArray, measured: FloatArray, latencies_s: FloatArray, best_s: float
) -> float | None:
    """Returns by how much the best-scored candidate is predicted to shorten the best latency.

    A score is a rate of unknown scale. The scale is the median of score x latency over measured
    programs: if scores of the programs that were chosen last were too hopeful, so is this one's,
    and the scale takes it back.

    Args:
        candidates: float64 [N], scores of what could be measured next, higher is better.
        measured: float64 [M], scores of measured programs by the same model at the same time.
        latencies_s: float64 [M], what they took.
        best_s: shortest latency of the task.

    Returns:
        In [0, 1); None with fewer than 4 scored measured programs, or without a scored candidate.
    """
    is_scored = measured > 0
    if np.sum(is_scored) < _LEAST_SCALED or not np.any(candidates > 0):
        return None
    scale = float(np.median(measured[is_scored] * latencies_s[is_scored]))
    return max(0.0, 1.0 - scale / float(candidates.max()) / best_s)


def is_settled(gain: Gain, least: float) -> bool:
    """Whether more trials of a task are not worth it: its last `WINDOW` trials gained less than
    `least` and no candidate is predicted to gain more.
    """
    return gain.trend is not None and max(gain.trend, gain.predicted or 0.0) < least


def total_gain(gains: Sequence[Gain], seconds: Sequence[float | None]) -> float | None:
    """Returns what is expected of all tasks together: the mean over their shares of the time.

    Args:
        gains: of every task.
        seconds: weight x best latency of every task; None where it is not known.

    Returns:
        None while a task's gain is not known.
    """
    pairs = [(g.expected, s) for g, s in zip(gains, seconds, strict=True) if s]
    total = sum(s for _, s in pairs)
    if not pairs or len(pairs) < len(gains) or any(g is None for g, _ in pairs):
        return None
    return sum((g or 0.0) * s for g, s in pairs) / total


def advice(gains: Sequence[Gain], least: float, trials: int) -> str | None:
    """Returns the advice to stop in words, None while going on is worth it."""
    if not gains or not all(is_settled(gain, least) for gain in gains):
        return None
    predicts = any(gain.predicted is not None for gain in gains)
    share = f"{100 * least:g} %"
    said = (
        "no candidate is predicted to improve on the best measured program by more than "
        f"{share}, and "
        if predicts
        else ""
    )
    return (
        f"{said}the last {WINDOW} trials of {'the task' if len(gains) == 1 else 'each task'} "
        f"improved by less than {share}: stop after {trials} trials"
    )
