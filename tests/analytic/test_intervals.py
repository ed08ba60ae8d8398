"""Intervals of closed-form models."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.intervals import LEAST_ERRORS, Evidence, LogErrors, ends_of


@pytest.mark.parametrize("count", [LEAST_ERRORS, 40, 200])
def test_nine_of_ten_new_errors_lie_between_the_ends(count: int) -> None:
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        errors = LogErrors.of(rng.standard_gamma(2.0, count) - 1.5)
        assert errors is not None
        new = rng.standard_gamma(2.0, 100) - 1.5
        covered.append(np.mean((errors.low <= new) & (new <= errors.high)))
    assert 0.89 < np.mean(covered) < 0.92


def test_an_interval_holds_its_prediction() -> None:
    errors = LogErrors.of(np.linspace(0.5, 1.0, 100))  # always measured longer than predicted
    assert errors is not None
    low, high = ends_of(errors, 2.0)
    assert low == 2.0
    assert high == pytest.approx(2.0 * np.exp(0.98), rel=0.01)
    assert LogErrors.from_json(errors.to_json()).to_json() == errors.to_json()


def test_too_few_errors_are_no_interval() -> None:
    assert LogErrors.of(np.zeros(LEAST_ERRORS - 1)) is None
    assert ends_of(None, 2.0) == (None, None)
    assert LogErrors.widest([None, None]) is None
    widest = LogErrors.widest([LogErrors(-0.1, 0.4, 20), None, LogErrors(-0.3, 0.2, 30)])
    assert widest == LogErrors(-0.3, 0.4, 50)
    assert Evidence("nobody measured it", False).sentence == "no interval: nobody measured it"
