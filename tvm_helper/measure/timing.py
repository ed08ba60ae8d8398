"""Repetition of a timing until its standard error is small or its budget is used up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from tvm_helper.measure.options import TimingOptions


def repeat_until_steady(
    time_repeats: Callable[[int], Sequence[float]],
    options: TimingOptions,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[float]:
    """Returns the costs in seconds of one program, at least one.

    Args:
        time_repeats: takes a number of repeats, times the program and returns the costs.
        options: criteria for stopping.
        clock: clock in seconds, replaced in tests.
    """
    start = clock()
    costs: list[float] = list(time_repeats(1))
    while True:
        used = clock() - start
        if len(costs) >= options.max_repeats or used >= options.budget_s:
            return costs
        if len(costs) >= options.min_repeats and standard_error(costs) <= options.spread:
            return costs
        missing = max(1, options.min_repeats - len(costs))
        affordable = int((options.budget_s - used) * len(costs) / used) if used > 0 else missing
        count = min(missing, max(1, affordable), options.max_repeats - len(costs))
        costs += time_repeats(count)


def standard_error(costs: Sequence[float]) -> float:
    """Returns the relative standard error of the mean; infinity for fewer than two costs."""
    if len(costs) < 2:
        return math.inf
    return relative_deviation(costs) / math.sqrt(len(costs))


def relative_deviation(costs: Sequence[float]) -> float:
    """Returns the sample standard deviation over the mean; 0 for fewer than two costs."""
    if len(costs) < 2:
        return 0.0
    mean = sum(costs) / len(costs)
    return math.sqrt(sum((cost - mean) ** 2 for cost in costs) / (len(costs) - 1)) / mean
