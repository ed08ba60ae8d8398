"""One shard of an extracted dataset: planned by the parent process, built by a worker."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.extraction.program_rows import measurement_row, program_rows, reason_group
from cdmpp.datasets.extraction.schema import (
    QUICK_LEVEL,
    measurements_schema,
    open_writer,
    programs_schema,
    schema_versions,
)
from cdmpp.datasets.extraction.source import RecordSource, ShardPlan
from cdmpp.datasets.read_report import ReadReport
from cdmpp.files.atomic import sha256_file, write_atomic, write_json
from cdmpp.records import MeasureRecord

#: Number of programs that are featurised in one call.
PROGRAM_BATCH = 256
#: Rows per row group of `programs` and of `measurements`.
PROGRAM_ROWS = 256
MEASUREMENT_ROWS = 2048

#: Number of new objects after which Python collects cyclic garbage (default: 700).
_COLLECTION_THRESHOLD = 100_000


def shard_key(plan: ShardPlan, code: str) -> str:
    """Returns a digest of everything that determines a shard's content, including the code."""
    text = json.dumps([schema_versions(), plan.digest, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def finished_shard(plan: ShardPlan, out_dir: Path, key: str) -> dict[str, Any] | None:
    """Returns the completion note of a shard if it is complete and has this key, else None."""
    programs, measurements, note = plan.paths(out_dir)
    try:
        value: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
        same = value["key"] == key
        for path, table in ((programs, "programs"), (measurements, "measurements")):
            same = same and sha256_file(path) == value[table]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if same else None


def build_shard(source: RecordSource, plan: ShardPlan, out_dir: Path, key: str) -> dict[str, Any]:
    """Reads, featurises and writes a shard; returns its completion note, which is written last.

    Rows are streamed: memory holds the programs that are not featurised yet, and about 100 bytes
    per program.

    Args:
        key: digest of everything that determines the content (see `shard_key`).

    Raises:
        DataError: a file cannot be read or written, or the featuriser breaks its contract.
        UsageError: the featuriser's side environment is missing.
    """
    programs, measurements, note = plan.paths(out_dir)
    counts = ShardCounts()

    def fill(programs_file: Path, measurements_file: Path) -> None:
        with (
            TableWriter(programs_file, programs_schema(), PROGRAM_ROWS, source.level) as one,
            TableWriter(
                measurements_file, measurements_schema(), MEASUREMENT_ROWS, source.level
            ) as other,
            _rare_collections(),
        ):
            _stream_shard(source, plan, one, other, counts)

    write_atomic(programs, lambda one: write_atomic(measurements, lambda two: fill(one, two)))
    value = {
        "key": key,
        "programs": table_note(programs, counts.programs),
        "measurements": table_note(measurements, counts.measurements),
        "featurised": counts.featurised,
        "valid": counts.valid,
        "rejected": dict(sorted(counts.rejected.items())),
        "fallbacks": dict(sorted(counts.fallbacks.items())),
        "leaf_extra_counts": sorted(counts.leaf_extra_counts),
        "read": counts.report.to_json(),
    }
    write_json(note, value)
    return value


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Makes garbage collection rare: records have no cycles, and collection takes a tenth of the
    time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTION_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def table_note(path: Path, rows: int) -> dict[str, Any]:
    """Returns a manifest's entry for the file of a table."""
    return {"file": path.name, "rows": rows, "sha256": sha256_file(path)}


@dataclass
class ShardCounts:
    """Counters of a shard's content, updated while it is written."""

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
    """Writes rows to a Parquet file, in row groups of at least `group_rows` rows.

    Lists of numbers may be arrays.
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
        """Adds rows; writes a row group when enough rows are buffered."""
        self._rows.extend(rows)
        if len(self._rows) >= self._group_rows:
            self.flush()

    def flush(self) -> None:
        """Writes the buffered rows."""
        import pyarrow as pa

        if self._rows:
            columns = [
                _column(field, [row[field.name] for row in self._rows]) for field in self._schema
            ]
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
            self._rows = []


def _column(field: Any, values: list[Any]) -> Any:
    """Returns a column as a pyarrow array; concatenates numpy arrays, which is faster."""
    import pyarrow as pa

    if not isinstance(values[0], np.ndarray):
        return pa.array(values, field.type)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    items = pa.array(np.concatenate(values), field.type.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=field.type)


def _stream_shard(
    source: RecordSource,
    plan: ShardPlan,
    programs: TableWriter,
    measurements: TableWriter,
    counts: ShardCounts,
) -> None:
    """Writes the rows of a shard; a program is featurised once for all devices."""
    seen: set[bytes] = set()
    pending: dict[Hashable, dict[str, MeasureRecord]] = {}
    waiting = 0

    def featurise_pending() -> None:
        for group, records in pending.items():
            programs_of_group = list(records.items())
            for start in range(0, len(programs_of_group), PROGRAM_BATCH):
                batch = dict(programs_of_group[start : start + PROGRAM_BATCH])
                rows = program_rows(batch, source.featurise(group, list(batch.values())))
                counts.add_programs(rows)
                programs.add(rows)
        pending.clear()

    for group, identity, record in source.records(plan, counts.report):
        measurements.add([measurement_row(identity, record)])
        counts.measurements += 1
        digest = bytes.fromhex(identity)
        if digest in seen:
            continue
        seen.add(digest)
        pending.setdefault(group, {})[identity] = record
        waiting += 1
        if waiting == source.waiting:
            featurise_pending()
            waiting = 0
    featurise_pending()
