"""What is kept of several fits: held-out tasks decide, chance does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.training.finetune.choice import (
    KEPT,
    Choice,
    centred_factor,
    choose,
    shrunken_factor,
    standard_error,
)

TASKS, PROGRAMS = 10, 6


def chosen(errors: dict[str, list[float]]) -> Choice:
    """Chooses between candidates of which each errs by so much on each task."""
    count = len(errors["full"])
    task = np.repeat(np.arange(count), PROGRAMS)
    measured_s = np.full(len(task), 1e-3)
    held_out_s = {name: measured_s * (1.0 + np.repeat(errors[name], PROGRAMS)) for name in KEPT}
    return choose(held_out_s, measured_s, task)


def test_where_nothing_is_told_apart_the_shrunken_fit_is_kept() -> None:
    same = [0.4, 0.2, 0.6]
    choice = chosen(dict.fromkeys(KEPT, same))
    assert choice.kept == "shrunken"
    assert choice.errors == pytest.approx(dict.fromkeys(KEPT, 0.4))
    assert "3 held-out tasks" in choice.reason


@pytest.mark.parametrize("best", KEPT)
def test_what_is_clearly_best_is_kept(best: str) -> None:
    errors = {name: [0.6] * TASKS for name in KEPT} | {best: [0.3] * TASKS}
    assert chosen(errors).kept == best


def test_two_tasks_of_chance_do_not_decide() -> None:
    errors = {name: [0.5, 0.5] for name in KEPT} | {"full": [0.1, 0.8], "unchanged": [0.45, 0.5]}
    assert chosen(errors).kept == "shrunken"


def test_one_program_cannot_decide() -> None:
    """A thousandfold error counts as 300 %."""
    errors = {name: [0.3] * TASKS for name in KEPT} | {"shrunken": [0.1] * 9 + [1000.0]}
    assert chosen(errors).errors["shrunken"] == pytest.approx(0.39)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=30))
def test_standard_error_is_positive_and_shrinks_with_tasks(gain: list[float]) -> None:
    values = np.array(gain)
    once = standard_error(values)
    assert 0.0 < once < math.inf
    assert standard_error(np.tile(values, 10)) < once


def test_a_factor_of_one_task_is_half_of_what_it_says_and_of_many_all() -> None:
    predicted_s = np.full(400, 1e-3)
    measured_s = 4.0 * predicted_s
    one = np.zeros(400, np.int64)
    assert shrunken_factor(predicted_s, measured_s, one) == pytest.approx(2.0)
    assert shrunken_factor(predicted_s, measured_s, np.arange(400)) == pytest.approx(4.0, rel=0.01)
    assert shrunken_factor(measured_s, measured_s, one) == 1.0


def test_sums_of_wide_errors_want_more_than_the_least_percentage_error() -> None:
    rng = np.random.default_rng(0)
    measured_s = np.exp(rng.normal(0, 0.5, 4000))
    predicted_s = 0.5 * np.exp(rng.normal(0, 0.5, 4000)) * measured_s
    task = np.arange(4000)
    centred = centred_factor(predicted_s, measured_s, task)
    assert centred == pytest.approx(2.0, rel=0.05)
    assert shrunken_factor(predicted_s, measured_s, task) < 0.85 * centred
    assert centred_factor(predicted_s, measured_s, np.zeros(4000, int)) == pytest.approx(
        np.sqrt(2.0), rel=0.05
    )
