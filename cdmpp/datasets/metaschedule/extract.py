"""Extracts a MetaSchedule database into the same two tables as Tenset's records.

The records are read twice: once to find what is usable and which programs go together, then shard
by shard, so that a program that was measured several times is featurised once and memory does not
grow with the database.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from cdmpp.datasets.extraction.code_hash import code_hash
from cdmpp.datasets.extraction.extract import ExtractProgress, ExtractReport, build_shards
from cdmpp.datasets.extraction.program_rows import measurement_row, program_row
from cdmpp.datasets.extraction.schema import SMALL_LEVEL
from cdmpp.datasets.extraction.shard import (
    ShardCounts,
    ShardPlan,
    TableWriter,
    shard_key,
    write_shard,
)
from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    database_file,
    read_module_json,
    read_tuning_records,
    read_workloads,
)
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.files.atomic import make_folder
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord

#: Records of one shard.
SHARD_RECORDS = 2048
#: Programs that are featurised in one go.
_PROGRAM_BATCH = 256


@dataclass(frozen=True)
class WorkloadFeatures:
    """What featurising some programs of one workload gave.

    Attributes:
        operator: name of the workload's operator.
        flop_count: floating-point operations of the workload, None where unknown.
        programs: for every program its compact AST, or why there is none.
    """

    operator: str
    flop_count: float | None
    programs: Sequence[CompactAst | ReplayError]


#: (JSON of a workload's module, programs of that workload) -> features; a `DataError` where the
#: module cannot be loaded.
TraceFeaturise: TypeAlias = Callable[[str, list[MeasureRecord]], WorkloadFeatures]


def extract_database(
    database_dir: Path,
    out_dir: Path,
    featurise: TraceFeaturise,
    *,
    device: str,
    target: str | None = None,
    jobs: int | None = None,
    on_progress: Callable[[ExtractProgress], None] | None = None,
    shard_records: int = SHARD_RECORDS,
) -> ExtractReport:
    """Extracts the records of one target of a database. A killed run continues when called again.

    Args:
        database_dir: folder with `database_workload.json` and `database_tuning_record.json`, plain
            or gzipped.
        out_dir: where the extracted dataset goes; made when missing.
        featurise: module-level function that replays programs of one workload.
        device: label of the device on which they were measured (the database does not say).
        target: take only records whose target, as JSON text with sorted keys, contains this.
        jobs: processes; None = one per CPU. With 1, no process is started.
        on_progress: called in this process after every shard.
        shard_records: records of one shard, about.

    Raises:
        UsageError: the records are of several targets and `target` does not choose one.
        DataError: the database cannot be read or holds no usable record, a module cannot be loaded,
            no program could be replayed, or `out_dir` cannot be written.
    """
    database_dir, out_dir = Path(database_dir), Path(out_dir)
    report = ReadReport()
    shards = _plan(database_dir, report, target, shard_records)
    make_folder(out_dir, what="extracted dataset")
    files = tuple((device, database_file(database_dir, n)) for n in (WORKLOAD_FILE, RECORD_FILE))
    plans = [ShardPlan(number, files, len(lines)) for number, lines in enumerate(shards)]
    featuriser = code_hash(featurise) + code_hash(build_metaschedule_shard)
    keys = [
        shard_key(plan, tasks_hash=_lines_hash(lines), featuriser=featuriser)
        for plan, lines in zip(plans, shards, strict=True)
    ]
    arguments = [
        (plan, lines, database_dir, out_dir, featurise, key)
        for plan, lines, key in zip(plans, shards, keys, strict=True)
    ]
    done = build_shards(
        build_metaschedule_shard, arguments, plans, keys, out_dir, [device], jobs=jobs,
        on_progress=on_progress, read=report,
    )  # fmt: skip
    if not done.featurised:
        reason, count = done.rejected.most_common(1)[0]
        raise DataError(
            f"{database_dir}: none of its {done.programs} programs can be used "
            f"({count}: {reason}); "
            f"expected traces of the workloads in {WORKLOAD_FILE}; are the two files of one search?"
        )
    return done


def _plan(
    database_dir: Path, report: ReadReport, wanted: str | None, shard_records: int
) -> list[array[int]]:
    """Returns the lines of each shard: those of one program are in one.

    Raises:
        DataError: there is no usable record of a wanted target.
        UsageError: the records are of several targets.
    """
    places: dict[str, array[int]] = {}
    groups: dict[str, array[int]] = {}
    failed: Counter[str] = Counter()
    workloads = read_workloads(database_dir)
    for found in read_tuning_records(database_dir, workloads, report, device=""):
        target = found.record.target
        places.setdefault(target, array("L")).append(found.record.line)
        groups.setdefault(target, array("L")).append(int(found.program_id[:8], 16))
        failed[target] += found.record.error_code != 0
    targets = [target for target in places if wanted is None or wanted in target]
    if not targets:
        chosen = f" of a target with {wanted!r}" if wanted else ""
        raise DataError(
            f"{database_dir}: no usable record{chosen}; the reader says:\n{report.summary()}"
        )
    if len(targets) > 1:
        ordered = sorted(targets, key=lambda target: -len(places[target]))
        listed = "\n".join(f"  {len(places[target])} records: {target}" for target in ordered)
        raise UsageError(
            f"{database_dir} holds records of {len(targets)} targets; choose one with --target "
            f"TEXT (a part of its JSON), one extraction each, then cdmpp dataset merge:\n{listed}"
        )
    (target,) = targets
    left_out = report.records - len(places[target])
    if left_out:
        report.notes["records of another target, left out"] += left_out
        report.records, report.failed = len(places[target]), failed[target]
    shards = [array("L") for _ in range(-(-len(places[target]) // shard_records))]
    for line, group in zip(places[target], groups[target], strict=True):
        shards[group % len(shards)].append(line)
    return [lines for lines in shards if lines]


def _lines_hash(lines: array[int]) -> str:
    return hashlib.sha256(json.dumps(lines.tolist()).encode()).hexdigest()


def build_metaschedule_shard(
    plan: ShardPlan,
    lines: array[int],
    database_dir: Path,
    out_dir: Path,
    featurise: TraceFeaturise,
    key: str,
) -> dict[str, Any]:
    """Reads, replays and writes a shard; returns its completion note, which is written last.

    Raises:
        DataError: a file cannot be read or written, or a workload's module cannot be loaded.
        UsageError: the featuriser has no side environment.
    """
    device = plan.files[0][0]
    workloads = read_workloads(database_dir)

    def stream(programs: TableWriter, measurements: TableWriter, counts: ShardCounts) -> None:
        groups: dict[int, dict[str, MeasureRecord]] = {}
        records = read_tuning_records(
            database_dir, workloads, ReadReport(), device=device, only=frozenset(lines)
        )
        for found in records:
            identity = found.program_id
            measurements.add([measurement_row(identity, found.record)])
            counts.measurements += 1
            groups.setdefault(found.workload, {}).setdefault(identity, found.record)
        for number, group in groups.items():
            workload = workloads[number]
            module = read_module_json(database_dir, workload)
            try:
                _add_programs(module, group, featurise, programs, counts)
            except DataError as error:
                path = database_file(database_dir, WORKLOAD_FILE)
                raise DataError(f"{path}: workload {workload.key}: {error}") from None

    return write_shard(plan, out_dir, key, stream, SMALL_LEVEL)


def _add_programs(
    module: str,
    group: dict[str, MeasureRecord],
    featurise: TraceFeaturise,
    programs: TableWriter,
    counts: ShardCounts,
) -> None:
    """Writes the rows of the programs of one workload."""
    identities = list(group)
    for start in range(0, len(identities), _PROGRAM_BATCH):
        batch = identities[start : start + _PROGRAM_BATCH]
        features = featurise(module, [group[identity] for identity in batch])
        rows = [
            program_row(
                identity, group[identity], result, source="metaschedule",
                operator=features.operator, networks=[], flop_count=features.flop_count,
            )
            for identity, result in zip(batch, features.programs, strict=True)
        ]  # fmt: skip
        counts.add_programs(rows)
        programs.add(rows)
