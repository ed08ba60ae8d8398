"""Leaf vectors of a program pooled to one row, for models that take a fixed number of columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import ProgramArrays

_CHUNK_PROGRAMS = 20_000


def pooled_features(programs: ProgramArrays, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns float32 [len(rows), 2F + 1]: sum and maximum of each leaf column, and the number of
    leaves.

    F counts the columns of `leaf_features` and `leaf_extra`. A program without leaves has zeros.

    Args:
        rows: int64, programs to pool.
    """
    width = programs.leaf_features.shape[1] + programs.leaf_extra.shape[1]
    pooled = np.zeros((len(rows), 2 * width + 1), np.float32)
    counts = np.diff(programs.leaf_offset)[rows]
    pooled[:, -1] = counts
    for start in range(0, len(rows), _CHUNK_PROGRAMS):
        part = np.arange(start, min(start + _CHUNK_PROGRAMS, len(rows)))
        part = part[counts[part] > 0]
        if len(part) == 0:
            continue
        leaves = leaf_matrix(programs, leaf_rows(programs, rows[part]))
        first = np.concatenate([[0], np.cumsum(counts[part])[:-1]])
        pooled[part, :width] = np.add.reduceat(leaves.astype(np.float64), first, axis=0)
        pooled[part, width:-1] = np.maximum.reduceat(leaves, first, axis=0)
    return pooled


def leaf_rows(programs: ProgramArrays, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the leaf rows of the given programs, program after program."""
    first = programs.leaf_offset[rows]
    counts = programs.leaf_offset[rows + 1] - first
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    return np.repeat(first - starts, counts) + np.arange(counts.sum(), dtype=np.int64)


def leaf_matrix(programs: ProgramArrays, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns float32 [len(rows), F], the leaf features beside the extra columns."""
    return np.concatenate(
        [np.asarray(programs.leaf_features[rows]), np.asarray(programs.leaf_extra[rows])], axis=1
    )
