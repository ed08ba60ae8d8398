"""A MetaSchedule database as a source of an extraction.

The records are read twice: first to find the usable records of each program, then shard by shard,
so that a program with several measurements is featurised once and memory does not grow with the
database.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

from cdmpp.datasets.extraction.schema import SMALL_LEVEL
from cdmpp.datasets.extraction.source import Featurised, RecordSource, ShardPlan, files_digest
from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    Workload,
    database_file,
    read_module_json,
    read_tuning_records,
    read_workloads,
)
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, UsageError
from cdmpp.records import MeasureRecord
from cdmpp.text import counted

#: Approximate number of records of a shard.
SHARD_RECORDS = 2048

#: (JSON of a workload's module, programs of that workload) -> features; raises a `DataError` if the
#: module cannot be loaded.
TraceFeaturise: TypeAlias = Callable[[str, list[MeasureRecord]], Featurised]


@dataclass
class TuningDatabase(RecordSource):
    """The records of one target of a database.

    Attributes:
        folder: folder with `database_workload.json` and `database_tuning_record.json`, plain or
            gzipped.
        device: label of the measured device (not stored in the database).
        featuriser: replays and featurises programs of one workload.
        target: text that the target of a record, as JSON with sorted keys, must contain; None = all
            records.
        shard_records: approximate number of records of a shard.
    """

    folder: Path
    device: str
    featuriser: TraceFeaturise
    target: str | None = None
    shard_records: int = SHARD_RECORDS
    level: ClassVar[int] = SMALL_LEVEL
    if_useless: ClassVar[str] = (
        f"expected traces of the workloads in {WORKLOAD_FILE}; check that both files are from "
        "one search"
    )

    def devices(self) -> list[str]:
        """See `RecordSource.devices`."""
        return [self.device]

    def plan(self, report: ReadReport) -> list[ShardPlan]:
        """See `RecordSource.plan`.

        Raises:
            DataError: the database cannot be read or has no usable record.
            UsageError: the records are of several targets and `target` does not choose one.
        """
        shards = _chosen_lines(self.folder, report, self.target, self.shard_records)
        names = (WORKLOAD_FILE, RECORD_FILE)
        files = tuple((self.device, database_file(self.folder, name)) for name in names)
        digest = files_digest(files)
        return [
            ShardPlan(number, files, len(lines), f"{digest} {lines.tolist()}", (array("L"), lines))
            for number, lines in enumerate(shards)
        ]

    def records(
        self, plan: ShardPlan, report: ReadReport
    ) -> Iterator[tuple[Workload, str, MeasureRecord]]:
        """See `RecordSource.records`; `plan` has counted all records."""
        workloads = read_workloads(self.folder)
        only = frozenset(plan.lines[1])
        for found in read_tuning_records(
            self.folder, workloads, ReadReport(), device=self.device, only=only
        ):
            yield workloads[found.workload], found.program_id, found.record

    def featurise(self, group: Workload, records: list[MeasureRecord]) -> Featurised:
        """See `RecordSource.featurise`."""
        module = read_module_json(self.folder, group)
        try:
            return self.featuriser(module, records)
        except DataError as error:
            path = database_file(self.folder, WORKLOAD_FILE)
            raise DataError(f"{path}: workload {group.key}: {error}") from None


def _chosen_lines(
    database_dir: Path, report: ReadReport, wanted: str | None, shard_records: int
) -> list[array[int]]:
    """Returns the lines of each shard; all lines of a program are in one shard.

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
        raise DataError(f"{database_dir}: no usable record{chosen} found:\n{report.summary()}")
    if len(targets) > 1:
        ordered = sorted(targets, key=lambda target: -len(places[target]))
        listed = "\n".join(
            f"  {counted(len(places[target]), 'record')}: {target}" for target in ordered
        )
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
