"""Conformal intervals from correlated groups of errors: half widths, and ends for an unseen group.

Every error has an owner (a task, an architecture). The errors of one owner are correlated, so the
effective sample size is the number of owners. Errors are also grouped by column (device) and kind
(operator kind), or by one of the two; every (column, kind) cell has its own scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import BoolArray, FloatArray, IntArray

#: Weight of the parent scale when a group's scale is shrunk towards it, in owners.
_PRIOR_OWNERS = 10.0
_LEAST_SCALE = 1e-6
_LEVELS = np.linspace(0.5, 1.0, 201)


@dataclass(frozen=True)
class HalfWidths:
    """Half widths of intervals, in the unit of the errors.

    Attributes:
        level: level of the quantile of the normalised errors, see `half_widths`.
        pooled: for samples outside every known group.
        by_column: float64 [columns].
        by_row_kind: float64 [kinds].
        by_cell: float64 [columns, kinds].
    """

    level: float
    pooled: float
    by_column: FloatArray
    by_row_kind: FloatArray
    by_cell: FloatArray


def half_widths(
    error: FloatArray,
    owner: IntArray,
    column: IntArray,
    kind: IntArray,
    *,
    columns: int,
    kinds: int,
    coverage: float,
) -> HalfWidths:
    """Returns half widths per group that contain `coverage` of the errors of a new owner.

    Errors are divided by the scale of their (column, kind): the mean error of its owners, shrunk
    towards the product of the column's and the kind's scales when there are few owners. One
    quantile of these normalised errors, with equal weight per owner, times the scale is the half
    width of a group. The level of the quantile is calibrated by leave-one-owner-out: the smallest
    level, at least `coverage`, at which intervals (and scales) from all other owners cover
    `coverage` of the left-out owner's errors, on average over owners.

    Args:
        error: float64 [N], absolute errors.
        owner: int64 [N], 0 to owners - 1; every owner occurs.
        column: int64 [N], 0 to columns - 1.
        kind: int64 [owners], 0 to kinds - 1.
        coverage: in (0, 1); see `least_owners` for the number of owners it needs.

    Source: split conformal prediction for groups of correlated samples (Dunn, Wasserman and
    Ramdas 2018; Lee, Barber and Willett 2023), with the leave-one-owner-out level in place of their
    conservative bound.
    """
    table = _ErrorTable.of(error, owner, column, kind, columns, kinds)
    level = _level(table, error, owner, column, coverage)
    scale = table.scales(np.ones(len(kind), bool))
    factor = owner_quantile(error / scale.cell[column, kind[owner]], owner, level)
    return HalfWidths(
        level=level,
        pooled=factor * scale.all,
        by_column=factor * scale.column,
        by_row_kind=factor * scale.kind,
        by_cell=factor * scale.cell,
    )


def least_owners(coverage: float) -> int:
    """Returns the minimum number of owners for an interval of this coverage:
    coverage / (1 - coverage), 9 for 90 %. With fewer owners the interval is undetermined, however
    many errors there are.
    """
    return math.ceil(round(coverage / (1.0 - coverage), 6))


def owner_means(values: FloatArray, owner: IntArray) -> FloatArray:
    """Returns float64 [owners], the mean of each owner's values."""
    return np.asarray(np.bincount(owner, values) / np.bincount(owner))


def owner_quantile(values: FloatArray, owner: IntArray, level: float) -> float:
    """Returns the quantile of the values with equal weight per owner."""
    return float(_quantiles(values, owner, np.array([level]))[0])


def unseen_group_ends(groups: Sequence[FloatArray], coverage: float = 0.9) -> tuple[float, float]:
    """Returns lower and upper logarithmic corrections of an interval for an unseen group, with
    equal weight per group: quantiles of all groups, shifted to cover `coverage` of the errors of
    each group by the quantiles of the others.

    Args:
        groups: float64 [rows, 2] each, at least one: log(measured / end) for both ends of a
            prediction.

    Source: conformalized quantile regression (arXiv 1905.03222).
    """
    levels = (1.0 - coverage) / 2, (1.0 + coverage) / 2
    low, high = _end_quantiles(groups, levels)
    if len(groups) > 1:
        beside = []
        for place, own in enumerate(groups):
            least, most = _end_quantiles([*groups[:place], *groups[place + 1 :]], levels)
            beside.append(np.maximum(least - own[:, 0], own[:, 1] - most))
        margin = _group_quantile(beside, coverage)
        low, high = low - margin, high + margin
    return low, high


def _end_quantiles(
    groups: Sequence[FloatArray], levels: tuple[float, float]
) -> tuple[float, float]:
    low, high = (
        _group_quantile([one[:, place] for one in groups], level)
        for place, level in enumerate(levels)
    )
    return low, high


def _group_quantile(groups: Sequence[FloatArray], level: float) -> float:
    owner = np.repeat(np.arange(len(groups)), [len(one) for one in groups])
    return owner_quantile(np.concatenate(groups), owner, level)


@dataclass(frozen=True)
class _Scales:
    """Mean errors overall, per column, per kind and per cell, each shrunk towards its parent."""

    all: float
    column: FloatArray
    kind: FloatArray
    cell: FloatArray


@dataclass(frozen=True)
class _ErrorTable:
    """Mean error of each (owner, column).

    Attributes:
        mean: float64 [owners, columns], NaN where an owner has no error in a column.
        kind: int64 [owners].
        kinds: number of kinds.
    """

    mean: FloatArray
    kind: IntArray
    kinds: int

    @classmethod
    def of(
        cls,
        error: FloatArray,
        owner: IntArray,
        column: IntArray,
        kind: IntArray,
        columns: int,
        kinds: int,
    ) -> _ErrorTable:
        owners = len(kind)
        cell = owner * columns + column
        count = np.bincount(cell, minlength=owners * columns)
        total = np.bincount(cell, error, minlength=owners * columns)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        return cls(mean.reshape(owners, columns), kind, kinds)

    def scales(self, chosen: BoolArray) -> _Scales:
        """Returns the scales from the chosen owners."""
        mean = self.mean[chosen]
        is_there = np.isfinite(mean)
        filled = np.where(is_there, mean, 0.0)
        of_owner = filled.sum(axis=1) / np.maximum(is_there.sum(axis=1), 1)
        everything = max(float(of_owner.mean()), _LEAST_SCALE)
        column = _drawn(filled.sum(axis=0), is_there.sum(axis=0), everything)
        member = self.kind[chosen][:, None] == np.arange(self.kinds)[None, :]
        kind = _drawn(of_owner @ member, member.sum(axis=0), everything)
        parent = column[:, None] * kind[None, :] / everything
        cell = _drawn(
            filled.T @ member.astype(np.float64),
            is_there.T.astype(np.float64) @ member.astype(np.float64),
            parent,
        )
        return _Scales(everything, column, kind, cell)


def _drawn(total: NDArray[Any], count: NDArray[Any], parent: FloatArray | float) -> FloatArray:
    """Returns the means total / count, shrunk towards the parent for small counts."""
    return np.asarray((total + _PRIOR_OWNERS * parent) / (count + _PRIOR_OWNERS), np.float64)


def _level(
    table: _ErrorTable, error: FloatArray, owner: IntArray, column: IntArray, coverage: float
) -> float:
    """Returns the leave-one-owner-out level of the quantile, see `half_widths`."""
    levels = _LEVELS[coverage - 1e-9 <= _LEVELS]
    covered = np.zeros(len(levels))
    owners = len(table.kind)
    for left_out in range(owners):
        inside = owner != left_out
        scale = table.scales(np.arange(owners) != left_out)
        normalised = error / scale.cell[column, table.kind[owner]]
        bound = _quantiles(normalised[inside], owner[inside], levels)
        covered += np.mean(normalised[~inside][:, None] <= bound[None, :], axis=0)
    enough = np.flatnonzero(covered / owners >= coverage - 1e-9)
    return float(levels[enough[0]] if len(enough) else 1.0)


def _quantiles(values: FloatArray, owner: IntArray, levels: FloatArray) -> FloatArray:
    """Returns the quantiles of the values with equal weight per owner."""
    count = np.bincount(owner)
    order = np.argsort(values, kind="stable")
    weight = np.cumsum(1.0 / count[owner[order]])
    place = np.searchsorted(weight / weight[-1], levels - 1e-9)
    return np.asarray(values[order][np.minimum(place, len(values) - 1)])
