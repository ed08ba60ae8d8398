"""Reads CSV tables of kernel benchmarks from a GPU profiler, with units and unrelated kernels.

The column names are those of the public repository owensgroup/ml_perf_model.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from cdmpp.analytic.embedding.shapes import EmbeddingShape
from cdmpp.analytic.table_file import TableFile
from cdmpp.arrays import FloatArray
from cdmpp.errors import DataError

KernelFilter = Literal["embedding", "none"]

_EMBEDDING_KERNEL = "batched_embedding"
_SHAPE_COLUMNS = (
    "batch_size", "num_embeddings", "num_tables", "bag_size", "embedding_dim", "rows_per_block",
)  # fmt: skip
_RUNTIME = "kernel_runtime"
_NUMBER = re.compile(r"^\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/%]*)\s*$")
_LEVEL = re.compile(r"^\s*[A-Za-z ]*\(([0-9]+)\)\s*$")
_UNITS = {
    "": 1.0, "%": 0.01,
    "TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "KB/s": 1e3, "B/s": 1.0,
    "B": 1.0, "KB": 1024.0, "MB": 1024.0 * 1024.0,
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9,
}  # fmt: skip


@dataclass(frozen=True)
class KernelTable:
    """Rows of a benchmark.

    Attributes:
        kernel_name: name of each row's kernel.
        values: column -> float64 [N]; SI units where the file names a unit, fractions for percent,
            NaN for an empty cell.
        latency_s: float64 [N], seconds.
        dropped: reason -> number of dropped rows.
    """

    kernel_name: tuple[str, ...]
    values: dict[str, FloatArray]
    latency_s: FloatArray
    dropped: dict[str, int]

    def embedding_shapes(self) -> list[EmbeddingShape]:
        """Returns the shape of each row.

        Raises:
            DataError: a column of the shape is missing or has an empty cell.
        """
        missing = [name for name in _SHAPE_COLUMNS if name not in self.values]
        if missing:
            raise DataError(
                f"kernel table: no column {', '.join(missing)}; expected "
                f"{', '.join(_SHAPE_COLUMNS)}"
            )
        table = np.column_stack([self.values[name] for name in _SHAPE_COLUMNS])
        if not np.all(np.isfinite(table)):
            raise DataError("kernel table: an empty cell in a shape; every row needs a full shape")
        return [EmbeddingShape(*(int(value) for value in row)) for row in table]


def strip_unit(text: str, *, plain: float = 1.0) -> float:
    """Parses a profiler's number with a unit; rates, sizes and times become SI.

    `723.4GB/s` is 7.234e11, `12%` is 0.12, `Low (2)` and `(2)` are 2, `48KB` is 49152, an
    empty text is NaN.

    Args:
        plain: value of 1 without a unit.

    Raises:
        DataError: not a number, or an unknown unit.
    """
    if not text.strip():
        return float("nan")
    level = _LEVEL.match(text)
    if level:
        return float(level[1])
    number = _NUMBER.match(text)
    if number is None or number[2] not in _UNITS:
        raise DataError(
            f"cannot read {text!r} as a number with a unit (expected e.g. '8', '8 GB/s'; units: "
            f"{', '.join(unit for unit in _UNITS if unit)})"
        )
    return float(number[1]) * (_UNITS[number[2]] if number[2] else plain)


def read_kernel_table(
    path: Path, *, keep: KernelFilter = "embedding", least_batch: int = 1, least_rows: int = 1
) -> KernelTable:
    """Reads the rows of a benchmark's CSV file; `kernel_runtime` is in microseconds, unless
    a cell has another unit.

    Args:
        keep: `embedding` = kernels with `batched_embedding` in their name; `none` = every row.
        least_batch, least_rows: rows with a smaller batch, or fewer rows per table, are dropped.

    Raises:
        DataError: the file cannot be read, lacks kernel_name or kernel_runtime (or a size that has
            a minimum), has a cell that is not a number, or no row is left.
    """
    least = {"batch_size": least_batch, "num_embeddings": least_rows}
    least = {name: value for name, value in least.items() if value > 1}
    table = TableFile.read(path, ("kernel_name", _RUNTIME, *least), what="kernels")
    names = table.columns["kernel_name"]
    columns = {
        name: np.array(table.values(name, strip_unit), np.float64)
        for name in table.columns
        if name != "kernel_name"
    }
    read_us = partial(strip_unit, plain=1e-6)
    columns[_RUNTIME] = np.array(table.values(_RUNTIME, read_us), np.float64)
    runtimes = zip(names, columns[_RUNTIME], strict=True)
    reasons = [_reason_to_drop(name, runtime, keep) for name, runtime in runtimes]
    for name, smallest in least.items():
        for row in np.flatnonzero(~(columns[name] >= smallest)):
            reasons[row] = reasons[row] or f"{name} below {smallest}"
    kept = np.flatnonzero([reason is None for reason in reasons])
    dropped = dict(Counter(filter(None, reasons)))
    if not len(kept):
        raise DataError(
            f"{path}: no row left ({dropped}); relax the filter, e.g. --kernels none or a "
            "smaller --least-batch"
        )
    values = {name: column[kept] for name, column in columns.items()}
    return KernelTable(tuple(names[int(row)] for row in kept), values, values[_RUNTIME], dropped)


def _reason_to_drop(name: str, runtime: float, keep: KernelFilter) -> str | None:
    if not runtime > 0:
        return "no time"
    is_foreign = keep == "embedding" and _EMBEDDING_KERNEL not in name
    return "not an embedding kernel" if is_foreign else None
