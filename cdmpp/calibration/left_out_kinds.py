"""How far a model errs on kinds of operators that it has not learned from: what it is told of
programs that are unlike all training tasks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray, IntArray, TextArray
from cdmpp.conformal import least_owners, owner_quantile

#: Kinds are left out in so many groups.
_GROUPS = 4
_COVERAGE = 0.9


def strange_factor(
    kind: TextArray,
    task: TextArray,
    half_width: FloatArray,
    error_of: Callable[[BoolArray], FloatArray],
) -> float | None:
    """Returns what the half width of an interval is multiplied with where the program is strange,
    at least 1; None with fewer than two kinds, too few tasks or intervals without a width.

    The kinds are left out in groups. Of errors over half widths it is the quantile that 90 % of the
    programs of a task lie below, every task with the same weight.

    Args:
        kind: str [N], kind of the operator of each program.
        task: str [N].
        half_width: float64 [N], of a program on its device of whose kind nothing is known.
        error_of: bool [N], which programs are left out -> float64, the absolute errors of their
            logarithms by a model that has learned from the others.
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
    """Returns int64 [N], the group of each program's kind: kinds of many tasks first, each into the
    group that has the fewest.
    """
    kinds, number = np.unique(kind, return_inverse=True)
    tasks = np.array([len(np.unique(owner[number == one])) for one in range(len(kinds))])
    groups = min(_GROUPS, len(kinds))
    load, group_of = np.zeros(groups, np.int64), np.zeros(len(kinds), np.int64)
    for one in np.argsort(-tasks, kind="stable").tolist():
        group_of[one] = int(load.argmin())
        load[group_of[one]] += tasks[one]
    return np.asarray(group_of[number])
