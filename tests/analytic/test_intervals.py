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


def test_a_group_that_none_knows_is_held_as_often_as_said() -> None:
    """Groups with biases of their own: quantiles of all rows hold less than 90 % of a new one."""
    rng = np.random.default_rng(0)
    held: list[list[float]] = [[], []]
    for _ in range(200):
        groups = [rng.normal(rng.normal(0, 0.5), 0.1, size) for size in (400, 20, 20, 20, 20, 20)]
        new = rng.normal(rng.normal(0, 0.5), 0.1, 100)
        pooled, equal = (
            LogErrors.of(np.concatenate(groups)), LogErrors.of_unseen_group(groups)
        )  # fmt: skip
        assert pooled is not None
        assert equal is not None
        for shares, one in zip(held, (pooled, equal), strict=True):
            shares.append(float(np.mean(one.holds(new))))
    assert np.mean(held[0]) < 0.75
    assert 0.8 < np.mean(held[1]) < 0.95


def test_one_group_has_its_quantiles_and_few_errors_have_no_interval() -> None:
    errors = np.linspace(-1.0, 1.0, 201)
    found = LogErrors.of_unseen_group([errors])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((-0.9, 0.9), abs=0.02)
    assert LogErrors.of_unseen_group([errors[:9], errors[:9]]) is None
    assert LogErrors.of_unseen_group([]) is None
