"""Budgets of a new device: the samples of a few tasks, and their held-out part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import uniform_draw

#: Smallest number of tasks for which whole tasks are held out; smaller budgets hold out samples.
_LEAST_TASKS_TO_HOLD_OUT = 5
_VALIDATION_SHARE = 0.2


def of_tasks(samples: Samples, tasks: NDArray[np.int64]) -> Samples:
    """Returns the samples of the given tasks."""
    return samples.take(np.isin(samples.task_id, tasks))


def hold_out(samples: Samples, *, seed: int) -> tuple[Samples, Samples]:
    """Returns the (training, validation) parts of a budget: about a fifth is held out.

    With five tasks or more, whole tasks are held out; with fewer, samples, so that every task can
    stay in training. The draw is by hash, equal for equal seeds. The validation part of fewer than
    three samples is empty.
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
