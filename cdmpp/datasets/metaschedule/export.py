"""Writes the measurements of an extracted dataset as databases of TVM's MetaSchedule.

The programs and costs are those of the dataset; the traces are from the databases that it was
extracted from. So MetaSchedule's search can use measurements of another device, or a merged or
cleaned dataset.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.datasets.extraction.extracted import read_manifest, read_table
from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    TuningRecord,
    Workload,
    read_tuning_records,
    read_workload_line,
    read_workloads,
)
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_line import FAILED_COST_S
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder, write_atomic, write_text
from cdmpp.text import counted


@dataclass
class DatabaseExportReport:
    """Result of an export: records by device, and the number of measurements without a trace."""

    out_dir: Path
    records: dict[str, int] = field(default_factory=dict)
    without_trace: int = 0

    def summary(self) -> str:
        """Returns the report as lines of text."""
        lines = [
            f"{self.out_dir / label}: {counted(count, 'tuning record')}"
            for label, count in self.records.items()
        ]
        if self.without_trace:
            lines.append(
                f"{counted(self.without_trace, 'measurement')} left out: no database of "
                "--database has their traces"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {**vars(self), "out_dir": str(self.out_dir)}


def export_databases(
    extracted_dir: Path,
    out_dir: Path,
    databases: Sequence[Path],
    *,
    devices: Iterable[str] | None = None,
) -> DatabaseExportReport:
    """Writes one database per device, `out_dir/DEVICE/`, with the dataset's costs.

    Failed measurements are written as 1e10 seconds, as MetaSchedule does. Memory holds about 100
    bytes per measurement.

    Args:
        databases: folders of the databases with the traces.
        devices: labels; None = all.

    Raises:
        UsageError: no database is given, or `out_dir` has one already.
        DataError: the dataset or a database cannot be read, no measurement has a trace, or
            `out_dir` cannot be written.
    """
    if not databases:
        raise UsageError("give the databases that hold the traces: --database DIR")
    manifest = read_manifest(extracted_dir)
    labels = sorted(manifest["devices"] if devices is None else set(devices))
    report = DatabaseExportReport(Path(out_dir))
    for label in labels:
        _check_new(Path(out_dir) / label)
    for label in labels:
        costs = _costs(extracted_dir, label)
        total = sum(map(len, costs.values()))
        folder = Path(out_dir) / label
        report.records[label] = _write(folder, databases, costs)
        report.without_trace += total - report.records[label]
    if not any(report.records.values()):
        raise DataError(
            f"none of the measurements in {extracted_dir} has a trace in "
            f"{', '.join(map(str, databases))}; extract a database first: cdmpp dataset extract "
            "--dataset DATABASE --device LABEL"
        )
    return report


def _check_new(folder: Path) -> None:
    for path in (folder / RECORD_FILE, folder / WORKLOAD_FILE):
        if path.is_file() and path.stat().st_size:
            raise UsageError(f"{path} exists already; give a new folder with --out DIR")


def _costs(extracted_dir: Path, device: str) -> dict[bytes, list[array[float]]]:
    """Returns program -> costs of each of its measurements on a device."""
    found: dict[bytes, list[array[float]]] = {}
    columns = ["program_id", "device", "costs_s", "error_code"]
    for table in read_table(extracted_dir, "measurements", columns):
        for row in table.to_pylist():
            if row["device"] == device:
                costs = [FAILED_COST_S] if row["error_code"] else row["costs_s"]
                identity = bytes.fromhex(row["program_id"])
                found.setdefault(identity, []).append(array("d", costs))
    return found


def _write(folder: Path, databases: Sequence[Path], costs: dict[bytes, list[array[float]]]) -> int:
    """Writes a database with the records of programs in `costs`; returns their number."""
    make_folder(folder, what="MetaSchedule database")
    numbers: dict[str, int] = {}
    written = 0

    def write_records(path: Path) -> None:
        nonlocal written
        seen: set[bytes] = set()
        with path.open("w", encoding="utf-8") as stream:
            for database, workload, found in _records(databases):
                identity = bytes.fromhex(found.program_id)
                if identity in seen or identity not in costs:
                    continue
                seen.add(identity)
                number = numbers.setdefault(workload.key, len(numbers))
                if number == len(lines):
                    lines.append(_workload_text(database, workload))
                for measured in costs[identity]:
                    stream.write(_record_text(found, number, list(measured)) + "\n")
                    written += 1

    lines: list[str] = []
    write_atomic(folder / RECORD_FILE, write_records)
    write_text(folder / WORKLOAD_FILE, "".join(lines))
    return written


def _records(databases: Sequence[Path]) -> Iterator[tuple[Path, Workload, TuningRecord]]:
    for database in databases:
        workloads = read_workloads(database)
        for found in read_tuning_records(database, workloads, ReadReport(), device=""):
            yield database, workloads[found.workload], found


def _workload_text(database: Path, workload: Workload) -> str:
    return read_workload_line(database, workload).decode("ascii").rstrip("\n") + "\n"


def _record_text(found: TuningRecord, workload: int, costs_s: list[float]) -> str:
    trace = list(found.record.steps)
    target = json.loads(found.record.target)
    return json.dumps([workload, [trace, costs_s, target, found.args_info]], separators=(",", ":"))
