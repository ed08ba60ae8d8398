"""Reads tables of measurements with a family's columns; errors name file, row and column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.errors import CdmppError, DataError
from cdmpp.files.open_text import csv_rows, read_text


@dataclass(frozen=True)
class TableFile:
    """A table of text cells.

    Attributes:
        path: file that the table was read from, for error texts.
        columns: name -> cells [N].
        rows: number of each row in the file; the first row below the titles is 1.
    """

    path: Path
    columns: Mapping[str, Sequence[str]]
    rows: Sequence[int]

    @classmethod
    def read(
        cls,
        path: Path,
        needed: Sequence[str],
        *,
        what: str,
        other_names: Mapping[str, str] | None = None,
    ) -> Self:
        """Reads a CSV file (`.csv`, `.csv.gz`) with titles in its first row, or a Parquet file.

        Args:
            needed: columns that the file must have; it may have more.
            what: contents of the table, for error texts.
            other_names: column -> alternative title.

        Raises:
            DataError: the file cannot be read, lacks a column or has no rows, two columns have the
                same title, or a row has more cells than titles.
        """
        path = Path(path)
        expected = f"a table of {what}"
        is_parquet = path.suffix == ".parquet"
        lines = _parquet_rows(path) if is_parquet else csv_rows(read_text(path, expected=expected))
        titles, cells = (lines[0], lines[1:]) if lines else ([], [])
        twice = [title for title in titles if title and titles.count(title) > 1]
        if twice:
            raise DataError(f"{path}: several columns have the title {twice[0]!r}; expected one")
        for row, line in enumerate(cells, 1):
            if any(line[len(titles) :]):
                raise DataError(
                    f"{path}: row {row} has {len(line)} cells; expected {len(titles)}, one for "
                    "each title"
                )
        columns = {
            title: [line[place] if place < len(line) else "" for line in cells]
            for place, title in enumerate(titles)
        }
        for name, other in (other_names or {}).items():
            if other in columns and name not in columns:
                columns[name] = columns.pop(other)
        missing = [name for name in needed if name not in columns]
        if missing:
            raise DataError(
                f"{path}: no column {', '.join(missing)}; got {', '.join(titles) or 'none'}, "
                f"expected {', '.join(needed)}"
            )
        if not cells:
            raise DataError(f"{path}: no rows; expected a table of {what}")
        return cls(path, columns, range(1, len(cells) + 1))

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, name: str, value: str) -> TableFile:
        """Returns the rows that have a value in a column."""
        at = [row for row, cell in enumerate(self.columns[name]) if cell == value]
        columns = {title: [cells[row] for row in at] for title, cells in self.columns.items()}
        return TableFile(self.path, columns, [self.rows[row] for row in at])

    def values(self, name: str, read: Callable[[str], Any]) -> list[Any]:
        """Returns the values [N] of a column.

        Args:
            read: text of a cell -> its value; raises ValueError or a `CdmppError`.

        Raises:
            DataError: no such column, or a cell that cannot be read.
        """
        if name not in self.columns:
            raise DataError(f"{self.path}: no column {name}; got {', '.join(self.columns)}")
        found = []
        for row, cell in zip(self.rows, self.columns[name], strict=True):
            try:
                found.append(read(cell))
            except CdmppError as error:
                raise DataError(f"{self.path}: row {row}, column {name!r}: {error}") from None
            except ValueError:
                raise DataError(
                    f"{self.path}: row {row}, column {name!r}: cannot read {cell!r} as "
                    f"{_EXPECTED.get(read, 'a value of this column')}"
                ) from None
        return found

    def numbers(self, name: str, *, scale: float = 1.0) -> FloatArray:
        """Returns float64 [N], the numbers of a column times `scale` (the unit of the file)."""
        return np.array(self.values(name, float)) * scale

    def times(self, name: str, *, scale: float = 1.0) -> FloatArray:
        """Returns float64 [N], the numbers of a column, all above 0, times `scale`."""
        return np.array(self.values(name, positive)) * scale

    def devices(self) -> list[str]:
        """Returns the labels [N] of the column `device`, as the registry names them.

        Raises:
            DeviceError: a device is unknown.
        """
        from cdmpp.devices.registry import get_device

        label = {name: get_device(name).name for name in set(self.columns["device"])}
        return [label[name] for name in self.columns["device"]]


def _parquet_rows(path: Path) -> list[list[str]]:
    """Returns the titles and the cells of a Parquet file as text; null becomes ""."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot read the table ({error})") from None
    columns = [
        ["" if cell is None else str(cell) for cell in one.to_pylist()] for one in table.columns
    ]
    return [table.column_names, *map(list, zip(*columns, strict=True))]


def positive(text: str) -> float:
    """Parses a finite number above 0.

    Raises:
        ValueError: `text` is not such a number.
    """
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def whole(text: str) -> int:
    """Parses a whole number, which may be written as `64.0`.

    Raises:
        ValueError: `text` is not such a number.
    """
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


_EXPECTED: Mapping[Callable[[str], Any], str] = {
    float: "a number", positive: "a number above 0",
    **dict.fromkeys((int, whole), "a whole number"),
}  # fmt: skip
