"""Choice of the training and test tasks of a new device: random kernels, or tasks of a dataset
chosen by clustering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.budget import of_tasks
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sampling import choose_tasks, untouched_tasks, workload_count
from cdmpp.datasets.splits import uniform_draw
from cdmpp.errors import DataError
from cdmpp.predict.saved_model import ModelCard, task_digest
from cdmpp.text import counted
from tvm_helper.device_add.kernels import kernel_names
from tvm_helper.device_add.options import MOST_TASKS, task_counts
from tvm_helper.drawn.task_names import drawn_names

_LEAST_WORKLOADS = 4


@dataclass(frozen=True)
class AddPlan:
    """Tasks of a new device, by name (`"<workload key>|<target kind>"`).

    Attributes:
        learn: training tasks, best first.
        test: test tasks; none shares a workload with a training task.
        kernels: kernels of the tasks, for `cdmpp measure --task`; empty if the programs come
            from a dataset.
    """

    learn: tuple[str, ...]
    test: tuple[str, ...]
    kernels: tuple[str, ...] = ()

    def in_turn(self) -> list[str]:
        """Returns all tasks, interleaved such that an interrupted campaign has both kinds."""
        order = [(place / len(part), name) for part in (self.learn, self.test)
                 for place, name in enumerate(part)]  # fmt: skip
        return [name for _, name in sorted(order)]


def drawn_plan(
    card: ModelCard, name_of: Callable[[str], str], *, measure_s: float, seed: int
) -> AddPlan:
    """Draws kernels of every kind that are outside the model's training data of all devices, and
    the test tasks among them.

    Args:
        card: card of the model to start from.
        name_of: name of a kernel -> name of its task.
        measure_s: seconds of measuring.
    """
    learn_count, test_count = task_counts(measure_s, MOST_TASKS)
    found: dict[str, str] = {}
    for kernel in islice(_drawn_kernels(seed), 10 * MOST_TASKS):
        name = name_of(kernel)
        if task_digest(name) not in card.training_tasks:
            found.setdefault(name, kernel)
        if len(found) == learn_count + test_count:
            break
    test = sorted(found, key=lambda name: uniform_draw(name, seed))[:test_count]
    learn = [name for name in found if name not in test]
    return AddPlan(tuple(learn), tuple(test), tuple(found.values()))


def _drawn_kernels(seed: int) -> Iterator[str]:
    """Yields kernels as networks have them, and after every two of them one of any other kind."""
    others = iter(drawn_names(MOST_TASKS, seed))
    for number, kernel in enumerate(kernel_names(seed), start=1):
        yield kernel
        if number % 2 == 0:
            yield from islice(others, 1)


def make_plan(
    samples: Samples, card: ModelCard, target_kind: str, *, measure_s: float, seed: int
) -> AddPlan:
    """Chooses tasks that are outside the model's training data of all devices.

    Test tasks are random; k-means chooses the training tasks among the others.

    Args:
        samples: programs that can be measured; their latencies are ignored.
        card: card of the model to start from.
        target_kind: kind of the device's target, such as `llvm` or `cuda`.
        measure_s: seconds of measuring.

    Raises:
        DataError: too few tasks are available.
    """
    names = np.array([str(task) for task in samples.programs.tasks], object)
    present = np.unique(samples.task_id)
    fits = [
        int(task)
        for task in present
        if names[task].rpartition("|")[2] == target_kind
        and task_digest(names[task]) not in card.training_tasks
    ]
    free = of_tasks(samples, np.array(fits, np.int64))
    workloads = workload_count(free) if len(free) else 0
    if workloads < _LEAST_WORKLOADS:
        raise DataError(
            f"the dataset has {counted(workloads, 'different task')} of target kind "
            f"{target_kind!r} that the model was not trained on, expected at least "
            f"{_LEAST_WORKLOADS}; give a folder in Tenset's layout with them: --dataset DIR"
        )
    learn_count, test_count = task_counts(measure_s, workloads)
    drawn = sorted(fits, key=lambda task: uniform_draw(str(names[task]), seed))
    test = np.array(_different_workloads(free, drawn, test_count), np.int64)
    candidates = of_tasks(free, untouched_tasks(free, test))
    count = min(learn_count, workload_count(candidates))
    learn = choose_tasks(candidates, count, method="kmeans", seed=seed)
    return AddPlan(tuple(names[learn]), tuple(names[test]))


def _different_workloads(samples: Samples, tasks: list[int], count: int) -> list[int]:
    """Returns the first `count` tasks such that no two share a workload."""
    chosen: list[int] = []
    left: NDArray[np.int64] = np.array(tasks, np.int64)
    for task in tasks:
        if len(chosen) == count:
            break
        if task in left:
            chosen.append(task)
            left = untouched_tasks(samples, np.array(chosen, np.int64))
    return chosen
