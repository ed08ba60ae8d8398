"""Timing of a sample: repeats, their median and its interval, and the stopping rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdmpp.errors import UsageError

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class NetworkTiming:
    """Options of timing a sample.

    A repeat has as many iterations as `least_repeat_s` needs; its time is their mean.

    Attributes:
        warm_up_runs: minimum number of iterations before timing.
        warm_up_s: minimum seconds of iterations before timing.
        least_repeat_s: minimum seconds of a repeat.
        least_repeats: minimum number of repeats, unless the budget ends before.
        most_repeats: maximum number of repeats.
        spread: timing stops when half the width of the median's 95 % interval is at most this share
            of the median; 0 = timing stops only at `budget_s` or `most_repeats`.
        budget_s: seconds after which no repeat is started; three are always timed.
        operator_runs: maximum number of operator-by-operator runs after the repeats, on a CPU;
            0 = none.
    """

    warm_up_runs: int = 3
    warm_up_s: float = 30.0
    least_repeat_s: float = 0.01
    least_repeats: int = 7
    most_repeats: int = 1000
    spread: float = 0.0
    budget_s: float = 30.0
    operator_runs: int = 9

    def check(self) -> None:
        """Checks the values.

        Raises:
            UsageError: an invalid value.
        """
        if self.warm_up_runs < 1 or self.least_repeats < FEWEST_REPEATS:
            raise UsageError(
                f"timing: warm_up_runs is {self.warm_up_runs} and least_repeats "
                f"{self.least_repeats}, expected at least 1 and {FEWEST_REPEATS}"
            )
        if self.most_repeats < self.least_repeats:
            raise UsageError(
                f"timing: most_repeats is {self.most_repeats}, expected at least least_repeats "
                f"({self.least_repeats})"
            )
        if self.operator_runs < 0:
            raise UsageError(
                f"timing: operator_runs is {self.operator_runs}, expected 0 (none) or more"
            )
        for name in ("warm_up_s", "least_repeat_s", "spread", "budget_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"timing: {name} is {value}, expected 0 or more")


#: Number of repeats that are always timed.
FEWEST_REPEATS = 3


@dataclass(frozen=True)
class Timed:
    """Timings of one sample.

    Attributes:
        times_s: seconds per iteration of every repeat, in order.
        iterations: total number of iterations.
    """

    times_s: tuple[float, ...]
    iterations: int


def median_interval(times: Sequence[float]) -> tuple[float, float, float]:
    """Returns (median, low, high): the 95 % interval of the median from order statistics.

    The interval is valid for independent times of any distribution. With fewer than six times it is
    their whole range, whose coverage is below 95 %.

    Raises:
        ValueError: `times` is empty.
    """
    ordered = sorted(times)
    count = len(ordered)
    if count == 0:
        raise ValueError("no times, expected at least one")
    middle = count // 2
    median = ordered[middle] if count % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])
    outside = _outside(count)
    return median, ordered[outside], ordered[count - 1 - outside]


def _outside(count: int) -> int:
    """Returns the number of times outside the interval at either end."""
    tail, outside = 0.0, 0
    for number in range(count // 2):
        tail += math.comb(count, number) / 2.0**count
        if tail > (1.0 - _CONFIDENCE) / 2:
            break
        outside = number
    return outside


def time_repeats(run: Callable[[int], float], timing: NetworkTiming, *, first_s: float) -> Timed:
    """Times repeats until the median is precise enough or the budget ends.

    Args:
        run: runs a number of iterations and returns their total seconds.
        timing: the stopping rule.
        first_s: approximate seconds per iteration.
    """
    inner = max(1, math.ceil(timing.least_repeat_s / max(first_s, 1e-9)))
    times: list[float] = []
    spent = 0.0
    while len(times) < timing.most_repeats:
        elapsed = run(inner)
        times.append(elapsed / inner)
        spent += elapsed
        if len(times) >= FEWEST_REPEATS and spent >= timing.budget_s:
            break
        if len(times) >= timing.least_repeats and is_narrow(times, timing.spread):
            break
    return Timed(tuple(times), inner * len(times))


def is_narrow(times: Sequence[float], spread: float) -> bool:
    """Returns whether half the interval's width is at most `spread` of the median; False for a
    spread of 0.
    """
    median, low, high = median_interval(times)
    return (high - low) / 2 <= spread * median and spread > 0
