"""`export`: writes an extracted dataset as the six columns of the original's feature files.

The original stores a pickled object array `(n, 6)` per task and device: mean seconds, standard
deviation, flop count, leaf features, node ids of the leaves, serialised tree. Here the same
columns are flat arrays with offsets in an `.npz` file without pickles;
`docs/reference/formats.md` shows how to convert them to the object array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import pyarrow.compute as pc

from cdmpp.datasets.extraction.extracted import read_manifest, read_shard
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder, write_atomic, write_json, write_text
from cdmpp.programs.compact_ast import LEAF_FEATURE_COUNT
from cdmpp.text import counted

ExportFormat = Literal["cdmpp6"]
#: Flop count of a task whose operations cannot be counted, as in the original.
UNKNOWN_FLOPS = -1.0


@dataclass
class ExportReport:
    """Result of an export: numbers of files (one per task and device) and samples, by device."""

    out_dir: Path
    files: dict[str, int] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    left_out: int = 0

    def summary(self) -> str:
        """Returns the report as lines of text."""
        lines = [
            f"{label}: {counted(self.samples[label], 'sample')} of {counted(count, 'task')}"
            for label, count in self.files.items()
        ]
        if self.left_out:
            lines.append(f"{counted(self.left_out, 'file')} left out: fewer samples than requested")
        return "\n".join([*lines, f"written to {self.out_dir}"])

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {**vars(self), "out_dir": str(self.out_dir)}


@dataclass(frozen=True)
class _Task:
    workload_key: str
    target_kind: str
    operator: str
    flop_count: float
    networks: tuple[tuple[str, int], ...]


def export(
    extracted_dir: Path,
    out_dir: Path,
    *,
    format: ExportFormat = "cdmpp6",
    devices: Iterable[str] | None = None,
    min_samples: int = 1,
) -> ExportReport:
    """Writes `out_dir/DEVICE/TASK.npz` for every task and device, `tasks.json` and `cfg.yaml`.

    Tasks are numbered as in the original: sorted by target kind, flop count (unknown = -1) and
    workload key. A sample is a measurement without error of a valid program. Memory holds one task
    at a time, and 200 bytes per program.

    Args:
        devices: labels; None = all.
        min_samples: minimum number of samples of a file (the original requires 48).

    Raises:
        UsageError: the format is unknown, or `out_dir` has an export already.
        DataError: the dataset is incomplete or lacks a device, or `out_dir` cannot be written.
    """
    if format not in get_args(ExportFormat):
        raise UsageError(
            f"unknown format {format!r}, expected one of {', '.join(get_args(ExportFormat))}"
        )
    manifest = read_manifest(extracted_dir)
    wanted = sorted(manifest["devices"] if devices is None else set(devices))
    for label in wanted:
        if label not in manifest["devices"]:
            raise DataError(
                f"no measurement of device {label!r} in {extracted_dir}; devices found: "
                f"{', '.join(manifest['devices'])}"
            )
    if (Path(out_dir) / "tasks.json").exists():
        raise UsageError(f"{out_dir} has an export already; give a new folder with --out DIR")
    make_folder(out_dir, what="exported dataset")
    report = ExportReport(Path(out_dir), dict.fromkeys(wanted, 0), samples=dict.fromkeys(wanted, 0))
    tasks, shards_of = _index(extracted_dir, manifest)
    order = sorted(
        range(len(tasks)),
        key=lambda n: (tasks[n].target_kind, tasks[n].flop_count, tasks[n].workload_key),
    )
    for number, position in enumerate(order):
        shards = [manifest["shards"][shard] for shard in sorted(shards_of[position])]
        samples = _samples(extracted_dir, shards, tasks[position], set(wanted))
        for label, rows in sorted(samples.items()):
            if len(rows) < min_samples:
                report.left_out += 1
                continue
            folder = make_folder(Path(out_dir) / label, what="exported dataset")
            _write(folder / f"{number}.npz", rows, tasks[position].flop_count)
            report.files[label] += 1
            report.samples[label] += len(rows)
    write_json(Path(out_dir) / "tasks.json", [_describe(tasks[n]) for n in order])
    write_text(Path(out_dir) / "cfg.yaml", "feature_type: ast_ansor\n")
    return report


def _describe(task: _Task) -> dict[str, Any]:
    return {
        "workload_key": task.workload_key,
        "target_kind": task.target_kind,
        "operator": task.operator,
        "flop_count": task.flop_count,
        "networks": [{"name": name, "weight": weight} for name, weight in task.networks],
    }


def _index(extracted_dir: Path, manifest: dict[str, Any]) -> tuple[list[_Task], list[set[int]]]:
    """Returns the tasks, and for each the shards with its programs or measurements."""
    numbers: dict[tuple[str, str], int] = {}
    tasks: list[_Task] = []
    shards_of: list[set[int]] = []
    task_of: dict[bytes, int] = {}
    columns = ["program_id", "workload_key", "target_kind", "operator", "flop_count", "networks"]
    for shard, entry in enumerate(manifest["shards"]):
        for table in read_shard(extracted_dir, entry, "programs", columns):
            for row in table.to_pylist():
                key = (row["workload_key"], row["target_kind"])
                if key not in numbers:
                    numbers[key] = len(tasks)
                    networks = tuple((pair["name"], pair["weight"]) for pair in row["networks"])
                    flops = UNKNOWN_FLOPS if row["flop_count"] is None else row["flop_count"]
                    tasks.append(_Task(*key, row["operator"], flops, networks))
                    shards_of.append(set())
                task_of[_short(row["program_id"])] = numbers[key]
                shards_of[numbers[key]].add(shard)
    for shard, entry in enumerate(manifest["shards"]):
        for table in read_shard(extracted_dir, entry, "measurements", ["program_id"]):
            for identity in set(table["program_id"].to_pylist()):
                task = task_of.get(_short(identity))
                if task is not None:
                    shards_of[task].add(shard)
    return tasks, shards_of


def _short(identity: str) -> bytes:
    return bytes.fromhex(identity[:16])


@dataclass(frozen=True)
class _Sample:
    program_id: str
    mean_s: float
    std_s: float
    leaf_features: Any
    node_ids: Any
    tree: Any


def _samples(
    extracted_dir: Path, shards: list[dict[str, Any]], task: _Task, devices: set[str]
) -> dict[str, list[_Sample]]:
    """Returns the samples of a task by device, in the order of the measurements."""
    programs = {row[0]: row[1:] for row in _programs(extracted_dir, shards, task)}
    result: dict[str, list[_Sample]] = {}
    columns = ["program_id", "device", "latency_s", "latency_std_s"]
    for shard in shards:
        for table in read_shard(extracted_dir, shard, "measurements", columns):
            for row in table.to_pylist():
                arrays = programs.get(row["program_id"])
                if arrays is None or row["latency_s"] is None or row["device"] not in devices:
                    continue
                sample = _Sample(row["program_id"], row["latency_s"], row["latency_std_s"], *arrays)
                result.setdefault(row["device"], []).append(sample)
    return result


def _programs(
    extracted_dir: Path, shards: list[dict[str, Any]], task: _Task
) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yields (id, leaf features, node ids, tree) of the task's valid programs."""
    columns = [
        "program_id", "workload_key", "target_kind", "valid", "leaf_features", "leaf_position",
        "tree",
    ]  # fmt: skip
    for shard in shards:
        for table in read_shard(extracted_dir, shard, "programs", columns):
            mask = pc.and_(
                pc.equal(table["workload_key"], task.workload_key),
                pc.and_(pc.equal(table["target_kind"], task.target_kind), table["valid"]),
            )
            chosen = table.filter(mask)
            for row in range(len(chosen)):
                features = _array(chosen, "leaf_features", row).reshape(-1, LEAF_FEATURE_COUNT)
                tree = _array(chosen, "tree", row)
                node_ids = tree[_array(chosen, "leaf_position", row)]
                yield chosen["program_id"][row].as_py(), features, node_ids, tree


def _array(table: Any, column: str, row: int) -> Any:
    return table[column][row].values.to_numpy(zero_copy_only=False)


def _write(path: Path, rows: list[_Sample], flop_count: float) -> None:
    arrays: dict[str, Any] = {
        "program_id": np.array([row.program_id for row in rows], dtype="S64"),
        "avg": np.array([row.mean_s for row in rows], np.float64),
        "std": np.array([row.std_s for row in rows], np.float64),
        "flops": np.full(len(rows), flop_count, np.float64),
        "leaf_features": np.concatenate([row.leaf_features for row in rows]).astype(np.float32),
        "node_ids": np.concatenate([row.node_ids for row in rows]).astype(np.int64),
        "leaf_offset": _offsets([len(row.node_ids) for row in rows]),
        "serialized_tree": np.concatenate([row.tree for row in rows]).astype(np.int64),
        "tree_offset": _offsets([len(row.tree) for row in rows]),
    }

    def save(temporary: Path) -> None:
        with temporary.open("wb") as stream:
            _save(stream, arrays)

    write_atomic(path, save)


def _save(stream: BinaryIO, arrays: dict[str, Any]) -> None:
    np.savez_compressed(stream, **arrays)


def _offsets(lengths: list[int]) -> Any:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
