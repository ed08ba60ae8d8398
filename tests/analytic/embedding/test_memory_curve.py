"""Time over size of memory traffic."""

from __future__ import annotations

import pytest

from cdmpp.analytic.embedding.memory_curve import (
    MemoryCurve,
    bus_factor,
)
from cdmpp.errors import DataError

#: The V100's constants as they were rounded when the numbers below were made.
V100 = MemoryCurve(16, 30, 816.95e9, 4.833e-6, 1.94723, 19.817, 0.55556, 0.95524)


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


def test_nothing_to_move_costs_the_overhead():
    assert V100.time_s(0) == V100.overhead_s


def test_bus_factors():
    assert bus_factor("all-reduce", 4) == pytest.approx(1.5)
    assert bus_factor("all-to-all", 4) == pytest.approx(0.75)
    assert bus_factor("other", 4) == 1.0
    with pytest.raises(DataError, match="0 ranks"):
        bus_factor("all-reduce", 0)
