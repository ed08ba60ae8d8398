"""A MetaSchedule database becomes an extracted dataset: traces are replayed, the TIR is walked."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.datasets.extraction.code_hash import code_hash
from cdmpp.datasets.extraction.extract import ExtractProgress, ExtractReport, build_shards
from cdmpp.datasets.extraction.program_rows import measurement_row, program_row
from cdmpp.datasets.extraction.shard import (
    ShardCounts,
    ShardPlan,
    TableWriter,
    write_shard,
)
from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    Workload,
    read_module_json,
    read_tuning_records,
    read_workloads,
    record_line_offsets,
)
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.features.compact_ast import CompactAst
from cdmpp.features.gpu_limits import gpu_limits
from cdmpp.files.atomic import make_folder, sha256_file
from cdmpp.records import MeasureRecord
from tvm_helper.compat import s_tir, tvm
from tvm_helper.programs.schedule_of_trace import schedule_of
from tvm_helper.tir.features import featurise_modules

#: Records of one shard.
SHARD_RECORDS = 512
_LAYOUT = re.compile(r"_n?(nchw|nhwc|ncdhw|ndhwc|ncw|nwc)\d*c?$")


def import_database(
    database_dir: Path,
    out_dir: Path,
    *,
    device: str,
    target: str | None = None,
    jobs: int | None = None,
    on_progress: Callable[[ExtractProgress], None] | None = None,
    shard_records: int = SHARD_RECORDS,
) -> ExtractReport:
    """Extracts the records of one target of a database. A killed run continues when called again.

    Args:
        database_dir: folder with `database_workload.json` and `database_tuning_record.json`.
        out_dir: where the extracted dataset goes; made when missing.
        device: label of the device on which they were measured (the database does not say).
        target: take only records whose target, as JSON text with sorted keys, contains this.
        jobs: processes; None = one per CPU. With 1, no process is started.
        on_progress: called in this process after every shard.
        shard_records: records of one shard.

    Raises:
        UsageError: the records are of several targets and `target` does not choose one.
        DataError: the database cannot be read or holds no usable record, or `out_dir` cannot be
            written.
    """
    database_dir, out_dir = Path(database_dir), Path(out_dir)
    chosen = _choose_target(database_dir, target)
    make_folder(out_dir, what="extracted dataset")
    offsets = record_line_offsets(database_dir, shard_records)
    featuriser, source = code_hash(import_database), _database_hash(database_dir)
    plans = [
        ShardPlan(number, ((device, database_dir),), shard_records)
        for number in range(len(offsets))
    ]
    keys = [
        hashlib.sha256(
            json.dumps([source, featuriser, device, chosen, offset, shard_records]).encode()
        ).hexdigest()
        for offset in offsets
    ]
    arguments = [
        (plan, database_dir, *offset, shard_records, chosen, out_dir, device, key)
        for plan, offset, key in zip(plans, offsets, keys, strict=True)
    ]
    return build_shards(
        build_metaschedule_shard, arguments, plans, keys, out_dir, [device], jobs=jobs,
        on_progress=on_progress,
    )  # fmt: skip


def _choose_target(database_dir: Path, wanted: str | None) -> str:
    """Returns the one target (canonical JSON) whose records are taken."""
    report = ReadReport()
    workloads = read_workloads(database_dir)
    targets = Counter(
        found.record.target
        for found in read_tuning_records(database_dir, workloads, report, device="")
        if wanted is None or wanted in found.record.target
    )
    if not targets:
        chosen = f" of a target with {wanted!r}" if wanted else ""
        raise DataError(
            f"{database_dir}: no usable record{chosen}; the reader says:\n{report.summary()}"
        )
    if len(targets) > 1:
        listed = "\n".join(f"  {count} records: {text}" for text, count in targets.most_common())
        raise UsageError(
            f"{database_dir} holds records of {len(targets)} targets; choose one with --target "
            f"TEXT (a part of its JSON), one extraction each, then cdmpp dataset merge:\n{listed}"
        )
    return next(iter(targets))


def _database_hash(database_dir: Path) -> str:
    files = [sha256_file(database_dir / name) for name in (WORKLOAD_FILE, RECORD_FILE)]
    return " ".join(files)


def build_metaschedule_shard(
    plan: ShardPlan,
    database_dir: Path,
    start: int,
    line: int,
    count: int,
    target: str,
    out_dir: Path,
    device: str,
    key: str,
) -> dict[str, Any]:
    """Reads, replays and writes a shard; returns its completion note, which is written last.

    Raises:
        DataError: a file cannot be read or written, or a workload's module cannot be loaded.
    """
    workloads = read_workloads(database_dir)

    def stream(programs: TableWriter, measurements: TableWriter, counts: ShardCounts) -> None:
        seen: set[str] = set()
        records = read_tuning_records(
            database_dir, workloads, counts.report, device=device, start=start, line=line,
            count=count,
        )  # fmt: skip
        for found in records:
            if found.record.target != target:
                counts.report.notes["records of another target, left out"] += 1
                counts.report.records -= 1
                counts.report.failed -= found.record.error_code != 0
                continue
            identity = found.program_id
            measurements.add([measurement_row(identity, found.record)])
            counts.measurements += 1
            if identity in seen:
                continue
            seen.add(identity)
            row = _program(identity, found.record, database_dir, workloads[found.workload])
            counts.add_programs([row])
            programs.add([row])

    return write_shard(plan, out_dir, key, stream)


def _program(
    identity: str, record: MeasureRecord, database_dir: Path, workload: Workload
) -> dict[str, Any]:
    module, operator, flops = _module(database_dir, workload)
    try:
        result: CompactAst | ReplayError = featurise_trace(module, record)
    except ReplayError as error:
        result = error
    return program_row(
        identity, record, result, source="metaschedule", operator=operator, networks=[],
        flop_count=flops,
    )  # fmt: skip


@lru_cache(maxsize=16)
def _module(database_dir: Path, workload: Workload) -> tuple[Any, str, float | None]:
    """Returns (module, operator name, flop count) of a workload."""
    text = read_module_json(database_dir, workload)
    try:
        module = tvm.ir.load_json(text)
        operator = _operator(module)
    except Exception as error:  # TVM raises whatever its reflection does
        raise DataError(
            f"{database_dir / WORKLOAD_FILE}: TVM cannot load workload {workload.key} "
            f"({type(error).__name__}: {str(error).strip()[:120]}); was it written by TVM 0.27?"
        ) from None
    try:
        flops: float | None = float(s_tir.analysis.estimate_tir_flops(module))
    except Exception:  # not every expression can be counted
        flops = None
    return module, operator, flops


def _operator(module: Any) -> str:
    """Returns the names of a module's blocks joined by `+`, without paddings and layouts."""
    schedule = s_tir.Schedule(module, debug_mask="none", error_render_level="none")
    names: list[str] = []
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        name = re.sub(r"^t_", "", str(schedule.get(block).name_hint).lower())
        name = _LAYOUT.sub("", re.sub(r"_\d+$", "", name))
        if not name.startswith("pad"):
            names.append(name)
    return "+".join(names) or "copy"


def featurise_trace(module: Any, record: MeasureRecord) -> CompactAst:
    """Replays a trace on its workload's module and returns the compact AST.

    Args:
        module: the workload, not changed.
        record: `steps` is the trace (instructions, decisions).

    Raises:
        ReplayError: the trace does not fit the module, or its result has no loop tree.
    """
    limits = gpu_limits(record.hardware_params)
    scheduled = schedule_of(module, record.steps).mod
    (result,) = featurise_modules([scheduled], None, limits=limits)
    if isinstance(result, ReplayError):
        raise result
    return result
