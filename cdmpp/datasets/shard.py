"""One shard of an extracted dataset: planned by the parent process, built by a worker."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cdmpp.datasets.atomic import sha256_file, write_atomic, write_json
from cdmpp.datasets.flops import flop_count
from cdmpp.datasets.json_graph import JsonGraph
from cdmpp.datasets.operators import operator_name
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.record_file import read_records
from cdmpp.datasets.schema import measurements_schema, programs_schema, schema_versions
from cdmpp.datasets.task_index import TaskIndex, load_tasks
from cdmpp.errors import DataError, ReplayError
from cdmpp.features.compact_ast import LEAF_FEATURE_COUNT, CompactAst
from cdmpp.records import MeasureRecord, TensetTask, program_id

Featurise: TypeAlias = Callable[
    [TensetTask, list[MeasureRecord]], Sequence[CompactAst | ReplayError]
]

#: Modules of this package that a shard's content follows from.
_CONTENT_MODULES = (
    "dag_graph", "flops", "json_graph", "operators", "record_file", "record_line", "schema",
    "shard", "task_index",
)  # fmt: skip
#: Reasons that do not come from replaying a program.
_OWN_REASONS = ("internal error", "task not in network_info", "unreadable task")
_SOURCE_SUFFIXES = (".py", ".cc", ".h")


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


@dataclass
class ShardContent:
    """Rows of a shard while they are collected."""

    programs: dict[str, dict[str, Any]] = field(default_factory=dict)
    measurements: list[dict[str, Any]] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    report: ReadReport = field(default_factory=ReadReport)


def code_hash(featurise: Featurise) -> str:
    """Returns a digest of the source of what makes a shard: the featuriser's package and ours.

    A finished shard is used again only when the code that made it is the same.
    """
    source = Path(inspect.getsourcefile(featurise) or "")
    top = source.parent
    while (top.parent / "__init__.py").is_file():
        top = top.parent
    in_package = (top / "__init__.py").is_file()
    files = sorted(top.rglob("*")) if in_package else [source]
    package = Path(__file__).resolve().parents[1]
    files += [package / "records.py", *sorted((package / "features").glob("*.py"))]
    files += [package / "datasets" / f"{module}.py" for module in _CONTENT_MODULES]
    digest = hashlib.sha256()
    for path in files:
        if path.suffix in _SOURCE_SUFFIXES and path.is_file():
            digest.update(f"{path.name}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


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
def _worker_tasks(network_info_dir: Path, tasks_hash: str) -> TaskIndex:
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

    Raises:
        DataError: a file cannot be read or written, or the featuriser breaks its contract.
    """
    content = collect_shard(plan, _worker_tasks(network_info_dir, tasks_hash), featurise)
    programs, measurements, note = plan.paths(out_dir)
    _write_table(programs, list(content.programs.values()), programs_schema())
    _write_table(measurements, content.measurements, measurements_schema())
    valid = sum(row["valid"] for row in content.programs.values())
    extras = {
        len(row["leaf_extra"]) // len(row["leaf_position"])
        for row in content.programs.values()
        if row["valid"]
    }
    value = {
        "key": key,
        "programs": _table_note(programs, len(content.programs)),
        "measurements": _table_note(measurements, len(content.measurements)),
        "valid": valid,
        "rejected": dict(sorted(content.rejected.items())),
        "leaf_extra_counts": sorted(extras),
        "read": content.report.to_json(),
    }
    write_json(note, value)
    return value


def _write_table(path: Path, rows: list[dict[str, Any]], schema: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows, schema=schema)
    write_atomic(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def _table_note(path: Path, rows: int) -> dict[str, Any]:
    return {"file": path.name, "rows": rows, "sha256": sha256_file(path)}


def collect_shard(plan: ShardPlan, tasks: TaskIndex, featurise: Featurise) -> ShardContent:
    """Returns the rows of a shard; a program is featurised once, whatever devices measured it."""
    content = ShardContent()
    new: dict[tuple[str, str], dict[str, MeasureRecord]] = {}
    for device, path in plan.files:
        for record in read_records(path, content.report, device=device):
            steps = list(record.steps)
            identity = program_id("tenset", record.workload_key, steps, record.target_kind)
            content.measurements.append(_measurement_row(identity, record))
            group = new.setdefault((record.workload_key, record.target_kind), {})
            group.setdefault(identity, record)
    for (workload_key, target_kind), records in new.items():
        task = tasks.find(workload_key, target_kind)
        networks = tasks.networks_of(workload_key, target_kind)
        content.programs.update(_program_rows(task, networks, records, featurise))
    content.rejected.update(
        _reason_group(row["reject_reason"]) for row in content.programs.values() if not row["valid"]
    )
    return content


def _reason_group(reason: str) -> str:
    """Returns the part of a reject reason that many programs share: what is before the detail."""
    parts = reason.split(": ")
    has_prefix = parts[0] in ("replay", "internal error")
    return ": ".join(parts[: 2 if has_prefix else 1])[:100]


def _measurement_row(identity: str, record: MeasureRecord) -> dict[str, Any]:
    return {
        "program_id": identity,
        "device": record.device,
        "latency_s": record.latency_s,
        "latency_std_s": float(np.std(record.costs_s)) if record.is_ok else None,
        "costs_s": list(record.costs_s),
        "error_code": record.error_code,
        "measured_at": record.measured_at,
    }


def _program_rows(
    task: TensetTask | None,
    networks: list[tuple[str, int]],
    records: dict[str, MeasureRecord],
    featurise: Featurise,
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yields (program id, row) for the distinct programs of one task."""
    operator, flops = _describe(task)
    features: Sequence[CompactAst | ReplayError]
    if task is None:
        features = [ReplayError("task not in network_info")] * len(records)
    else:
        features = _featurise(task, list(records.values()), featurise)
    for (identity, record), result in zip(records.items(), features, strict=True):
        reason = _reject_reason(result)
        ast = result if isinstance(result, CompactAst) else _empty_ast()
        yield (
            identity,
            {
                "program_id": identity,
                "source": "tenset",
                "workload_key": record.workload_key,
                "operator": operator,
                "target_kind": record.target_kind,
                "networks": [{"name": name, "weight": weight} for name, weight in networks],
                "flop_count": flops,
                "valid": reason is None,
                "reject_reason": reason,
                "leaf_features": np.asarray(ast.leaf_features, np.float32).ravel(),
                "leaf_extra": np.asarray(ast.leaf_extra, np.float32).ravel(),
                "leaf_position": np.asarray(ast.leaf_position, np.int32),
                "tree": np.asarray(ast.tree, np.int32),
            },
        )


def _describe(task: TensetTask | None) -> tuple[str, float | None]:
    """Returns (operator name, flop count); `unknown`, None where the task cannot be read."""
    if task is None:
        return "unknown", None
    try:
        graph = JsonGraph(task.dag_json)
        return operator_name(graph), flop_count(graph)
    except DataError:
        return "unknown", None


def _featurise(
    task: TensetTask, records: list[MeasureRecord], featurise: Featurise
) -> list[CompactAst | ReplayError]:
    """Calls the featuriser on all records; when that raises, on one at a time.

    So one bad program costs one program: what it raises becomes its reject reason and is counted.
    """
    try:
        results = list(featurise(task, records))
    except Exception as error:
        if len(records) > 1:
            return [result for one in records for result in _featurise(task, [one], featurise)]
        if isinstance(error, DataError):
            return [ReplayError(getattr(error, "reason", f"unreadable task: {error}"))]
        return [ReplayError(f"internal error: {type(error).__name__}: {error}"[:200])]
    if len(results) != len(records):
        raise DataError(
            f"the featuriser returned {len(results)} results for {len(records)} records of task "
            f"{task.workload_key}"
        )
    return results


def _reject_reason(result: CompactAst | ReplayError) -> str | None:
    """Returns why a program cannot be a sample, None when it can."""
    if isinstance(result, ReplayError):
        is_replay = not result.reason.startswith(_OWN_REASONS)
        return f"replay: {result.reason}" if is_replay else result.reason
    if not result.valid:
        return result.reject_reason or "rejected"
    leaf_count = len(result.leaf_position)
    if leaf_count == 0:
        return "no stores"
    if result.leaf_features.shape != (leaf_count, LEAF_FEATURE_COUNT):
        return f"features of shape {result.leaf_features.shape}"
    if not (np.isfinite(result.leaf_features).all() and np.isfinite(result.leaf_extra).all()):
        return "features are not finite"
    return None


def _empty_ast() -> CompactAst:
    return CompactAst(
        leaf_features=np.zeros((0, LEAF_FEATURE_COUNT), np.float32),
        leaf_extra=np.zeros((0, 0), np.float32),
        leaf_position=np.zeros(0, np.int32),
        tree=np.zeros(0, np.int32),
        valid=False,
    )
