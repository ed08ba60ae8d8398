"""Input of an audit: the programs and measurements of a dataset as compact arrays.

A folder in Tenset's layout and an extracted dataset give the same facts. They are read as a stream:
memory holds about 60 bytes per program and 20 bytes per measurement.
"""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.audit.quantiles import Quantiles
from cdmpp.datasets.extraction.extracted import is_extracted_dir, read_manifest, read_table
from cdmpp.datasets.extraction.row_content import CONTENT_COLUMNS, row_contents
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.flops import flop_count
from cdmpp.datasets.tenset.folder import (
    TaskIndex,
    find_device_files,
    find_devices,
    is_tenset_dir,
    load_tasks,
    read_records,
)
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.errors import DataError
from cdmpp.programs.ansor.json_graph import JsonGraph
from cdmpp.records import program_id_of_text

#: A record is an outlier if its slowest repeat takes more than this many times its fastest.
OUTLIER_RATIO = 2.0
#: Maximum number of listed examples.
EXAMPLE_COUNT = 5


@dataclass(frozen=True)
class TaskFacts:
    """A task: workload, target kind, operator, networks and FLOP count (None = unknown)."""

    workload_key: str
    target_kind: str
    operator: str
    networks: tuple[tuple[str, int], ...]
    flop_count: float | None

    @property
    def name(self) -> str:
        """Name of the task in samples: key and target kind."""
        return f"{self.workload_key}|{self.target_kind}"


class RepeatFacts:
    """The repeats inside the records of one device.

    Attributes:
        records: number of records without error.
        single: number of records with one cost, which have no noise estimate.
        spread: std / mean of the other records.
        max_over_min: slowest over fastest repeat of the other records.
        outliers: number of records above `OUTLIER_RATIO`.
        worst: the largest (max / min, program, number of costs).
    """

    def __init__(self) -> None:
        self.records = 0
        self.single = 0
        self.outliers = 0
        self.spread = Quantiles()
        self.max_over_min = Quantiles()
        self.worst: list[tuple[float, str, int]] = []

    def add(self, identity: str, costs_s: Iterable[float]) -> None:
        """Adds the costs of one record without error."""
        costs = np.fromiter(costs_s, np.float64)
        self.records += 1
        if len(costs) < 2:
            self.single += 1
            return
        ratio = float(costs.max() / costs.min()) if costs.min() > 0 else float("inf")
        self.outliers += ratio > OUTLIER_RATIO
        self.spread.add([float(costs.std() / costs.mean())])
        if np.isfinite(ratio):
            self.max_over_min.add([ratio])
        heapq.heappush(self.worst, (ratio, identity, len(costs)))
        if len(self.worst) > EXAMPLE_COUNT:
            heapq.heappop(self.worst)


@dataclass
class Facts:
    """A dataset as arrays of P programs and M measurements.

    Attributes:
        layout: `tenset` or `extracted`.
        tasks: tasks of the programs.
        identity: uint8 [P, 32], program ids.
        task: int32 [P], index into `tasks`.
        content: uint64 [P], digest of the model's inputs (extracted) or of the steps (Tenset);
            0 = the program has no features.
        repeated_programs: number of repeated programs, of which the arrays have one copy.
        devices: labels.
        program: int64 [M], row of the program; -1 = not in the dataset.
        device: int32 [M], index into `devices`.
        latency_s: float64 [M], NaN = the measurement failed.
        repeats: label -> repeats in its records.
        read: counters of the reader.
    """

    layout: str
    tasks: list[TaskFacts]
    identity: NDArray[np.uint8]
    task: NDArray[np.int32]
    content: NDArray[np.uint64]
    repeated_programs: int
    devices: list[str]
    program: NDArray[np.int64]
    device: NDArray[np.int32]
    latency_s: NDArray[np.float64]
    repeats: dict[str, RepeatFacts]
    read: dict[str, Any]

    def program_hex(self, program: int) -> str:
        """Returns the id of a program as hex digits."""
        return bytes(self.identity[program]).hex()


def collect_facts(dataset_dir: Path, *, network_info: Path | None = None) -> Facts:
    """Reads the facts of a folder in Tenset's layout or of an extracted dataset.

    Args:
        network_info: folder of the tasks, for a folder in Tenset's layout; None = inside it.

    Raises:
        DataError: the folder is neither, or its files cannot be read.
    """
    dataset_dir = Path(dataset_dir)
    if is_extracted_dir(dataset_dir):
        return _extracted_facts(dataset_dir)
    if is_tenset_dir(dataset_dir):
        return _tenset_facts(dataset_dir, network_info or dataset_dir / "network_info")
    raise DataError(
        f"{dataset_dir}: neither a Tenset directory (measure_records/DEVICE/*.json) nor an "
        "extracted dataset (manifest.json); extract one with: cdmpp dataset extract --dataset DIR"
    )


@dataclass
class _Collector:
    tasks: dict[tuple[str, str], int] = field(default_factory=dict)
    task_facts: list[TaskFacts] = field(default_factory=list)
    identity: bytearray = field(default_factory=bytearray)
    task: array[int] = field(default_factory=lambda: array("i"))
    content: array[int] = field(default_factory=lambda: array("Q"))
    measured: bytearray = field(default_factory=bytearray)
    devices: dict[str, int] = field(default_factory=dict)
    device: array[int] = field(default_factory=lambda: array("i"))
    latency_s: array[float] = field(default_factory=lambda: array("d"))
    repeats: dict[str, RepeatFacts] = field(default_factory=dict)

    def add_program(self, identity: str, task: int, content: int) -> None:
        self.identity += bytes.fromhex(identity)
        self.task.append(task)
        self.content.append(content)

    def add_measurement(
        self, identity: str, device: str, latency_s: float | None, costs_s: Iterable[float]
    ) -> None:
        self.measured += bytes.fromhex(identity)[:8]
        self.device.append(self.devices.setdefault(device, len(self.devices)))
        self.latency_s.append(float("nan") if latency_s is None else latency_s)
        repeats = self.repeats.setdefault(device, RepeatFacts())
        if latency_s is not None:
            repeats.add(identity, costs_s)

    def finish(self, layout: str, read: dict[str, Any]) -> Facts:
        """Joins the measurements to their programs."""
        identity = np.frombuffer(bytes(self.identity), np.uint8).reshape(-1, 32)
        short = np.ascontiguousarray(identity[:, :8]).view(np.uint64).ravel()
        known, first = np.unique(short, return_index=True)
        wanted = np.frombuffer(bytes(self.measured), np.uint64)
        place = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
        found = known[place] == wanted if len(known) else np.zeros(len(wanted), bool)
        program = np.where(found, place, -1) if len(known) else np.full(len(wanted), -1)
        return Facts(
            layout=layout,
            tasks=self.task_facts,
            identity=identity[first],
            task=np.array(self.task, np.int32)[first],
            content=np.array(self.content, np.uint64)[first],
            repeated_programs=len(short) - len(known),
            devices=list(self.devices),
            program=program.astype(np.int64),
            device=np.array(self.device, np.int32),
            latency_s=np.array(self.latency_s, np.float64),
            repeats=dict(sorted(self.repeats.items())),
            read=read,
        )


def _extracted_facts(extracted_dir: Path) -> Facts:
    collector = _Collector()
    columns = [
        "program_id", "workload_key", "target_kind", "operator", "networks", "flop_count",
        "leaf_position", *CONTENT_COLUMNS,
    ]  # fmt: skip
    for table in read_table(extracted_dir, "programs", columns):
        contents = row_contents(table)
        leaves = table["leaf_position"].combine_chunks().value_lengths().to_pylist()
        rows = table.select(columns[:6]).to_pylist()
        for row, leaf_count, digest in zip(rows, leaves, contents, strict=True):
            key = (row["workload_key"], row["target_kind"])
            if key not in collector.tasks:
                collector.tasks[key] = len(collector.tasks)
                networks = tuple((pair["name"], pair["weight"]) for pair in row["networks"])
                collector.task_facts.append(
                    TaskFacts(*key, row["operator"], networks, row["flop_count"])
                )
            content = int.from_bytes(digest, "little") if leaf_count else 0
            collector.add_program(row["program_id"], collector.tasks[key], content)
    wanted = ["program_id", "device", "latency_s", "costs_s"]
    for table in read_table(extracted_dir, "measurements", wanted):
        for row in table.to_pylist():
            collector.add_measurement(
                row["program_id"], row["device"], row["latency_s"], row["costs_s"]
            )
    return collector.finish("extracted", read_manifest(extracted_dir)["read"])


def _tenset_facts(dataset_dir: Path, network_info: Path) -> Facts:
    index = load_tasks(network_info)
    collector = _Collector()
    report = ReadReport()
    seen: set[bytes] = set()
    for label in find_devices(dataset_dir):
        for path in find_device_files(dataset_dir, label):
            for record in read_records(path, report, device=label):
                key = (record.workload_key, record.target_kind)
                identity = program_id_of_text("tenset", key[0], record.schedule, key[1])
                collector.add_measurement(identity, label, record.latency_s, record.costs_s)
                digest = bytes.fromhex(identity)[:16]
                if digest in seen:
                    continue
                seen.add(digest)
                if key not in collector.tasks:
                    collector.tasks[key] = len(collector.tasks)
                    collector.task_facts.append(_task_facts(index, *key))
                text = f"{record.schedule} {key[1]}".encode()
                content = hashlib.blake2b(text, digest_size=8).digest()
                collector.add_program(
                    identity, collector.tasks[key], int.from_bytes(content, "little")
                )
    return collector.finish("tenset", report.to_json())


def _task_facts(index: TaskIndex, workload_key: str, target_kind: str) -> TaskFacts:
    task = index.find(workload_key, target_kind)
    networks = tuple(index.networks_of(workload_key, target_kind))
    operator, flops = "unknown", None
    if task is not None:
        try:
            graph = JsonGraph(task.dag_json)
            operator, flops = operator_name(graph), flop_count(graph)
        except DataError:
            operator = "unreadable"
    return TaskFacts(workload_key, target_kind, operator, networks, flops)
