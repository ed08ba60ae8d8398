"""Statistics of a dataset: tasks, records, failures and latencies of each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

from cdmpp.datasets.audit.quantiles import Quantiles
from cdmpp.datasets.extraction.extracted import is_extracted_dir, read_manifest, read_table
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import (
    find_device_files,
    find_devices,
    is_tenset_dir,
    read_records,
)
from cdmpp.errors import DataError
from cdmpp.text import aligned, counted, seconds_text


class _DeviceCounter:
    """Counters of the measurements of one device."""

    def __init__(self) -> None:
        self.tasks: set[Hashable] = set()
        self.records = 0
        self.failed = 0
        self.latency_s = Quantiles()

    def add(self, tasks: Iterable[Hashable], latency_s: Iterable[float | None]) -> None:
        """Adds measurements, given as their tasks and latencies (None = failed)."""
        self.tasks.update(tasks)
        latencies = list(latency_s)
        good = [latency for latency in latencies if latency is not None]
        self.records += len(latencies)
        self.failed += len(latencies) - len(good)
        self.latency_s.add(good)

    def to_json(self) -> dict[str, Any]:
        return {
            "tasks": len(self.tasks),
            "records": self.records,
            "failed": self.failed,
            "latency_p05_s": self.latency_s.quantile(0.05),
            "latency_median_s": self.latency_s.quantile(0.5),
            "latency_p95_s": self.latency_s.quantile(0.95),
        }


def dataset_stats(dataset_dir: Path) -> dict[str, Any]:
    """Returns statistics of a folder in Tenset's layout or of an extracted dataset as JSON values.

    Keys: `layout` (`tenset` or `extracted`), `devices` (label -> tasks, records, failed and
    quantiles of latency in seconds: exact up to 100,000 records, then within 0.12 %), `read`
    (counters of the reader) and, for an extracted dataset, `programs`, `featurised` (programs with
    features, which can be samples), `valid` (programs with features that the original toolchain
    accepts), `rejected` (reason -> invalid programs), `tasks`, `operators` and `sources` (programs
    of each), `targets` (tasks of each kind), `leaves` (number per program), `bytes`, `schema` and
    `data_hash`.

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
                counter.add([(record.workload_key, record.target_kind)], [record.latency_s])
        devices[label] = counter.to_json()
    return {"layout": "tenset", "devices": devices, "read": report.to_json()}


def _extracted_stats(dataset_dir: Path) -> dict[str, Any]:
    manifest = read_manifest(dataset_dir)
    tasks: dict[tuple[str, str], int] = {}
    task_of: dict[bytes, int] = {}
    operators: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    leaf_count = Quantiles()
    columns = ["program_id", "workload_key", "target_kind", "operator", "source"]
    for table in read_table(dataset_dir, "programs", [*columns, "leaf_position"]):
        leaves = table["leaf_position"].combine_chunks().value_lengths().to_pylist()
        for row in table.select(columns).to_pylist():
            task = (row["workload_key"], row["target_kind"])
            task_of[_short(row["program_id"])] = tasks.setdefault(task, len(tasks))
            operators[row["operator"]] += 1
            sources[row["source"]] += 1
        leaf_count.add(count for count in leaves if count)
    counters: dict[str, _DeviceCounter] = {}
    for table in read_table(dataset_dir, "measurements", ["program_id", "device", "latency_s"]):
        by_device: dict[str, tuple[list[int], list[float | None]]] = {}
        for row in table.to_pylist():
            task_numbers, latencies = by_device.setdefault(row["device"], ([], []))
            task_numbers.append(task_of.get(_short(row["program_id"]), -1))
            latencies.append(row["latency_s"])
        for label, (task_numbers, latencies) in by_device.items():
            counters.setdefault(label, _DeviceCounter()).add(task_numbers, latencies)
    copied = ("programs", "featurised", "valid", "rejected", "data_hash", "read", "schema")
    return {
        "layout": "extracted",
        "devices": {label: counters[label].to_json() for label in sorted(counters)},
        "tasks": len(tasks),
        "operators": dict(operators.most_common()),
        "targets": dict(Counter(kind for _, kind in tasks).most_common()),
        "sources": dict(sources.most_common()),
        "leaves": {
            "smallest": int(leaf_count.smallest) if leaf_count.count else None,
            "median": leaf_count.quantile(0.5),
            "largest": int(leaf_count.largest) if leaf_count.count else None,
        },
        "bytes": sum(path.stat().st_size for path in dataset_dir.glob("*.parquet")),
        **{key: manifest[key] for key in copied},
    }


def _short(identity: str) -> bytes:
    return bytes.fromhex(identity[:16])


def stats_text(stats: dict[str, Any]) -> str:
    """Returns the result of `dataset_stats` as text: a table by device and summary lines."""
    rows = [["device", "tasks", "records", "failed", "5 %", "median", "95 %"]]
    for label, row in stats["devices"].items():
        latencies = (row["latency_p05_s"], row["latency_median_s"], row["latency_p95_s"])
        counts = (row["tasks"], row["records"], row["failed"])
        rows.append([label, *map(str, counts), *(seconds_text(value) for value in latencies)])
    lines = [f"dataset ({stats['layout']})", aligned(rows, "lr"), ""]
    if "programs" in stats:
        leaves = stats["leaves"]
        sizes = f" ({leaves['smallest']} to {leaves['largest']} leaves, median {leaves['median']})"
        lines.append(
            f"{counted(stats['programs'], 'program')} of {counted(stats['tasks'], 'task')}, "
            f"{stats['featurised']} with features{sizes if leaves['largest'] else ''}, "
            f"{stats['bytes'] / 1e6:.1f} MB"
        )
        lines.append(
            f"{stats['valid']} valid; {stats['featurised'] - stats['valid']} with features are "
            "rejected by the original toolchain: samples all the same where they ran"
        )
        lines += [f"  rejected {count}: {why}" for why, count in stats["rejected"].items()]
        names = list(stats["operators"].items())[:8]
        lines.append("operators: " + ", ".join(f"{name} {count}" for name, count in names))
        lines.append(f"data hash {stats['data_hash']}")
    lines.append(ReadReport.from_json(stats["read"]).summary())
    return "\n".join(lines)
