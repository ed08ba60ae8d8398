"""Cross-validation folds of a few-shot budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.errors import UsageError

#: Minimum number of programs of a single task to hold some out.
_LEAST_PROGRAMS = 4


def budget_folds(budget: Samples, count: int, *, seed: int) -> list[NDArray[np.bool_]]:
    """Returns at most `count` disjoint masks bool [N] that cover the budget: its held-out folds.

    Folds are whole tasks of nearly equal number, or whole programs if there is a single task. Empty
    if that task has fewer than `_LEAST_PROGRAMS` programs.
    """
    rng = np.random.default_rng(seed)
    tasks = np.unique(budget.task_id)
    if len(tasks) > 1:
        key, names = budget.task_id, tasks
    else:
        key, names = budget.program, np.unique(budget.program)
        if len(names) < _LEAST_PROGRAMS:
            return []
    names = rng.permutation(names)
    folds = min(count, len(names))
    return [np.isin(key, names[first::folds]) for first in range(folds)]


def joined(first: Samples, second: Samples) -> Samples:
    """Concatenates two parts of the same samples.

    Raises:
        UsageError: they refer to different programs or devices.
    """
    if first.programs is not second.programs or first.devices != second.devices:
        raise UsageError(
            "training and validation samples refer to different data sets; expected two parts "
            "of the same samples, made with Samples.take"
        )
    return replace(
        first,
        program=np.concatenate([first.program, second.program]),
        device=np.concatenate([first.device, second.device]),
        latency_s=np.concatenate([first.latency_s, second.latency_s]),
        latency_std_s=np.concatenate([first.latency_std_s, second.latency_std_s]),
    )
