"""Selection of the tasks to measure on a new device, from programs without measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.datasets.splits import workload_of
from cdmpp.errors import UsageError
from cdmpp.text import nearest

SamplingMethod = Literal["kmeans", "random", "k-center"]


#: Maximum number of programs per task for clustering: bounds time and memory, and keeps a task
#: with thousands of schedules from getting every cluster.
_MOST_PROGRAMS_PER_TASK = 64


def choose_tasks(
    samples: Samples, count: int, *, method: SamplingMethod = "kmeans", seed: int
) -> IntArray:
    """Returns int64 [count], distinct tasks of `samples`, best first.

    Uses only the programs of `samples`, never `latency_s`, because the selection is made before
    the measurements. Tasks of a workload that is already selected come last.

    `kmeans`: clusters the programs (pooled, standardised leaf columns) into `count` clusters; each
    cluster, in descending size, takes the free task with the smallest mean distance to its centre.
    `k-center`: takes the task nearest to the mean of all, then repeatedly the task farthest from
    the selected ones; the seed only affects which programs of large tasks are used. `random`: each
    set of tasks is equally likely, apart from the rule on workloads.

    Args:
        count: number of tasks, from 1 to the number of tasks of `samples`.
        seed: seed of all random draws; equal arguments give equal tasks.

    Raises:
        UsageError: the method is unknown, or `count` is out of range.

    Source: task sampling of CDMPP (KMeans, clusters by size, nearest task).
    Differs from the paper: programs with any number of leaves are clustered together, on pooled
    columns.
    """
    if method not in get_args(SamplingMethod):
        known = get_args(SamplingMethod)
        raise UsageError(
            f"unknown way to choose tasks {method!r}{nearest(str(method), known)}; expected one of "
            f"{', '.join(known)}"
        )
    tasks = np.unique(samples.task_id)
    if not 1 <= count <= len(tasks):
        raise UsageError(
            f"cannot choose {count} of {len(tasks)} tasks; expected a number from 1 to {len(tasks)}"
        )
    rng = np.random.default_rng(seed)
    taken = _Taken(samples.programs, tasks)
    if method == "random":
        for _ in range(count):
            taken.take(rng.permutation(len(tasks)).astype(np.float64))
    else:
        points = _Points.of(samples, tasks, rng)
        # Equal programs have no columns to cluster by.
        choose = _by_kmeans if method == "kmeans" and points.values.size else _by_k_center
        choose(points, count, seed, taken)
    return tasks[np.array(taken.order, np.int64)]


def untouched_tasks(samples: Samples, chosen: IntArray) -> IntArray:
    """Returns int64, sorted: tasks of `samples` that share no workload with the chosen ones.

    A model adapted to the chosen tasks can be evaluated on them.
    """
    tasks = np.unique(samples.task_id)
    seen = {workload_of(samples.programs.tasks[task]) for task in chosen}
    is_untouched = [workload_of(samples.programs.tasks[task]) not in seen for task in tasks]
    untouched: IntArray = tasks[np.array(is_untouched, bool)]
    return untouched


def workload_count(samples: Samples) -> int:
    """Returns the number of distinct workloads of the tasks of `samples`."""
    tasks = np.unique(samples.task_id)
    return len({workload_of(samples.programs.tasks[task]) for task in tasks})


class _Taken:
    """The tasks chosen so far."""

    def __init__(self, programs: ProgramArrays, tasks: IntArray) -> None:
        names = [workload_of(programs.tasks[task]) for task in tasks]
        self._workload = np.unique(np.array(names, dtype=str), return_inverse=True)[1]
        self._uses = np.zeros(int(self._workload.max()) + 1, np.int64)
        self._is_free = np.ones(len(tasks), bool)
        self.order: list[int] = []

    def take(self, cost: FloatArray) -> None:
        """Takes the free task with the lowest cost among those with the least used workloads.

        Args:
            cost: float64 [task].
        """
        free = np.flatnonzero(self._is_free)
        uses = self._uses[self._workload[free]]
        best = int(free[np.lexsort((cost[free], uses))[0]])
        self._is_free[best] = False
        self._uses[self._workload[best]] += 1
        self.order.append(best)


@dataclass(frozen=True)
class _Points:
    """Programs as points.

    Attributes:
        values: float64 [program, column], standardised.
        owner: int64 [program], index of the program's task, non-decreasing.
        first: int64 [task], first program of each task.
    """

    values: FloatArray
    owner: IntArray
    first: IntArray

    @classmethod
    def of(cls, samples: Samples, tasks: IntArray, rng: np.random.Generator) -> _Points:
        """Returns the points of at most `_MOST_PROGRAMS_PER_TASK` programs of each task."""
        programs = np.unique(samples.program)
        owner = np.searchsorted(tasks, samples.programs.task_id[programs])
        kept = []
        for place in range(len(tasks)):
            own = programs[owner == place]
            if len(own) > _MOST_PROGRAMS_PER_TASK:
                own = np.sort(rng.choice(own, _MOST_PROGRAMS_PER_TASK, replace=False))
            kept.append(own)
        sizes = np.array([len(own) for own in kept], np.int64)
        values = _pooled(samples.programs, np.concatenate(kept))
        deviation = values.std(axis=0)
        varies = deviation > 1e-6
        values = (values[:, varies] - values[:, varies].mean(axis=0)) / deviation[varies]
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        return cls(values, np.repeat(np.arange(len(tasks), dtype=np.int64), sizes), first)

    def task_means(self, per_program: FloatArray) -> FloatArray:
        """Returns the mean over each task's programs of float64 [program, ...]."""
        sums: FloatArray = np.add.reduceat(per_program, self.first, axis=0)
        counts = np.bincount(self.owner).astype(np.float64)
        means: FloatArray = (sums.T / counts).T
        return means


def _pooled(programs: ProgramArrays, rows: IntArray) -> FloatArray:
    """Returns float64 [len(rows), 2F + 1]: mean and maximum of every leaf column, and the log of
    the number of leaves; zeros for a program without leaves.
    """
    width = programs.leaf_features.shape[1] + programs.leaf_extra.shape[1]
    result = np.zeros((len(rows), 2 * width + 1))
    for place, row in enumerate(rows):
        leaves = slice(int(programs.leaf_offset[row]), int(programs.leaf_offset[row + 1]))
        if leaves.stop == leaves.start:
            continue
        table = np.concatenate([programs.leaf_features[leaves], programs.leaf_extra[leaves]], 1)
        result[place, :width] = table.mean(axis=0)
        result[place, width:-1] = table.max(axis=0)
        result[place, -1] = np.log(len(table))
    return result


def _by_kmeans(points: _Points, count: int, seed: int, taken: _Taken) -> None:
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # With fewer distinct programs than clusters, the surplus clusters are empty and come last.
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters = KMeans(count, n_init=4, random_state=seed).fit(points.values)
    size = np.bincount(clusters.labels_, minlength=count)
    for cluster in np.argsort(-size, kind="stable"):
        distance = np.linalg.norm(points.values - clusters.cluster_centers_[cluster], axis=1)
        taken.take(points.task_means(distance))


def _by_k_center(points: _Points, count: int, seed: int, taken: _Taken) -> None:
    means = points.task_means(points.values)
    taken.take(np.linalg.norm(means - means.mean(axis=0), axis=1))
    nearest = np.full(len(means), np.inf)
    for _ in range(count - 1):
        nearest = np.minimum(nearest, np.linalg.norm(means - means[taken.order[-1]], axis=1))
        taken.take(-nearest)
