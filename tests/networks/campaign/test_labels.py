"""The median's interval, and when a sample has been timed enough."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.errors import UsageError
from cdmpp.networks.campaign.labels import NetworkTiming, median_interval, time_repeats

QUICK = NetworkTiming(warm_up_s=0.0, spread=0.02, budget_s=1.0, most_repeats=50)


def test_the_interval_is_that_of_the_binomial_distribution() -> None:
    assert median_interval([3.0]) == (3.0, 3.0, 3.0)
    assert median_interval(range(1, 6)) == (3.0, 1.0, 5.0)
    assert median_interval(range(1, 9)) == (4.5, 1.0, 8.0)  # 2 and 7 enclose it with 93 % only
    assert median_interval(range(1, 10)) == (5.0, 2.0, 8.0)  # 96.1 %
    assert median_interval(range(1, 101)) == (50.5, 40.0, 61.0)  # 96.5 %; as in tables of the test


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        _, low, high = median_interval(rng.lognormal(size=15).tolist())
        hits += low <= 1.0 <= high
    assert 0.95 <= hits / 2000 <= 0.98  # exactly 96.5 %


def test_no_times_have_no_median() -> None:
    with pytest.raises(ValueError, match="no times"):
        median_interval([])


def test_steady_times_end_at_once_and_noisy_ones_at_the_budget() -> None:
    steady = time_repeats(lambda count: 0.01 * count, QUICK, first_s=0.01)
    assert len(steady.times_s) == QUICK.least_repeats
    rng = np.random.default_rng(1)
    noisy = time_repeats(lambda count: rng.uniform(0.01, 0.1) * count, QUICK, first_s=0.05)
    assert QUICK.least_repeats < len(noisy.times_s) < QUICK.most_repeats
    assert sum(noisy.times_s) >= QUICK.budget_s


def test_slow_samples_are_timed_three_times_and_fast_ones_in_groups() -> None:
    slow = time_repeats(lambda count: 5.0 * count, QUICK, first_s=5.0)
    assert len(slow.times_s) == 3
    fast = time_repeats(lambda count: 1e-5 * count, QUICK, first_s=1e-5)
    assert fast.iterations == len(fast.times_s) * 1000
    assert fast.times_s[0] == pytest.approx(1e-5)


def test_without_a_spread_only_budget_and_count_end_it() -> None:
    timing = replace(QUICK, spread=0.0)
    assert len(time_repeats(lambda count: 1e-4, timing, first_s=1.0).times_s) == 50


@pytest.mark.parametrize(
    "change",
    [{"warm_up_runs": 0}, {"least_repeats": 2}, {"most_repeats": 3}, {"spread": -1.0},
     {"budget_s": math.inf}],
)  # fmt: skip
def test_timings_that_make_no_sense(change: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="timing"):
        replace(QUICK, **change).check()
