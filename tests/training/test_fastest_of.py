"""What being the fastest of several says of a program."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.training.fastest_of import fastest_log_s


def test_alone_it_takes_what_is_predicted() -> None:
    assert fastest_log_s(np.array([-7.0]), 0) == -7.0


@pytest.mark.parametrize(("count", "expected"), [(2, 0.5642), (8, 1.4236), (32, 2.0697)])
def test_among_equals_it_is_the_least_of_as_many_deviates(count: int, expected: float) -> None:
    found = fastest_log_s(np.full(count, -7.0), 1, noise=0.2)
    assert found == pytest.approx(-7.0 - 0.2 * expected, abs=1e-3)


def test_what_looks_far_slower_says_nothing() -> None:
    assert fastest_log_s(np.array([-7.0, -3.0, -2.0]), 0) == pytest.approx(-7.0, abs=1e-6)


def test_what_looks_faster_says_much_and_more_of_them_more() -> None:
    one = fastest_log_s(np.array([-7.0, -7.4]), 0)
    two = fastest_log_s(np.array([-7.0, -7.4, -7.5]), 0)
    assert -7.5 < two < one < -7.0 - 0.1


def test_it_is_what_a_simulation_gives() -> None:
    rng = np.random.default_rng(0)
    predicted = np.array([0.0, 0.05, -0.1, 0.3])
    measured = predicted + 0.1 * rng.normal(size=(200_000, 4))
    is_first = measured.argmin(axis=1) == 0
    assert fastest_log_s(predicted, 0) == pytest.approx(measured[is_first, 0].mean(), abs=2e-3)
