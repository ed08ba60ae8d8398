"""Shapes of embedding lookups, and their presets."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from cdmpp.config import load_config
from cdmpp.errors import DataError, UsageError

#: DRAM and L2 move whole sectors of this size.
SECTOR_BYTES = 32

Pass = Literal["forward", "backward-sgd", "backward-adagrad", "backward-dense"]
PASSES: tuple[Pass, ...] = ("forward", "backward-sgd", "backward-adagrad", "backward-dense")


def in_sectors(size_bytes: int) -> int:
    """Returns a size in bytes, rounded up to whole sectors of 32 bytes."""
    return -(-size_bytes // SECTOR_BYTES) * SECTOR_BYTES


@dataclass(frozen=True)
class EmbeddingShape:
    """The sum of `lookups` rows from each of `tables` tables, for every sample of a batch.

    Attributes:
        batch: number of samples.
        rows: rows of one table.
        tables: number of tables, all of this size.
        lookups: rows that one sample reads from one table (the length of a bag).
        width: float32 values per row.
        rows_per_block: samples (warps) per thread block of a GPU; a CPU ignores it.

    Raises:
        DataError: a value below 1.
    """

    batch: int
    rows: int
    tables: int
    lookups: int
    width: int
    rows_per_block: int = 4

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DataError(
                    f"embedding shape: {entry.name} is {value!r}, expected a whole number from 1 up"
                )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return 4 * self.width

    @property
    def row_sector_bytes(self) -> int:
        """Bytes moved by reading one row: whole sectors."""
        return in_sectors(self.row_bytes)

    @property
    def index_sector_bytes(self) -> int:
        """Bytes moved by reading the 4-byte indices of one bag: whole sectors."""
        return in_sectors(4 * self.lookups)

    @property
    def bag_row_bytes(self) -> int:
        """Bytes of the rows of one bag, in whole sectors."""
        return self.lookups * self.row_sector_bytes

    @property
    def lookup_count(self) -> int:
        """Number of row reads of the whole operator."""
        return self.batch * self.tables * self.lookups


@dataclass(frozen=True)
class EmbeddingPreset:
    """A recommendation model's embedding operator, as in configs/embedding/*.yaml.

    Attributes:
        batch, tables, lookups, width: as in `EmbeddingShape`.
        rows: rows of every table; None if `table_rows` has the rows of each.
        table_rows: rows of each table; their mean, rounded down, is used for all.
        rows_per_block: None = `default_rows_per_block(width)`.
    """

    batch: int = 2048
    tables: int = 1
    lookups: int = 1
    width: int = 64
    rows: int | None = None
    table_rows: list[int] = field(default_factory=list)
    rows_per_block: int | None = None

    def shape(self, **changes: int | None) -> EmbeddingShape:
        """Returns the operator's shape; `changes` that are neither None nor 0 replace fields.

        Raises:
            UsageError: neither or both of `rows` and `table_rows`, or the lengths of `table_rows`
                and `tables` differ.
        """
        if (self.rows is None) == (not self.table_rows):
            raise UsageError("embedding preset: give either rows or table_rows, not both")
        if self.table_rows and len(self.table_rows) != self.tables:
            raise UsageError(
                f"embedding preset: tables is {self.tables}, but table_rows has "
                f"{len(self.table_rows)} numbers; make them agree"
            )
        rows = self.rows
        if rows is None:
            rows = sum(self.table_rows) // len(self.table_rows)
        shape = EmbeddingShape(
            self.batch,
            rows,
            self.tables,
            self.lookups,
            self.width,
            self.rows_per_block or default_rows_per_block(self.width),
        )
        return replace(shape, **{name: value for name, value in changes.items() if value})


def default_rows_per_block(width: int) -> int:
    """Returns the number of samples per thread block of 256 threads, at least 1."""
    return max(1, 256 // width)


def load_preset(path: Path) -> EmbeddingPreset:
    """Reads the preset of a YAML file.

    Raises:
        UsageError: as `cdmpp.config.load_config`.
    """
    return load_config(EmbeddingPreset, path)
