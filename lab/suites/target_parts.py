"""Splits a new device's samples into tasks that may be measured and tasks of the test part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import uniform_draw, workload_of
from cdmpp.errors import DataError


@dataclass(frozen=True)
class TargetParts:
    """A target device's samples.

    Attributes:
        candidates: samples of the tasks that a budget may choose from.
        test: samples of the other tasks. No workload is in both parts.
    """

    candidates: Samples
    test: Samples


def target_parts(samples: Samples, *, seed: int) -> TargetParts:
    """Splits the tasks of one device into two halves.

    Workloads (for AutoTVM: operator and shapes, because several templates compute the same) are
    assigned whole, in an order drawn by the seed: to the candidates until they have half of the
    tasks, then to the test part. A budget of up to half of the tasks is therefore possible.

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
