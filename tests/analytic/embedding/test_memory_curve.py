"""Time over size of memory traffic."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.embedding.memory_curve import (
    MemoryCurve,
    SmoothMemoryCurve,
    all_to_all_bytes,
    bus_factor,
    fit_memory_curve,
    fit_smooth_curve,
)
from cdmpp.errors import DataError

#: The V100's constants as they were rounded when the numbers below were made.
V100 = MemoryCurve(16, 30, 816.95e9, 4.833e-6, 1.94723, 19.817, 0.55556, 0.95524)
SIZES = 2.0 ** np.arange(8, 31)


@pytest.mark.parametrize(
    ("log_size", "microseconds"),
    [
        (14, 4.833),
        (20, 11.022878189035),
        (24, 31.32342433752616),
        (28, 352.2161458748603),
        (31, 2633.492829854948),
    ],
)
def test_published_times_of_the_v100(log_size, microseconds):
    assert V100.time_s(2.0**log_size) * 1e6 == pytest.approx(microseconds, rel=4e-16, abs=0)


def test_fit_gives_back_the_curve_it_was_made_from():
    times = [V100.time_s(size) for size in SIZES]
    found = fit_memory_curve(SIZES, times)
    assert found.peak_bytes_per_s == pytest.approx(V100.peak_bytes_per_s, rel=0.05)
    # The 10 % rule sees the first jump late: the latency there has already grown a little.
    assert found.overhead_s == pytest.approx(V100.overhead_s, rel=0.25)
    for size in SIZES[10:22]:
        assert found.time_s(size) == pytest.approx(V100.time_s(size), rel=0.10)


def test_smooth_fit_gives_back_its_own_curve_and_grows():
    truth = SmoothMemoryCurve(3e-6, 8e11, 3e6, 0.8)
    found = fit_smooth_curve(SIZES, [truth.time_s(size) for size in SIZES])
    fine = 2.0 ** np.linspace(0, 34, 300)
    times = np.array([found.time_s(size) for size in fine])
    assert np.all(np.diff(times) >= 0)
    assert times == pytest.approx([truth.time_s(size) for size in fine], rel=0.02)


def test_nothing_to_move_costs_the_overhead():
    assert V100.time_s(0) == V100.overhead_s


def test_bus_factors_and_uneven_messages():
    assert bus_factor("all-reduce", 4) == pytest.approx(1.5)
    assert bus_factor("all-to-all", 4) == pytest.approx(0.75)
    assert bus_factor("other", 4) == 1.0
    assert all_to_all_bytes([10, 10, 10, 10]) == 30
    assert all_to_all_bytes([1, 40, 1, 1]) == 120
    with pytest.raises(DataError, match="0 ranks"):
        bus_factor("all-reduce", 0)


def test_a_short_sweep_is_refused():
    with pytest.raises(DataError, match="at least 8"):
        fit_memory_curve([1, 2, 3], [1, 2, 3])
