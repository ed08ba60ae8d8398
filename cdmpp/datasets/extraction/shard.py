"""One shard of an extracted dataset: planned by the parent process, built by a worker."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.extraction.program_rows import (
    Featurise,
    measurement_row,
    program_rows,
    reason_group,
)
from cdmpp.datasets.extraction.schema import (
    QUICK_LEVEL,
    measurements_schema,
    open_writer,
    programs_schema,
    schema_versions,
)
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.errors import DataError
from cdmpp.files.atomic import sha256_file, write_atomic, write_json
from cdmpp.records import MeasureRecord, program_id_of_text

__all__ = [
    "Featurise", "ShardCounts", "ShardPlan", "TableWriter", "build_shard",
    "finished_shard", "shard_key", "worker_tasks", "write_shard",
]  # fmt: skip

#: Programs that are featurised in one go: more only cost memory.
PROGRAM_BATCH = 64
#: Rows of one row group of `programs` and of `measurements`.
PROGRAM_ROWS = 256
MEASUREMENT_ROWS = 2048

#: New objects after which Python looks for cyclic garbage (its own default is 700).
_COLLECTION_THRESHOLD = 100_000


@dataclass(frozen=True)
class ShardPlan:
    """What goes into a shard.

    Attributes:
        number: position of the shard in the dataset.
        files: (device, record file) in reading order.
        weight: estimated size of the records in bytes, for progress.
    """

    number: int
    files: tuple[tuple[str, Path], ...]
    weight: int

    def paths(self, out_dir: Path) -> tuple[Path, Path, Path]:
        """Returns the paths of the shard's programs, measurements and completion note."""
        return (
            out_dir / f"programs-{self.number:05d}.parquet",
            out_dir / f"measurements-{self.number:05d}.parquet",
            out_dir / f"shard-{self.number:05d}.json",
        )


def shard_key(plan: ShardPlan, *, tasks_hash: str, featuriser: str) -> str:
    """Returns a digest of everything a shard's content follows from.

    Raises:
        DataError: a record file cannot be read.
    """
    try:
        files = [(device, path.name, sha256_file(path)) for device, path in plan.files]
    except OSError as error:
        raise DataError(f"cannot read a record file: {error}") from None
    text = json.dumps([schema_versions(), tasks_hash, featuriser, files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def finished_shard(plan: ShardPlan, out_dir: Path, key: str) -> dict[str, Any] | None:
    """Returns the completion note of a shard that is there, whole and made from the same inputs."""
    programs, measurements, note = plan.paths(out_dir)
    try:
        value: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
        same = value["key"] == key
        for path, table in ((programs, "programs"), (measurements, "measurements")):
            same = same and sha256_file(path) == value[table]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if same else None


@lru_cache(maxsize=1)
def worker_tasks(network_info_dir: Path, tasks_hash: str) -> TaskIndex:
    """Returns the tasks, read once per process and content (`tasks_hash` keeps them apart)."""
    return load_tasks(network_info_dir)


def build_shard(
    plan: ShardPlan,
    network_info_dir: Path,
    tasks_hash: str,
    out_dir: Path,
    featurise: Featurise,
    key: str,
) -> dict[str, Any]:
    """Reads, featurises and writes a shard; returns its completion note, which is written last.

    Rows are written as they come, `PROGRAM_BATCH` programs at a time: what is held in memory does
    not grow with the files, except for about 100 bytes of identity a program.

    Raises:
        DataError: a file cannot be read or written, or the featuriser breaks its contract.
    """
    tasks = worker_tasks(network_info_dir, tasks_hash)

    def stream(programs: TableWriter, measurements: TableWriter, counts: ShardCounts) -> None:
        with _rare_collections():
            _stream_shard(plan, tasks, featurise, programs, measurements, counts)

    return write_shard(plan, out_dir, key, stream)


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Lets Python look for cyclic garbage rarely: records make none, and looking costs a tenth."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTION_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def write_shard(
    plan: ShardPlan,
    out_dir: Path,
    key: str,
    stream: Callable[[TableWriter, TableWriter, ShardCounts], None],
    level: int = QUICK_LEVEL,
) -> dict[str, Any]:
    """Writes the tables that `stream` fills (programs, measurements) and then the note.

    Args:
        key: digest of what the content follows from (see `shard_key`).
        stream: adds rows to the two tables and counts them.
        level: of compression.

    Raises:
        DataError: a file cannot be written.
    """
    programs, measurements, note = plan.paths(out_dir)
    counts = ShardCounts()

    def fill(programs_file: Path, measurements_file: Path) -> None:
        with (
            TableWriter(programs_file, programs_schema(), PROGRAM_ROWS, level) as program_table,
            TableWriter(
                measurements_file, measurements_schema(), MEASUREMENT_ROWS, level
            ) as measurement_table,
        ):
            stream(program_table, measurement_table, counts)

    write_atomic(programs, lambda one: write_atomic(measurements, lambda two: fill(one, two)))
    value = {
        "key": key,
        "programs": _table_note(programs, counts.programs),
        "measurements": _table_note(measurements, counts.measurements),
        "featurised": counts.featurised,
        "valid": counts.valid,
        "rejected": dict(sorted(counts.rejected.items())),
        "fallbacks": dict(sorted(counts.fallbacks.items())),
        "leaf_extra_counts": sorted(counts.leaf_extra_counts),
        "read": counts.report.to_json(),
    }
    write_json(note, value)
    return value


def _table_note(path: Path, rows: int) -> dict[str, Any]:
    return {"file": path.name, "rows": rows, "sha256": sha256_file(path)}


@dataclass
class ShardCounts:
    """What a shard holds, counted while it is written."""

    programs: int = 0
    measurements: int = 0
    featurised: int = 0
    valid: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    leaf_extra_counts: set[int] = field(default_factory=set)
    report: ReadReport = field(default_factory=ReadReport)

    def add_programs(self, rows: list[dict[str, Any]]) -> None:
        """Counts rows of `programs`."""
        self.programs += len(rows)
        for row in rows:
            if row["fallback"] is not None:
                self.fallbacks[row["fallback"]] += 1
            if len(row["leaf_position"]):
                self.featurised += 1
                self.leaf_extra_counts.add(len(row["leaf_extra"]) // len(row["leaf_position"]))
            if row["valid"]:
                self.valid += 1
            else:
                self.rejected[reason_group(row["reject_reason"])] += 1


class TableWriter:
    """Writes rows to a Parquet file, a row group every so many rows.

    Lists of numbers may come as arrays.
    """

    def __init__(self, path: Path, schema: Any, group_rows: int, level: int = QUICK_LEVEL) -> None:
        self._schema = schema
        self._group_rows = group_rows
        self._rows: list[dict[str, Any]] = []
        self._writer = open_writer(path, schema, level)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()
        self._writer.close()

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Takes rows; they are written when there are enough of them."""
        self._rows.extend(rows)
        if len(self._rows) >= self._group_rows:
            self.flush()

    def flush(self) -> None:
        """Writes what has been taken."""
        import pyarrow as pa

        if self._rows:
            columns = [
                _column(field, [row[field.name] for row in self._rows]) for field in self._schema
            ]
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
            self._rows = []


def _column(field: Any, values: list[Any]) -> Any:
    """Returns a column as pyarrow array; arrays are joined, which is faster than item by item."""
    import pyarrow as pa

    if not isinstance(values[0], np.ndarray):
        return pa.array(values, field.type)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    items = pa.array(np.concatenate(values), field.type.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=field.type)


def _stream_shard(
    plan: ShardPlan,
    tasks: TaskIndex,
    featurise: Featurise,
    programs: TableWriter,
    measurements: TableWriter,
    counts: ShardCounts,
) -> None:
    """Writes the rows of a shard; a program is featurised once, whatever devices measured it."""
    seen: set[bytes] = set()
    pending: dict[tuple[str, str], dict[str, MeasureRecord]] = {}
    waiting = 0

    def featurise_pending() -> None:
        for (workload_key, target_kind), records in pending.items():
            task = tasks.find(workload_key, target_kind)
            networks = tasks.networks_of(workload_key, target_kind)
            rows = [row for _, row in program_rows(task, networks, records, featurise)]
            counts.add_programs(rows)
            programs.add(rows)
        pending.clear()

    for device, path in plan.files:
        for record in read_records(path, counts.report, device=device):
            identity = program_id_of_text(
                "tenset", record.workload_key, record.schedule, record.target_kind
            )
            measurements.add([measurement_row(identity, record)])
            counts.measurements += 1
            digest = bytes.fromhex(identity)
            if digest in seen:
                continue
            seen.add(digest)
            pending.setdefault((record.workload_key, record.target_kind), {})[identity] = record
            waiting += 1
            if waiting >= PROGRAM_BATCH:
                featurise_pending()
                waiting = 0
    featurise_pending()
