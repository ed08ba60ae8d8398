"""Samples grouped by program, and batches of programs."""

from __future__ import annotations

import numpy as np

from cdmpp.arrays import IntArray, items_of
from cdmpp.datasets.samples import Samples


class ProgramGroups:
    """The distinct programs of samples, so that each is encoded once for all its devices.

    Attributes:
        program_rows: int64 [P], rows in the program arrays, ascending.
        leaf_count: int64 [P], number of leaves.
        task: int64 [P], id of the task.
    """

    def __init__(self, samples: Samples) -> None:
        self._order = np.argsort(samples.program, kind="stable")
        self.program_rows, first = np.unique(samples.program[self._order], return_index=True)
        self._first = np.append(first, len(samples)).astype(np.int64)
        self.leaf_count = np.diff(samples.programs.leaf_offset)[self.program_rows]
        self.task = samples.programs.task_id[self.program_rows]

    def __len__(self) -> int:
        """Returns the number of distinct programs."""
        return len(self.program_rows)

    def samples_of(self, programs: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the samples of the chosen programs, ordered by program, and their owners.

        Args:
            programs: int64, indices into `program_rows`.

        Returns:
            Rows of the samples, and the index of each sample's program in `programs`.
        """
        places, owner = items_of(self._first, programs)
        return self._order[places], owner

    def sample_rows(self, programs: IntArray) -> IntArray:
        """Returns the sample rows of `samples_of`."""
        return self.samples_of(programs)[0]

    def in_order(self, programs_per_batch: int) -> list[IntArray]:
        """Returns deterministic batches of similar leaf counts that cover every program once."""
        order = np.argsort(self.leaf_count, kind="stable").astype(np.int64)
        return cut(order, programs_per_batch)

    def shuffled(
        self, programs_per_batch: int, programs_per_task: int, *, seed: int, epoch: int
    ) -> list[IntArray]:
        """Returns the batches of an epoch, a pure function of the arguments.

        Programs of one task stay together in groups of `programs_per_task`; the order of groups is
        random.
        """
        rng = np.random.default_rng([seed, epoch])
        return cut(np.concatenate(self._task_groups(programs_per_task, rng)), programs_per_batch)

    def _task_groups(self, most: int, rng: np.random.Generator) -> list[IntArray]:
        """Returns groups of up to `most` programs of one task that cover every program once.

        Programs within a task and groups are in random order.
        """
        by_task = rng.permutation(len(self)).astype(np.int64)
        by_task = by_task[np.argsort(self.task[by_task], kind="stable")]
        groups = _cut_where_changed(by_task, self.task, most)
        return [groups[i] for i in rng.permutation(len(groups))]


def cut(values: IntArray, size: int) -> list[IntArray]:
    """Returns consecutive parts of `size` entries; the last one may be shorter."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def _cut_where_changed(order: IntArray, key: IntArray, size: int) -> list[IntArray]:
    """Splits `order` into parts of at most `size` entries with the same `key`."""
    boundaries = np.flatnonzero(np.diff(key[order])) + 1
    return [part for run in np.split(order, boundaries) for part in cut(run, size)]
