"""Numbers of pages as text: means with their 95 % intervals, and ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cdmpp.metrics import mean_and_interval
from cdmpp.text import percent_text


def spread(values: Sequence[float]) -> str:
    """Returns the mean of fractions in percent, with its interval where there is one."""
    mean, half = mean_and_interval(values)
    text = percent_text(mean)
    return text if half is None else f"{text} ± {percent_text(half)}"


def geometric_mean(log_ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns the geometric mean of ratios and both ends of its interval; without one, thrice the
    mean.
    """
    mean, half = mean_and_interval(log_ratios)
    half = half or 0.0
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def ratio_text(ratios: Sequence[float]) -> str:
    """Returns the geometric mean, with its 95 % interval where there are several values."""
    return log_ratio_text(*mean_and_interval([math.log(ratio) for ratio in ratios]))


def log_ratio_text(mean: float, half: float | None) -> str:
    """Returns a ratio whose logarithm has a mean and the half width of an interval."""
    if half is None:
        return f"{math.exp(mean):.3f}"
    return f"{math.exp(mean):.3f} [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]"
