"""Interval factor for out-of-distribution programs, measured on left-out operator kinds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray, IntArray, TextArray
from cdmpp.conformal import least_owners, owner_quantile

#: Number of groups in which kinds are left out.
_GROUPS = 4
_COVERAGE = 0.9


def strange_factor(
    kind: TextArray,
    task: TextArray,
    half_width: FloatArray,
    error_of: Callable[[BoolArray], FloatArray],
) -> float | None:
    """Returns the factor on the half width of out-of-distribution programs, at least 1.

    The operator kinds are left out in groups. The factor is the 90 % quantile of errors over half
    widths, every task with the same weight. None with fewer than two kinds, too few tasks or a half
    width of 0.

    Args:
        kind: str [N], operator kind of each program.
        task: str [N], task of each program.
        half_width: float64 [N], half width for an unseen operator kind on the program's device.
        error_of: maps bool [N], the programs to leave out, to float64, the absolute log errors on
            them of a model trained on the others.
    """
    tasks, owner = np.unique(task, return_inverse=True)
    group = _groups(kind, owner)
    is_measured = bool((half_width > 0.0).all())
    if group.max(initial=0) < 1 or len(tasks) < least_owners(_COVERAGE) or not is_measured:
        return None
    ratio = np.zeros(len(kind))
    for one in range(int(group.max()) + 1):
        is_left_out = group == one
        ratio[is_left_out] = error_of(is_left_out) / half_width[is_left_out]
    return max(1.0, owner_quantile(ratio, owner, _COVERAGE))


def _groups(kind: TextArray, owner: IntArray) -> IntArray:
    """Returns int64 [N], the group of each program's kind.

    Kinds are assigned by descending number of tasks, each to the group with the fewest tasks.
    """
    kinds, number = np.unique(kind, return_inverse=True)
    tasks = np.array([len(np.unique(owner[number == one])) for one in range(len(kinds))])
    groups = min(_GROUPS, len(kinds))
    load, group_of = np.zeros(groups, np.int64), np.zeros(len(kinds), np.int64)
    for one in np.argsort(-tasks, kind="stable").tolist():
        group_of[one] = int(load.argmin())
        load[group_of[one]] += tasks[one]
    return np.asarray(group_of[number])
