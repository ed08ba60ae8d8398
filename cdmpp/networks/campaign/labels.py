"""What a sample's timings say: the median, its interval, and when they are enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdmpp.errors import UsageError

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class NetworkTiming:
    """How long a sample is timed.

    A repeat is as many iterations as fit `least_repeat_s`; its time is the mean of them.

    Attributes:
        warm_up_runs: iterations before anything is timed, at least.
        warm_up_s: seconds of iterations before anything is timed, at least.
        least_repeat_s: shortest repeat.
        least_repeats: repeats at least, unless the budget ends before.
        most_repeats: repeats at most.
        spread: enough when half the width of the median's 95 % interval is this share of the
            median; 0 = never before budget or `most_repeats` end.
        budget_s: seconds of repeats after which none is begun; three are always timed.
        operator_runs: runs, operator by operator, after the repeats (on a CPU), at most; 0 = none.
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
        """Raises a UsageError for values that make no sense."""
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


#: Repeats that are always timed.
FEWEST_REPEATS = 3


@dataclass(frozen=True)
class Timed:
    """The timings of one sample in seconds of one iteration.

    Attributes:
        times_s: every repeat, in order.
        iterations: in all repeats together.
    """

    times_s: tuple[float, ...]
    iterations: int


def median_interval(times: Sequence[float]) -> tuple[float, float, float]:
    """Returns (median, low, high): the 95 % interval of the median from order statistics.

    It holds for any distribution of independent times. With fewer than six times no two of them
    enclose the median with 95 %; the interval is then all of them.

    Raises:
        ValueError: no times.
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
    """Returns how many times may be left out at either end."""
    tail, outside = 0.0, 0
    for number in range(count // 2):
        tail += math.comb(count, number) / 2.0**count
        if tail > (1.0 - _CONFIDENCE) / 2:
            break
        outside = number
    return outside


def time_repeats(run: Callable[[int], float], timing: NetworkTiming, *, first_s: float) -> Timed:
    """Times repeats until the median is known well enough or the budget ends.

    Args:
        run: does so many iterations and returns their seconds.
        timing: when it is enough.
        first_s: about how long an iteration takes.
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
    """Whether half the interval's width is at most `spread` of the median."""
    median, low, high = median_interval(times)
    return (high - low) / 2 <= spread * median and spread > 0
