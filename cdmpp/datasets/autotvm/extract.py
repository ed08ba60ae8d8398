"""Extracts AutoTVM logs into the same two tables as Tenset's records.

The logs are read twice: once to find which lines belong to which task, then task by task, so that a
program that several devices measured is featurised once and memory does not grow with the logs.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from cdmpp.datasets.autotvm.logs import (
    AutotvmTask,
    autotvm_program_id,
    find_logs,
    log_device,
    read_autotvm_log,
    task_of,
)
from cdmpp.datasets.extraction.code_hash import code_hash
from cdmpp.datasets.extraction.extract import ExtractProgress, ExtractReport, build_shards
from cdmpp.datasets.extraction.program_rows import measurement_row, program_row
from cdmpp.datasets.extraction.shard import (
    ShardCounts,
    ShardPlan,
    TableWriter,
    shard_key,
    write_shard,
)
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, ReplayError
from cdmpp.files.atomic import make_folder
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord

#: Records after which a shard is closed; a task never spans two shards.
SHARD_RECORDS = 1024
#: Programs that are featurised in one go.
_PROGRAM_BATCH = 256

TaskKey: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class AutotvmFeatures:
    """What featurising some programs of one task gave.

    Attributes:
        flop_count: floating-point operations of the task, None where unknown.
        programs: for every program its compact AST, or why there is none.
    """

    flop_count: float | None
    programs: Sequence[CompactAst | ReplayError]


AutotvmFeaturise: TypeAlias = Callable[[AutotvmTask, list[MeasureRecord]], AutotvmFeatures]


@dataclass
class _TaskLines:
    """Lines of one task: log number -> line numbers."""

    lines: dict[int, array[int]] = field(default_factory=dict)
    count: int = 0

    def add(self, log: int, line: int) -> None:
        self.lines.setdefault(log, array("L")).append(line)
        self.count += 1


def extract_autotvm(
    place: Path,
    out_dir: Path,
    devices: Iterable[str] | None,
    featurise: AutotvmFeaturise,
    *,
    per_task: int | None = None,
    jobs: int | None = None,
    on_progress: Callable[[ExtractProgress], None] | None = None,
    shard_records: int = SHARD_RECORDS,
) -> ExtractReport:
    """Extracts AutoTVM logs. A run that was killed continues when it is called again.

    Args:
        place: a log (`DEVICE.json[.gz]`) or a folder of logs.
        out_dir: where the extracted dataset goes; made when missing.
        devices: labels to read; None = all.
        featurise: module-level function that lowers programs of one task.
        per_task: take so many programs of each task and device that ran without error, drawn by a
            hash of the program; None = every line, failures included.
        jobs: processes; None = one per CPU. With 1, no process is started.
        on_progress: called in this process after every shard.
        shard_records: records after which a shard is closed.

    Raises:
        DataError: a log or a device is missing, nothing in the logs is usable, or `out_dir` cannot
            be written.
    """
    logs = _chosen_logs(Path(place), devices)
    report = ReadReport()
    tasks = _find_lines(logs, report, per_task)
    if not tasks:
        raise DataError(f"{place}: no usable record; the reader says:\n{report.summary()}")
    make_folder(Path(out_dir), what="extracted dataset")
    plans, chosen = _plan(logs, tasks, shard_records)
    featuriser = code_hash(featurise)
    keys = [
        shard_key(plan, tasks_hash=_lines_hash(lines), featuriser=featuriser)
        for plan, lines in zip(plans, chosen, strict=True)
    ]
    arguments = [
        (plan, lines, Path(out_dir), featurise, key)
        for plan, lines, key in zip(plans, chosen, keys, strict=True)
    ]
    return build_shards(
        build_autotvm_shard, arguments, plans, keys, Path(out_dir),
        sorted({log_device(path) for path in logs}),
        jobs=jobs, on_progress=on_progress, read=report,
    )  # fmt: skip


def _chosen_logs(place: Path, devices: Iterable[str] | None) -> list[Path]:
    logs = find_logs(place)
    if devices is None:
        return logs
    found = {log_device(path): path for path in logs}
    wanted = sorted(set(devices))
    missing = [label for label in wanted if label not in found]
    if missing:
        raise DataError(
            f"{place}: no AutoTVM log of device {missing[0]!r}; devices found: "
            f"{', '.join(sorted(found))}; the file's name is the device"
        )
    return [found[label] for label in wanted]


def _find_lines(
    logs: Sequence[Path], report: ReadReport, per_task: int | None
) -> dict[TaskKey, _TaskLines]:
    """Returns the lines to extract by task, in the order in which the tasks first occur."""
    tasks: dict[TaskKey, _TaskLines] = {}
    for number, path in enumerate(logs):
        drawn: dict[TaskKey, list[tuple[int, int]]] = {}
        for record in read_autotvm_log(path, report):
            key = (record.workload_key, record.target_kind)
            if per_task is None:
                tasks.setdefault(key, _TaskLines()).add(number, record.line)
            elif record.is_ok:
                _draw(drawn.setdefault(key, []), record, per_task)
        for key, lines in drawn.items():
            for line in sorted(line for _, line in lines):
                tasks.setdefault(key, _TaskLines()).add(number, line)
    return tasks


def _draw(heap: list[tuple[int, int]], record: MeasureRecord, count: int) -> None:
    """Keeps the `count` programs with the lowest digests (as a heap with the highest on top)."""
    rank = int(autotvm_program_id(record)[:15], 16)
    if any(other == -rank for other, _ in heap):
        return  # a repeated measurement
    if len(heap) < count:
        heapq.heappush(heap, (-rank, record.line))
    elif -rank > heap[0][0]:
        heapq.heapreplace(heap, (-rank, record.line))


def _plan(
    logs: Sequence[Path], tasks: dict[TaskKey, _TaskLines], shard_records: int
) -> tuple[list[ShardPlan], list[dict[int, array[int]]]]:
    """Returns the shards and, for each, its lines: position in `plan.files` -> line numbers."""
    groups: list[list[_TaskLines]] = [[]]
    for task in tasks.values():
        if groups[-1] and sum(t.count for t in groups[-1]) + task.count > shard_records:
            groups.append([])
        groups[-1].append(task)
    plans: list[ShardPlan] = []
    chosen: list[dict[int, array[int]]] = []
    for group in groups:
        used = sorted({log for task in group for log in task.lines})
        lines = {position: array("L") for position in range(len(used))}
        for task in group:
            for log, numbers in task.lines.items():
                lines[used.index(log)].extend(numbers)
        files = tuple((log_device(logs[log]), logs[log]) for log in used)
        plans.append(ShardPlan(len(plans), files, sum(task.count for task in group)))
        chosen.append(lines)
    return plans, chosen


def _lines_hash(lines: dict[int, array[int]]) -> str:
    text = json.dumps([sorted(numbers) for _, numbers in sorted(lines.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def build_autotvm_shard(
    plan: ShardPlan,
    lines: dict[int, array[int]],
    out_dir: Path,
    featurise: AutotvmFeaturise,
    key: str,
) -> dict[str, object]:
    """Reads, featurises and writes a shard; returns its completion note, which is written last.

    Raises:
        DataError: a file cannot be read or written.
        UsageError: the featuriser has no side environment.
    """

    def stream(programs: TableWriter, measurements: TableWriter, counts: ShardCounts) -> None:
        groups: dict[TaskKey, dict[str, MeasureRecord]] = {}
        for position, (_, path) in enumerate(plan.files):
            wanted = frozenset(lines[position])
            for record in read_autotvm_log(path, ReadReport(), only=wanted):
                identity = autotvm_program_id(record)
                measurements.add([measurement_row(identity, record)])
                counts.measurements += 1
                group = groups.setdefault((record.workload_key, record.target_kind), {})
                group.setdefault(identity, record)
        for group in groups.values():
            _add_programs(group, featurise, programs, counts)

    return write_shard(plan, out_dir, key, stream)


def _add_programs(
    group: dict[str, MeasureRecord],
    featurise: AutotvmFeaturise,
    programs: TableWriter,
    counts: ShardCounts,
) -> None:
    """Writes the rows of the programs of one task."""
    identities = list(group)
    task = task_of(group[identities[0]])
    for start in range(0, len(identities), _PROGRAM_BATCH):
        batch = identities[start : start + _PROGRAM_BATCH]
        records = [group[identity] for identity in batch]
        features = featurise(task, records)
        rows = [
            program_row(
                identity,
                record,
                result,
                source="autotvm",
                operator=task.operator,
                networks=[],
                flop_count=features.flop_count,
            )
            for identity, record, result in zip(batch, records, features.programs, strict=True)
        ]
        counts.add_programs(rows)
        programs.add(rows)
