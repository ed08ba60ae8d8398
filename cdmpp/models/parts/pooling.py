"""Leaf vectors of programs as matrices with chosen extra columns, and pooled to one row."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray, items_of
from cdmpp.datasets.samples import ProgramArrays, Samples, UnlikeColumns
from cdmpp.errors import DataError, UsageError
from cdmpp.models.parts.normalise import Normalisation
from cdmpp.programs.added_columns import EXTRA_BLOCKS, LEAF_EXTRA_COUNT

_CHUNK_PROGRAMS = 2_000
_FEW_LEAVES = 20_000


def extra_columns(blocks: Sequence[str]) -> NDArray[np.int64]:
    """Returns int64 [k], the columns of `leaf_extra` in the named blocks, ascending.

    Args:
        blocks: names from `cdmpp.programs.added_columns.EXTRA_BLOCKS`, in any order.

    Raises:
        UsageError: a block is unknown.
    """
    chosen = np.zeros(LEAF_EXTRA_COUNT, bool)
    for block in blocks:
        if block not in EXTRA_BLOCKS:
            near = difflib.get_close_matches(block, list(EXTRA_BLOCKS), n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"unknown block of extra leaf columns: {block!r}; {hint}"
                f"the blocks are {', '.join(EXTRA_BLOCKS)}"
            )
        chosen[EXTRA_BLOCKS[block]] = True
    return np.flatnonzero(chosen).astype(np.int64)


def pooled_features(
    programs: ProgramArrays,
    rows: NDArray[np.int64],
    blocks: Sequence[str] | None = None,
    *,
    totals: bool = False,
) -> NDArray[np.float32]:
    """Returns float32 [len(rows), 2F + 1 or 3F + 1], leaf columns pooled per program.

    The columns are the sum and the maximum of each leaf column, the number of leaves and, with
    `totals`, the sum of each column before its logarithm. Leaf columns hold sign(x) log2(|x| + 1),
    and so do the totals.

    F counts the columns of `leaf_features` and the chosen ones of `leaf_extra`. A program without
    leaves has zeros.

    Args:
        programs: the programs that `rows` refers to.
        rows: int64, programs to pool.
        blocks: as in `leaf_matrix`.
        totals: whether to add the totals.

    Raises:
        UsageError: a block is unknown.
        DataError: the programs do not have these columns.
    """
    width = programs.leaf_features.shape[1] + len(_chosen(programs, blocks))
    pooled = np.zeros((len(rows), (3 if totals else 2) * width + 1), np.float32)
    counts = np.diff(programs.leaf_offset)[rows]
    for start in range(0, len(rows), _CHUNK_PROGRAMS):
        part = np.arange(start, min(start + _CHUNK_PROGRAMS, len(rows)))
        part = part[counts[part] > 0]
        if len(part) == 0:
            continue
        part = part[np.argsort(counts[part], kind="stable")]
        leaves = unlike_columns(programs, leaf_rows(programs, rows[part]), blocks)
        place = 0
        for group in _pools(leaves, counts[part], totals):
            pooled[part, place : place + group.shape[1]] = group
            place += group.shape[1]
    return pooled


def _pools(leaves: UnlikeColumns, counts: NDArray[np.int64], totals: bool) -> list[NDArray[Any]]:
    """Returns the column groups of `pooled_features` for programs sorted by number of leaves."""
    values, unlike, first = leaves.values, leaves.columns, leaves.first
    exact, count = values.astype(np.float64), counts[:, None].astype(np.float64)
    blocks = _blocks(counts)
    most = np.repeat(first[None], len(counts), axis=0)
    most[:, unlike] = _reduced(np.maximum, values, blocks)
    sums = count * first
    sums[:, unlike] = _reduced(np.add, exact, blocks)
    if not totals:
        return [sums, most, count]
    total = count * _undone(first.astype(np.float64))
    total[:, unlike] = _reduced(np.add, _undone(exact), blocks)
    return [sums, most, count, _done(total)]


def _undone(values: FloatArray) -> FloatArray:
    """Inverts sign(x) log2(|x| + 1)."""
    found = np.abs(values)
    np.exp2(found, out=found)
    found -= 1.0
    return np.copysign(found, values, out=found)


def _done(values: FloatArray) -> FloatArray:
    """Returns sign(x) log2(|x| + 1)."""
    found = np.abs(values)
    found += 1.0
    np.log2(found, out=found)
    return np.copysign(found, values, out=found)


def _blocks(counts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Returns (programs, rows of each) of consecutive programs with equally many rows.

    Args:
        counts: [P], rows per program, ascending.
    """
    sizes, programs = np.unique(counts, return_counts=True)
    return list(zip(programs.tolist(), sizes.tolist(), strict=True))


def _reduced(
    function: np.ufunc, values: NDArray[Any], blocks: list[tuple[int, int]]
) -> NDArray[Any]:
    """Returns [P, C], the reduction of each program's rows.

    Args:
        values: [L, C], concatenated rows of programs.
        blocks: see `_blocks`.
    """
    columns = values.shape[1]
    found, leaf = [], 0
    for programs, count in blocks:
        stop = leaf + count * programs
        found.append(function.reduce(values[leaf:stop].reshape(programs, count, columns), axis=1))
        leaf = stop
    return np.concatenate(found)


def fit_leaves(train: Samples, blocks: Sequence[str] | None = None) -> Normalisation:
    """Returns the statistics of the leaves of a training part; each program counts once.

    Leaves are read in chunks.
    """
    programs, rows = train.programs, np.unique(train.program)

    def parts() -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(rows), _CHUNK_PROGRAMS):
            leaves = leaf_rows(programs, rows[start : start + _CHUNK_PROGRAMS])
            if len(leaves):
                yield leaf_matrix(programs, leaves, blocks)

    return Normalisation.fit_parts(parts)


def leaf_rows(programs: ProgramArrays, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the leaf rows of the given programs, ordered by program."""
    return items_of(programs.leaf_offset, rows)[0]


def leaf_matrix(
    programs: ProgramArrays, rows: NDArray[np.int64], blocks: Sequence[str] | None = None
) -> NDArray[np.float32]:
    """Returns float32 [len(rows), F], the leaf features and the chosen extra columns.

    Args:
        programs: the programs that `rows` refers to.
        rows: int64, leaves.
        blocks: blocks of the extra columns (see `extra_columns`); None = all columns of the
            programs, empty = none.

    Raises:
        UsageError: a block is unknown.
        DataError: the programs do not have these columns.
    """
    features = np.asarray(programs.leaf_features[rows])
    columns = _chosen(programs, blocks)
    if len(columns) == 0:
        return features
    extra = np.asarray(programs.leaf_extra[rows])
    if len(columns) < extra.shape[1]:
        extra = extra[:, columns]
    return np.concatenate([features, extra], axis=1)


def unlike_columns(
    programs: ProgramArrays, rows: NDArray[np.int64], blocks: Sequence[str] | None = None
) -> UnlikeColumns:
    """Returns the result of `leaf_matrix` with columns of common values stored once.

    Small sets of programs use the common values of all their leaves, which are cached.
    """
    if blocks is not None or len(programs.leaf_position) > _FEW_LEAVES:
        return UnlikeColumns.of(leaf_matrix(programs, rows, blocks))
    found = programs.unlike_columns
    if np.array_equal(rows, np.arange(len(found.values))):
        return found
    return replace(found, values=found.values[rows])


def columns_of(
    programs: ProgramArrays, wanted: slice, blocks: Sequence[str] | None
) -> NDArray[np.int64] | None:
    """Returns int64 [k], the indices of the wanted columns of `leaf_extra` in `leaf_matrix`.

    None if the programs or the chosen blocks lack any of them.

    Args:
        programs: the programs of the matrix.
        wanted: columns of `leaf_extra`, ascending.
        blocks: as in `leaf_matrix`.
    """
    if programs.leaf_extra.shape[1] < wanted.stop:
        return None
    chosen = _chosen(programs, blocks)
    places = np.flatnonzero((chosen >= wanted.start) & (chosen < wanted.stop))
    if len(places) < wanted.stop - wanted.start:
        return None
    return np.asarray(programs.leaf_features.shape[1] + places, np.int64)


def _chosen(programs: ProgramArrays, blocks: Sequence[str] | None) -> NDArray[np.int64]:
    """Returns the chosen columns of `leaf_extra`."""
    width = programs.leaf_extra.shape[1]
    if blocks is None:
        return np.arange(width, dtype=np.int64)
    columns = extra_columns(blocks)
    if len(columns) and width <= columns[-1]:
        raise DataError(
            f"the programs have {width} extra leaf columns, expected more than {columns[-1]} to "
            f"choose {', '.join(blocks)} from; extract them again with `cdmpp dataset extract`"
        )
    return columns
