"""Reads CSV tables of kernel benchmarks as a GPU profiler writes them: units, foreign kernels.

The column names are those of the public repository owensgroup/ml_perf_model.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.embedding.shapes import EmbeddingShape
from cdmpp.errors import DataError

FloatArray = NDArray[np.float64]
KernelFilter = Literal["embedding", "gemm", "none"]

#: Kernels that do not do what the table is about.
_FOREIGN_GEMM_KERNELS = ("gemv2T_kernel", "splitKreduce_kernel")
_EMBEDDING_KERNEL = "batched_embedding"
_SHAPE_COLUMNS = (
    "batch_size", "num_embeddings", "num_tables", "bag_size", "embedding_dim", "rows_per_block",
)  # fmt: skip
_RUNTIME = "kernel_runtime"
_NUMBER = re.compile(r"^\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/%]*)\s*$")
_LEVEL = re.compile(r"^\s*[A-Za-z ]+\(([0-9]+)\)\s*$")
_UNITS = {
    "": 1.0, "%": 0.01,
    "TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "KB/s": 1e3, "B/s": 1.0,
    "B": 1.0, "KB": 1024.0, "MB": 1024.0 * 1024.0,
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9,
}  # fmt: skip


@dataclass(frozen=True)
class KernelTable:
    """A benchmark's rows.

    Attributes:
        kernel_name: of each row.
        values: column -> float64 [N]; SI units where the file names a unit, fractions for percent;
            an empty cell is NaN.
        latency_s: float64 [N], seconds.
        dropped: reason -> rows that were left out.
    """

    kernel_name: tuple[str, ...]
    values: dict[str, FloatArray]
    latency_s: FloatArray
    dropped: dict[str, int]

    def embedding_shapes(self) -> list[EmbeddingShape]:
        """Returns the shape of each row.

        Raises:
            DataError: a column of the shape is missing or has no number.
        """
        missing = [name for name in _SHAPE_COLUMNS if name not in self.values]
        if missing:
            raise DataError(
                f"kernel table: no column {', '.join(missing)}; expected "
                f"{', '.join(_SHAPE_COLUMNS)}"
            )
        table = np.column_stack([self.values[name] for name in _SHAPE_COLUMNS])
        if not np.all(np.isfinite(table)):
            raise DataError("kernel table: a cell of a shape is empty; every row needs its shape")
        return [EmbeddingShape(*(int(value) for value in row)) for row in table]


def strip_unit(text: str) -> float:
    """Returns a profiler's number without its unit: SI for rates, sizes and times.

    `723.4GB/s` is 7.234e11, `12%` is 0.12, `Low (2)` is 2, `48KB` is 49152, an empty text is NaN.

    Raises:
        DataError: no number, or a unit that is not known.
    """
    if not text.strip():
        return float("nan")
    level = _LEVEL.match(text)
    if level:
        return float(level[1])
    number = _NUMBER.match(text)
    if number is None or number[2] not in _UNITS:
        raise DataError(
            f"kernel table: {text!r} is no number with a known unit; units: "
            f"{', '.join(unit for unit in _UNITS if unit)}"
        )
    return float(number[1]) * _UNITS[number[2]]


def read_kernel_table(path: Path, *, keep: KernelFilter = "embedding") -> KernelTable:
    """Returns the rows of a benchmark's CSV file; `kernel_runtime` is in microseconds.

    Args:
        keep: `embedding` = kernels whose name holds batched_embedding; `gemm` = without the
            matrix-vector and reduction helpers and without batches of one; `none` = every row.

    Raises:
        DataError: unreadable, no kernel_name or kernel_runtime, a cell that is no number, or no row
            left.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            header = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = header
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot read the kernel table ({error})") from None
    if not {"kernel_name", _RUNTIME} <= set(header):
        raise DataError(
            f"{path}: columns {', '.join(header)}; a kernel table needs kernel_name and {_RUNTIME}"
        )
    dropped: Counter[str] = Counter()
    names: list[str] = []
    columns: dict[str, list[float]] = {name: [] for name in header if name != "kernel_name"}
    for line, row in enumerate(rows, start=2):
        try:
            values = {name: strip_unit(row[name] or "") for name in columns}
        except DataError as error:
            raise DataError(f"{path}, line {line}: {error}") from None
        reason = _reason_to_drop(row["kernel_name"] or "", values, keep)
        if reason:
            dropped[reason] += 1
            continue
        names.append(row["kernel_name"])
        for name, value in values.items():
            columns[name].append(value)
    if not names:
        raise DataError(
            f"{path}: no row left ({dict(dropped)}); choose another filter, e.g. --kernels none"
        )
    arrays = {name: np.array(value, np.float64) for name, value in columns.items()}
    return KernelTable(tuple(names), arrays, arrays[_RUNTIME] * 1e-6, dict(dropped))


def _reason_to_drop(name: str, values: dict[str, float], keep: KernelFilter) -> str | None:
    if not values[_RUNTIME] > 0:
        return "no time"
    if keep == "embedding" and _EMBEDDING_KERNEL not in name:
        return "not an embedding kernel"
    if keep == "gemm":
        if any(foreign in name for foreign in _FOREIGN_GEMM_KERNELS):
            return "helper kernel"
        if values.get("batch_size") == 1:
            return "batch of one"
    return None
