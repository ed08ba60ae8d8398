"""Expected errors of held-out programs, and the widths that are calibrated with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cdmpp.predict.machine_code.expected_error import (
    LEAST_PROGRAMS,
    calibrated_width,
    expected_error,
    learn_expected_error,
)

pytestmark = pytest.mark.training


def programs(tasks: int, seed: int) -> tuple[Any, Any, Any]:
    """Four programs a task: columns, residuals that grow with the first column, tasks."""
    rng = np.random.default_rng(seed)
    columns = rng.uniform(size=(4 * tasks, 10)).astype(np.float32)
    residual = np.where(columns[:, 0] > 0.5, 0.5, 0.05) * rng.normal(size=4 * tasks)
    return columns, residual, np.repeat(np.arange(tasks), 4).astype(np.str_)


def test_intervals_are_wide_for_programs_like_those_with_large_residuals():
    columns, residual, task = programs(500, 0)
    trees, held_out = learn_expected_error(columns, residual, task, seed=0)
    width = calibrated_width(residual, held_out, task)
    columns, residual, _ = programs(500, 1)
    half_width = width * expected_error(trees, columns)
    is_hard = columns[:, 0] > 0.5
    for where, deviation in ((is_hard, 0.5), (~is_hard, 0.05)):
        assert np.median(half_width[where]) == pytest.approx(1.645 * deviation, rel=0.35)
        inside = np.abs(residual[where]) <= half_width[where]
        assert inside.mean() == pytest.approx(0.9, abs=0.07)


def test_a_program_is_not_part_of_what_its_own_expected_error_is_learned_from():
    columns, residual, task = programs(LEAST_PROGRAMS // 4, 0)
    trees, held_out = learn_expected_error(columns, residual, task, seed=0)
    fitted = np.abs(np.log(np.abs(residual) / expected_error(trees, columns)))
    assert np.abs(np.log(np.abs(residual) / held_out)).mean() > fitted.mean()
    assert np.array_equal(learn_expected_error(columns, residual, task, seed=0)[1], held_out)


def test_few_programs_share_one_expected_error():
    columns, residual, task = programs(LEAST_PROGRAMS // 4 - 1, 0)
    trees, held_out = learn_expected_error(columns, residual, task, seed=0)
    assert trees is None
    assert np.array_equal(held_out, np.ones(len(residual)))
    assert np.array_equal(expected_error(trees, columns), held_out)
    covered = np.abs(residual) <= calibrated_width(residual, held_out, task)
    assert covered.mean() == pytest.approx(0.9, abs=0.03)


def test_a_few_tasks_are_covered_by_the_quantile_of_their_programs():
    _, residual, task = programs(8, 0)
    width = calibrated_width(residual, np.ones(len(residual)), task)
    assert width == np.quantile(np.abs(residual), 0.9, method="higher")
