"""Intervals of a ratio of errors over other tasks, seeds and devices."""

from __future__ import annotations

import numpy as np
import pytest

from lab.suites.leaderboard.other_tasks import ratio_interval


def drawn(rng: np.random.Generator, tasks: int, spread: float, *, seeds: int = 3, devices: int = 4):
    """Two lines with a true ratio of 1/2; a task has the same effect in every seed."""
    factor = 0.5 * np.exp(spread * rng.normal(size=tasks) - spread**2 / 2)
    theirs = [
        {f"d{d}": {f"t{t}": [10.0, 10 * ape] for t, ape in enumerate(rng.uniform(0.3, 0.5, tasks))}
         for d in range(devices)}
        for _ in range(seeds)
    ]  # fmt: skip
    ours = [
        {d: {f"t{t}": [n, ape * factor[t]] for t, (n, ape) in enumerate(by.values())}
         for d, by in seed.items()}
        for seed in theirs
    ]  # fmt: skip
    return ours, theirs


def test_the_interval_covers_the_true_ratio_as_often_as_it_says():
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(60):
        low, high = ratio_interval(*drawn(rng, 25, 0.4), are_devices_drawn=False)
        hits += low <= 0.5 <= high
    assert hits >= 52


def test_more_tasks_narrow_it_and_drawn_devices_widen_it():
    rng = np.random.default_rng(6)
    few, many = (ratio_interval(*drawn(rng, n, 0.4), are_devices_drawn=False) for n in (8, 200))
    assert few[1] - few[0] > 2 * (many[1] - many[0])
    ours, theirs = drawn(rng, 50, 0.1)
    for seed in ours:  # one device is unlike the others
        seed["d0"] = {unit: [n, 3 * ape] for unit, (n, ape) in seed["d0"].items()}
    fixed, free = (ratio_interval(ours, theirs, are_devices_drawn=d) for d in (False, True))
    assert free[1] - free[0] > 2 * (fixed[1] - fixed[0])


def test_equal_lines_have_the_ratio_one_and_one_task_or_seed_no_interval():
    ours, theirs = drawn(np.random.default_rng(7), 10, 0.2)
    assert ratio_interval(theirs, theirs, are_devices_drawn=True) == pytest.approx((1, 1))
    assert ratio_interval(ours[:1], theirs[:1], are_devices_drawn=False) is None
    lonely = [{"d0": {"t0": [1.0, 0.2]}}] * 3
    assert ratio_interval(lonely, lonely, are_devices_drawn=False) is None


def test_a_unit_that_some_seeds_do_not_test_counts_where_it_is():
    ours, theirs = drawn(np.random.default_rng(8), 30, 0.2)
    for line in (ours, theirs):
        line[0] = {d: {u: v for u, v in by.items() if u != "t3"} for d, by in line[0].items()}
        del line[1]["d2"]
    low, high = ratio_interval(ours, theirs, are_devices_drawn=False)
    assert 0.3 < low < 0.5 < high < 0.7
