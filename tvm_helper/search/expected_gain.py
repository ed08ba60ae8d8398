"""Expected gain of further trials of a task, and the rule for stopping a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import FloatArray

#: Number of trials for the trend, and of measured programs for scaling the scores.
WINDOW = 32
#: Minimum number of measured programs for scaling scores to latencies.
_LEAST_SCALED = 4


@dataclass(frozen=True)
class Gain:
    """Expected gain of further trials of a task, as shares of its best latency (0.1 = 10 % less).

    Attributes:
        trend: reduction of the best latency by the last `WINDOW` trials; None until the task has
            more than `WINDOW` trials.
        predicted: predicted reduction by the best candidate of the next round, at least 0; None if
            the cost model predicts no latencies.
    """

    trend: float | None
    predicted: float | None

    @property
    def expected(self) -> float | None:
        """Maximum of `trend` and `predicted`; None without a trend, because measurements have not
        yet confirmed the predictions.
        """
        return None if self.trend is None else max(self.trend, self.predicted or 0.0)


def trend(latencies_s: Sequence[float]) -> float | None:
    """Returns the relative reduction of the best latency by the last `WINDOW` trials.

    Args:
        latencies_s: latencies of a task's trials in order; infinity for a failed trial.

    Returns:
        None without trials before the window; 1 if all of these failed; 0 if all trials failed.
    """
    if len(latencies_s) <= WINDOW:
        return None
    before, now = min(latencies_s[:-WINDOW]), min(latencies_s)
    if math.isinf(now):
        return 0.0
    return 1.0 if math.isinf(before) else 1.0 - now / before


def predicted_gain(
    candidates: FloatArray, measured: FloatArray, latencies_s: FloatArray, best_s: float
) -> float | None:
    """Returns the predicted reduction of the best latency by the candidate with the best score.

    A score is a rate of unknown scale. The scale is the median of score x latency over measured
    programs, which also corrects for the optimism of scores of chosen programs.

    Args:
        candidates: float64 [N], scores of the next candidates, higher is better.
        measured: float64 [M], scores of measured programs by the same model at the same time.
        latencies_s: float64 [M], latencies of the measured programs.
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
    """Returns whether to stop trials of a task: both its trend and its predicted gain are below
    `least`.
    """
    return gain.trend is not None and max(gain.trend, gain.predicted or 0.0) < least


def total_gain(gains: Sequence[Gain], seconds: Sequence[float | None]) -> float | None:
    """Returns the expected gain of all tasks together: the mean weighted by their times.

    Args:
        gains: gain of every task.
        seconds: weight x best latency of every task; None if unknown.

    Returns:
        None until the gains of all tasks are known.
    """
    pairs = [(g.expected, s) for g, s in zip(gains, seconds, strict=True) if s]
    total = sum(s for _, s in pairs)
    if not pairs or len(pairs) < len(gains) or any(g is None for g, _ in pairs):
        return None
    return sum((g or 0.0) * s for g, s in pairs) / total


def advice(gains: Sequence[Gain], least: float, trials: int) -> str | None:
    """Returns the advice to stop in words; None if more trials are worthwhile.

    Args:
        least: gain below which a task is settled.
    """
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
