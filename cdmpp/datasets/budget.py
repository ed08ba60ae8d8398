"""Parts of a new device's samples: tasks that may be measured, and tasks that judge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import uniform_draw, workload_of
from cdmpp.errors import DataError

#: Budgets of at least so many tasks hold out whole tasks for validation, smaller ones programs.
_LEAST_TASKS_TO_HOLD_OUT = 5
_VALIDATION_SHARE = 0.2


@dataclass(frozen=True)
class TargetParts:
    """A target device's samples.

    Attributes:
        candidates: samples of the tasks that a budget may choose from.
        test: samples of the other tasks. No workload is on both sides.
    """

    candidates: Samples
    test: Samples


def target_parts(samples: Samples, *, seed: int) -> TargetParts:
    """Returns the two halves of the tasks of one device.

    Workloads (for AutoTVM: operator and shapes, because several templates compute the same) are
    shared out whole in an order drawn by the seed: first to the candidates, until they have half of
    the tasks, then to the test part. So a budget of at most half of the tasks can be chosen.

    Raises:
        DataError: there are fewer than two workloads.
    """
    present = np.unique(samples.task_id)
    workload = {int(task): workload_of(samples.programs.tasks[task]) for task in present}
    names = sorted(set(workload.values()), key=lambda name: uniform_draw(name, seed))
    if len(names) < 2:
        raise DataError(
            f"a target device needs at least 2 different workloads, found {len(names)}; "
            "measure more, see `cdmpp measure --help`"
        )
    sizes = [sum(other == name for other in workload.values()) for name in names]
    chosen: set[str] = set()
    taken = 0
    for name, size in zip(names[:-1], sizes[:-1], strict=True):
        if taken >= len(present) // 2 and chosen:
            break
        chosen.add(name)
        taken += size
    candidate_tasks = [task for task, name in workload.items() if name in chosen]
    is_candidate = np.isin(samples.task_id, candidate_tasks)
    return TargetParts(samples.take(is_candidate), samples.take(~is_candidate))


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
