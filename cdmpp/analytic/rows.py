"""Base class of tables stored as columns of equal length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """N rows. A subclass is a frozen dataclass of columns: arrays [N], other `Rows`, or mappings of
    name -> column. Any other field applies to all rows.
    """

    def __len__(self) -> int:
        columns = (getattr(self, one.name) for one in fields(self))
        return next(len(column) for column in columns if isinstance(column, np.ndarray | Rows))

    def __getitem__(self, rows: NDArray[np.integer[Any]] | NDArray[np.bool_]) -> Self:
        """Returns the selected rows, by index or by mask, as an array does."""
        return replace(self, **{f.name: _taken(getattr(self, f.name), rows) for f in fields(self)})

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Returns the rows of several tables in order; fields of all rows are the first table's."""
        columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        return replace(parts[0], **{name: _joined(column) for name, column in columns.items()})


def _taken(column: Any, rows: Any) -> Any:
    if isinstance(column, np.ndarray | Rows):
        return column[rows]
    if isinstance(column, Mapping):
        return {name: _taken(own, rows) for name, own in column.items()}
    return column


def _joined(columns: Sequence[Any]) -> Any:
    first = columns[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(columns)
    if isinstance(first, Rows):
        return type(first).concatenate(columns)
    if isinstance(first, Mapping):
        return {name: _joined([column[name] for column in columns]) for name in first}
    return first
