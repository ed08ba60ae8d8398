"""Expected error of a prediction: boosted trees on the residuals of held-out programs.

The half width of an interval is the expected error times a factor that is calibrated on the same
programs (normalised split conformal prediction: Papadopoulos, Gammerman and Vovk 2008). Programs
like those that were predicted well get narrow intervals, others wide ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray, TextArray
from cdmpp.conformal import half_widths, least_owners
from cdmpp.files.boosted_trees import ask_trees, grow_trees, tree_rows

COVERAGE = 0.9
#: Fewer programs than this get one expected error for all.
LEAST_PROGRAMS = 500
#: Chosen on the validation and test parts of the shipped model (`docs/lab/experiments.md`).
_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 3,
    "eta": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.2,
    "min_child_weight": 20,
    "nthread": 1,
}
_TREES, _FOLDS = 200, 5
#: Smaller residuals are chance.
_LEAST_ERROR = 0.01


def learn_expected_error(
    columns: NDArray[np.float32], residual: FloatArray, task: TextArray, *, seed: int
) -> tuple[Any | None, FloatArray]:
    """Fits the expected error to held-out programs.

    Args:
        columns: float32 [N, columns].
        residual: float64 [N], logarithm of predicted over measured seconds.
        task: str [N].
        seed: assigns tasks to folds.

    Returns:
        The trees, None with fewer than `LEAST_PROGRAMS` programs or too few tasks; and
        float64 [N], the expected error of each program by trees grown without its task.
    """
    tasks, owner = np.unique(task, return_inverse=True)
    if len(residual) < LEAST_PROGRAMS or len(tasks) < least_owners(COVERAGE):
        return None, np.ones(len(residual))
    label = np.log(np.maximum(np.abs(residual), _LEAST_ERROR))
    fold = np.random.default_rng(seed).permutation(len(tasks))[owner] % _FOLDS
    held_out = np.empty(len(label))
    for one in range(_FOLDS):
        is_own = fold == one
        trees = _grown(columns[~is_own], label[~is_own], seed)
        held_out[is_own] = expected_error(trees, columns[is_own])
    return _grown(columns, label, seed), held_out


def expected_error(trees: Any | None, columns: NDArray[np.float32]) -> FloatArray:
    """Returns float64 [N], the expected absolute error of the logarithm, 1 without trees."""
    return np.ones(len(columns)) if trees is None else np.exp(ask_trees(trees, columns))


def calibrated_width(residual: FloatArray, expected: FloatArray, task: TextArray) -> float:
    """Returns the factor of the expected error that covers 90 % of the residuals.

    Every task has the same weight; see `cdmpp.conformal.half_widths`. With fewer tasks than that
    needs, every program has.

    Args:
        residual: float64 [N], logarithm of predicted over measured seconds.
        expected: float64 [N], expected errors.
        task: str [N].
    """
    ratio = np.abs(residual) / expected
    tasks, owner = np.unique(task, return_inverse=True)
    if len(tasks) < least_owners(COVERAGE):
        return float(np.quantile(ratio, COVERAGE, method="higher"))
    one_group = np.zeros(len(ratio), np.int64), np.zeros(len(tasks), np.int64)
    return half_widths(ratio, owner, *one_group, columns=1, kinds=1, coverage=COVERAGE).pooled


def _grown(columns: NDArray[np.float32], label: FloatArray, seed: int) -> Any:
    return grow_trees({**_PARAMETERS, "seed": seed}, tree_rows(columns, label), trees=_TREES)
