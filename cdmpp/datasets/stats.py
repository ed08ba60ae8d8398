"""Numbers about a dataset: per device its tasks, programs, failures and latencies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.extracted import is_extracted_dir, read_manifest, read_table
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset import (
    find_device_files,
    find_devices,
    is_tenset_dir,
    read_records,
)
from cdmpp.errors import DataError


class _DeviceCounter:
    """Collects the measurements of one device."""

    def __init__(self) -> None:
        self.tasks: set[str] = set()
        self.records = 0
        self.failed = 0
        self.latencies_s: list[float] = []

    def add(self, task: str, latency_s: float | None) -> None:
        self.tasks.add(task)
        self.records += 1
        if latency_s is None:
            self.failed += 1
        else:
            self.latencies_s.append(latency_s)

    def to_json(self) -> dict[str, Any]:
        quantiles: list[float | None] = [None] * 3
        if self.latencies_s:
            quantiles = [float(q) for q in np.quantile(self.latencies_s, (0.05, 0.5, 0.95))]
        return {
            "tasks": len(self.tasks),
            "records": self.records,
            "failed": self.failed,
            "latency_p05_s": quantiles[0],
            "latency_median_s": quantiles[1],
            "latency_p95_s": quantiles[2],
        }


def dataset_stats(dataset_dir: Path) -> dict[str, Any]:
    """Returns the numbers of a Tenset directory or an extracted dataset as JSON values.

    Keys: `layout` (`tenset` or `extracted`), `devices` (label -> tasks, records, failed and
        quantiles of
    latency in seconds), `read` (counters of the reader) and, for an extracted dataset, `programs`,
    `valid`, `rejected`, `operators` and `data_hash`.

    Raises:
        DataError: the folder is neither, or its files cannot be read.
    """
    dataset_dir = Path(dataset_dir)
    if is_extracted_dir(dataset_dir):
        return _extracted_stats(dataset_dir)
    if is_tenset_dir(dataset_dir):
        return _tenset_stats(dataset_dir)
    raise DataError(
        f"{dataset_dir}: neither a Tenset directory (measure_records/DEVICE/*.json) nor an "
        "extracted dataset (manifest.json); give one with --dataset DIR"
    )


def _tenset_stats(dataset_dir: Path) -> dict[str, Any]:
    report = ReadReport()
    devices: dict[str, Any] = {}
    for label in find_devices(dataset_dir):
        counter = _DeviceCounter()
        for path in find_device_files(dataset_dir, label):
            for record in read_records(path, report, device=label):
                counter.add(f"{record.workload_key}|{record.target_kind}", record.latency_s)
        devices[label] = counter.to_json()
    return {"layout": "tenset", "devices": devices, "read": report.to_json()}


def _extracted_stats(dataset_dir: Path) -> dict[str, Any]:
    manifest = read_manifest(dataset_dir)
    task_of: dict[str, str] = {}
    operators: Counter[str] = Counter()
    for table in read_table(
        dataset_dir, "programs", ["program_id", "workload_key", "target_kind", "operator"]
    ):
        for row in table.to_pylist():
            task_of[row["program_id"]] = f"{row['workload_key']}|{row['target_kind']}"
            operators[row["operator"]] += 1
    counters: dict[str, _DeviceCounter] = {}
    for table in read_table(dataset_dir, "measurements", ["program_id", "device", "latency_s"]):
        for row in table.to_pylist():
            counter = counters.setdefault(row["device"], _DeviceCounter())
            counter.add(task_of.get(row["program_id"], "?"), row["latency_s"])
    copied = ("programs", "valid", "rejected", "data_hash", "read")
    return {
        "layout": "extracted",
        "devices": {label: counters[label].to_json() for label in sorted(counters)},
        "operators": dict(operators.most_common()),
        **{key: manifest[key] for key in copied},
    }


def stats_table(stats: dict[str, Any]) -> Any:
    """Returns what `dataset_stats` gave as a rich group: a table by device and closing lines."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"dataset ({stats['layout']})")
    table.add_column("device")
    for name in ("tasks", "records", "failed", "5 %", "median", "95 %"):
        table.add_column(name, justify="right")
    for label, row in stats["devices"].items():
        latencies = (row["latency_p05_s"], row["latency_median_s"], row["latency_p95_s"])
        counts = (row["tasks"], row["records"], row["failed"])
        table.add_row(label, *map(str, counts), *(_milliseconds(value) for value in latencies))
    lines: list[str] = []
    if "programs" in stats:
        lines.append(f"{stats['programs']} programs, {stats['valid']} with features")
        lines += [f"  rejected {count}: {why}" for why, count in stats["rejected"].items()]
        names = list(stats["operators"].items())[:8]
        lines.append("operators: " + ", ".join(f"{name} {count}" for name, count in names))
        lines.append(f"data hash {stats['data_hash']}")
    lines.append(ReadReport.from_json(stats["read"]).summary())
    return Group(table, Text("\n".join(lines)))


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.3g} ms"
