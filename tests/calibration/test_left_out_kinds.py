"""How much wider the intervals of programs are that are unlike all training tasks."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.calibration.left_out_kinds import strange_factor

_KINDS = np.repeat(["conv2d", "dense", "softmax", "scan", "pool", "gather"], 20)
_TASKS = np.arange(120).astype(np.str_)


def test_every_kind_is_left_out_once_and_as_a_whole() -> None:
    seen: list[set[str]] = []

    def error_of(is_left_out: BoolArray) -> FloatArray:
        left, known = set(_KINDS[is_left_out].tolist()), set(_KINDS[~is_left_out].tolist())
        assert not left & known
        seen.append(left)
        return np.full(int(is_left_out.sum()), 0.5)

    assert strange_factor(_KINDS, _TASKS, np.full(120, 0.25), error_of) == pytest.approx(2.0)
    assert sorted(kind for group in seen for kind in group) == sorted(set(_KINDS.tolist()))


def test_nine_of_ten_errors_lie_in_the_widened_interval() -> None:
    error = np.random.default_rng(0).exponential(size=120)
    width = np.random.default_rng(1).uniform(0.2, 0.6, size=120)
    factor = strange_factor(_KINDS, _TASKS, width, lambda chosen: error[chosen])
    assert factor is not None
    assert np.mean(error <= factor * width) == pytest.approx(0.9, abs=0.01)


def test_a_task_counts_once_however_many_programs_it_has() -> None:
    kind = np.array(["dense"] * 10 + ["pool"] * 1000)
    task = np.array([*map(str, range(10)), *["the same"] * 1000])
    error = np.where(kind == "pool", 100.0, 3.0)
    found = strange_factor(kind, task, np.ones(1010), lambda chosen: error[chosen])
    assert found == pytest.approx(3.0)


def test_errors_within_the_interval_make_it_no_narrower() -> None:
    assert strange_factor(_KINDS, _TASKS, np.ones(120), lambda one: 0.1 * one[one]) == 1.0


def test_one_kind_or_a_few_tasks_say_nothing() -> None:
    def error_of(is_left_out: BoolArray) -> FloatArray:
        raise AssertionError(is_left_out)

    one_kind = np.full(120, "dense")
    assert strange_factor(one_kind, _TASKS, np.ones(120), error_of) is None
    few = np.where(np.arange(120) < 60, "a", "b")
    assert strange_factor(_KINDS, few, np.ones(120), error_of) is None
    assert strange_factor(_KINDS, _TASKS, np.zeros(120), error_of) is None
