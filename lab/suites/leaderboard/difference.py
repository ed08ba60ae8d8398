"""Paired differences of two lines, seed by seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cdmpp.metrics import mean_and_interval
from lab.suites.leaderboard.board import Seeds


class Metric(NamedTuple):
    """A metric that compares lines."""

    key: str
    unit: str
    is_low_good: bool
    title: str


METRICS = (
    Metric("mape", "percent", True, "MAPE"),
    Metric("median_ape", "percent", True, "median APE"),
    Metric("spearman_by_task", "ratio", False, "Spearman"),
    Metric("top1_score", "ratio", False, "top-1 score"),
)


@dataclass(frozen=True)
class Difference:
    """A line's metric minus another line's on the same seeds.

    Attributes:
        mean: over seeds.
        half: half width of its 95 % interval; None for one seed.
        seeds: number of common seeds.
        ours, base: means of the two lines over these seeds.
    """

    mean: float
    half: float | None
    seeds: int
    ours: float
    base: float

    @property
    def is_sure(self) -> bool:
        """Whether the difference exceeds its interval."""
        return self.half is not None and abs(self.mean) > self.half

    @property
    def certainty(self) -> str:
        """Whether the difference exceeds its interval, as text."""
        if self.half is None:
            return "one seed"
        return f"{'beyond' if self.is_sure else 'within'} the 95 % interval"

    def change(self, unit: str) -> str:
        """Returns e.g. `-1.2 ± 0.4 points`, or `+0.012 ± 0.004` if it is no percentage."""
        scale, digits, name = (100, 1, " points") if unit == "percent" else (1, 3, "")
        spread = "" if self.half is None else f" ± {scale * self.half:.{digits}f}"
        return f"{scale * self.mean:+.{digits}f}{spread}{name}"


def common_seeds(ours: Seeds, base: Seeds, metric: str) -> list[int]:
    """Returns the seeds for which both lines have a metric."""
    return [
        seed
        for seed in sorted(set(ours) & set(base))
        if ours[seed].get(metric) is not None and base[seed].get(metric) is not None
    ]


def difference(ours: Seeds, base: Seeds, metric: str) -> Difference | None:
    """Returns the paired difference over common seeds; None if there are none."""
    seeds = common_seeds(ours, base, metric)
    if not seeds:
        return None
    mean, half = mean_and_interval([ours[seed][metric] - base[seed][metric] for seed in seeds])
    means = (float(np.mean([line[seed][metric] for seed in seeds])) for line in (ours, base))
    return Difference(mean, half, len(seeds), *means)
