"""Budgets of a new device: the samples of some tasks, and what of them is held out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import uniform_draw

#: Budgets of at least so many tasks hold out whole tasks for validation, smaller ones programs.
_LEAST_TASKS_TO_HOLD_OUT = 5
_VALIDATION_SHARE = 0.2


def of_tasks(samples: Samples, tasks: NDArray[np.int64]) -> Samples:
    """Returns the samples of the given tasks."""
    return samples.take(np.isin(samples.task_id, tasks))


def hold_out(samples: Samples, *, seed: int) -> tuple[Samples, Samples]:
    """Returns (training, validation) of a budget: about a fifth is held out.

    From five tasks on whole tasks are held out; with fewer, programs (of every task as a share of
    all), so that nothing is lost that the budget is too small to spare. The draw is by hash, equal
    for equal seeds. A budget with a single program gives an empty validation part.
    """
    tasks = np.unique(samples.task_id)
    if len(tasks) >= _LEAST_TASKS_TO_HOLD_OUT:
        names = [str(name) for name in samples.programs.tasks]
        order = sorted(tasks.tolist(), key=lambda task: uniform_draw(names[task], seed))
        held_out = order[: max(1, round(_VALIDATION_SHARE * len(tasks)))]
        rows = np.isin(samples.task_id, held_out)
    else:
        identities = samples.programs.program_id
        draw = [uniform_draw(str(identities[program]), seed) for program in samples.program]
        rows = np.zeros(len(samples), np.bool_)
        rows[np.argsort(draw, kind="stable")[: round(_VALIDATION_SHARE * len(samples))]] = True
    return samples.take(~rows), samples.take(rows)
