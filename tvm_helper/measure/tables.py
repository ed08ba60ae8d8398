"""Extraction of a campaign's journal to a dataset: the tables that `train --dataset` reads."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from cdmpp.datasets.extraction.extract import ExtractReport, OnProgress, extract
from cdmpp.datasets.extraction.extracted import MANIFEST, PACKED_CAMPAIGN, is_extracted_dir
from cdmpp.datasets.extraction.machine_code import IN_NETWORK
from cdmpp.datasets.extraction.machine_code import PATTERN as MACHINE_CODE
from cdmpp.datasets.extraction.schema import SMALL_LEVEL
from cdmpp.datasets.extraction.source import Featurised, RecordSource, ShardPlan
from cdmpp.datasets.metaschedule.databases import Workload, parse_tuning_record
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, ReplayError
from cdmpp.files.atomic import read_json, replaced_folder, sha256_file, write_json
from cdmpp.files.json_text import parse_json
from cdmpp.processes.campaign import read_campaign
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import featurise_records
from cdmpp.records import ERROR_CODE_NAMES, MeasureRecord, TensetTask, program_id
from cdmpp.text import agreed, counted
from tvm_helper.measure.health import mean_slowdown
from tvm_helper.measure.journal import COMMAND, TASKS_FOLDER, read_journal

#: Programs per shard. Continuing a campaign featurises its last, incomplete shard again.
SHARD_PROGRAMS = 256


@dataclass
class CampaignSource(RecordSource):
    """Record source of a campaign's journal, in the order of the measurements.

    Attributes:
        slowdown: divisor of all times, see `write_tables`.
    """

    folder: Path
    slowdown: float = 1.0
    featuriser: Callable[..., Any] = featurise_records
    waiting: ClassVar[int | None] = 1
    level: ClassVar[int] = SMALL_LEVEL

    @property
    def _settings(self) -> dict[str, Any]:
        return read_campaign(self.folder, COMMAND)

    @cached_property
    def _measured(self) -> list[dict[str, Any]]:
        return [entry for entry in read_journal(self.folder) if entry["kind"] == "measured"]

    @cached_property
    def _schedules(self) -> dict[str, Any]:
        return {
            drawn["program_id"]: drawn["schedule"]
            for entry in read_journal(self.folder)
            if entry["kind"] == "drawn"
            for drawn in entry["programs"]
        }

    def devices(self) -> list[str]:
        """See `RecordSource.devices`."""
        return [self._settings["device"]]

    def plan(self, report: ReadReport) -> list[ShardPlan]:
        """See `RecordSource.plan`."""
        (device,) = self.devices()
        measured = self._measured
        if not measured:
            raise DataError(
                f"{self.folder}: no program is measured yet; continue with cdmpp measure"
            )
        plans = []
        for number, start in enumerate(range(0, len(measured), SHARD_PROGRAMS)):
            part = measured[start : start + SHARD_PROGRAMS]
            told = [device, part] if self.slowdown == 1 else [device, part, self.slowdown]
            digest = json.dumps(told, sort_keys=True)
            lines = range(start, start + len(part))
            plans.append(ShardPlan(number, ((device, self.folder),), len(part), digest, (lines,)))
        return plans

    def records(
        self, plan: ShardPlan, report: ReadReport
    ) -> Iterator[tuple[str, str, MeasureRecord]]:
        """See `RecordSource.records`; the group is the task's key in the journal."""
        settings = self._settings
        report.files += plan.number == 0
        for entry in (self._measured[number] for number in plan.lines[0]):
            task = read_task(self.folder, entry["task"])
            schedule = self._schedules[entry["program_id"]]
            record = measured_record(task, settings, entry, schedule)
            costs_s = tuple(cost / self.slowdown for cost in record.costs_s)
            record = replace(record, costs_s=costs_s)
            report.lines += 1
            report.records += 1
            report.failed += record.error_code != 0
            yield entry["task"], entry["program_id"], record

    def featurise(self, group: str, records: list[MeasureRecord]) -> Featurised:
        """See `RecordSource.featurise`."""
        task = read_task(self.folder, group)
        programs = [_featurised(task, record) for record in records]
        networks = [(name, weight) for name, weight in task["networks"]]
        return Featurised(task["source"], task["operator"], task["flop_count"], programs, networks)


def write_tables(
    folder: Path, *, is_quiet_time: bool = False, on_progress: OnProgress = lambda _: None
) -> ExtractReport:
    """Writes or completes the dataset of a campaign's folder from its journal.

    Args:
        is_quiet_time: whether to divide times by the slowdown of the reference program
            (`mean_slowdown`), which the manifest then contains.

    Raises:
        DataError: the folder has no campaign, or a file cannot be read or written.
    """
    folder = Path(folder)
    slowdown = _slowdown(folder) if is_quiet_time else 1.0
    report = extract(CampaignSource(folder, slowdown), folder, jobs=1, on_progress=on_progress)
    facts: dict[str, Any] = {"slowdown": slowdown} if is_quiet_time else {}
    clock = read_campaign(folder, COMMAND).get("timing", {}).get("clock")
    if clock is not None:
        facts["clock"] = clock
    if facts:
        manifest = read_json(folder / MANIFEST, what="manifest", hint="rerun the command")
        write_json(folder / MANIFEST, {**manifest, **facts})
    return report


def _slowdown(folder: Path) -> float:
    options = read_campaign(folder, COMMAND).get("options", {})
    is_fastest = options.get("timing", {}).get("keep") == "minimum"
    rounds = options.get("rounds", 1) if is_fastest else 1
    return round(mean_slowdown(read_journal(folder), rounds=rounds), 4)


def unpacked(place: Path, cache_dir: Path, *, on_progress: OnProgress = lambda _: None) -> Path:
    """Returns the cached folder of a packed campaign; unpacks it and writes its tables if missing.

    Raises:
        DataError: the archive is damaged, or the folder cannot be written.
    """
    archive = place / PACKED_CAMPAIGN
    folder = cache_dir / f"{place.resolve().name}-{sha256_file(archive)[:12]}"
    if not folder.is_dir():
        with replaced_folder(folder, what="unpacked campaign") as new:
            try:
                with tarfile.open(archive) as stream:
                    stream.extractall(new, filter="data")
            except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
                why = " ".join(str(error).split())[:200]
                raise DataError(
                    f"{archive} is damaged ({why}); expected a packed campaign of cdmpp measure. "
                    "Copy it again from its source"
                ) from None
            for path in sorted([*place.glob(MACHINE_CODE), *place.glob(IN_NETWORK)]):
                shutil.copyfile(path, new / path.name)
    if not is_extracted_dir(folder):
        write_tables(folder, on_progress=on_progress)
    return folder


def measured_record(
    task: dict[str, Any], settings: dict[str, Any], entry: dict[str, Any], schedule: Any
) -> MeasureRecord:
    """Returns a journal's entry as a record of the dataset.

    Raises:
        DataError: the entry's program id does not match its task and schedule.
    """
    outcome: dict[str, Any] = {
        "costs_s": tuple(entry["costs_s"]),
        "error_code": entry["error_code"],
        "all_cost_s": entry["build_s"] + entry["run_s"],
        "measured_at": entry["measured_at"],
    }
    if task["source"] == "tenset":
        record = MeasureRecord(
            workload_key=task["workload_key"], target=task["target"],
            target_kind=task["target_kind"], device=settings["device"],
            hardware_params=tuple(task["hardware_params"]), steps=tuple(schedule),
            version="cdmpp", **outcome,
        )  # fmt: skip
        steps = list(record.steps)
        identity = program_id("tenset", record.workload_key, steps, record.target_kind)
    else:
        # Uses the reader of MetaSchedule's databases, so that both give the same record.
        line = json.dumps([0, [schedule, [], json.loads(settings["target"]), []]])
        workload = Workload(task["workload_key"], 0)
        found = parse_tuning_record(line, [workload], device=settings["device"])
        record, identity = replace(found.record, **outcome), found.program_id
    if identity != entry["program_id"]:
        raise DataError(
            f"program {entry['program_id']} of the journal does not match its task and schedule "
            f"({identity}); expected files of one campaign. Measure again in another --out"
        )
    return record


def _featurised(task: dict[str, Any], record: MeasureRecord) -> CompactAst | ReplayError:
    try:
        if task["source"] == "tenset":
            (result,) = featurise_records(_tenset_task(task), [record])
            return result
        from tvm_helper.tasks.metaschedule import featurise_trace

        return featurise_trace(_module(task["module"]), record)
    except ReplayError as error:
        return error


def _tenset_task(task: dict[str, Any]) -> TensetTask:
    return TensetTask(
        workload_key=task["workload_key"], target=task["target"], target_kind=task["target_kind"],
        dag_json=task["dag"], hardware_params=tuple(task["hardware_params"]),
    )  # fmt: skip


def read_task(folder: Path, key: str) -> dict[str, Any]:
    """Returns the content of a task's file in a campaign's folder.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = folder / TASKS_FOLDER / f"{key}.json"
    try:
        value: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot read the task ({error}); rerun the same cdmpp measure, which "
            "rewrites the file"
        ) from None
    return value


@lru_cache(maxsize=64)
def _module(text: str) -> Any:
    from tvm_helper.compat import tvm

    return tvm.ir.load_json(text)


def failures_by_kind(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns code, name, count and first text of each kind of failure, most frequent first."""
    kinds: dict[int, dict[str, Any]] = {}
    for entry in entries:
        code = entry.get("error_code", 0)
        if not code:
            continue
        kind = kinds.setdefault(
            code,
            {"error_code": code, "name": ERROR_CODE_NAMES[code], "count": 0,
             "first_text": entry["error"], "first_program_id": entry.get("program_id")},
        )  # fmt: skip
        kind["count"] += 1
    return sorted(kinds.values(), key=lambda kind: (-kind["count"], kind["error_code"]))


@dataclass(frozen=True)
class MeasureReport:
    """Summary of a campaign's folder.

    Attributes:
        folder: the extracted dataset.
        device: label of the device.
        target: TVM's target as JSON.
        threads: threads of a program on a CPU; None on other devices.
        tasks: number of tasks.
        measured: number of programs in the tables.
        before: number of programs from earlier runs.
        failures: kinds of failure, see `failures_by_kind`.
        draw_failures: name of a task without schedules (and the way, except `random`) -> error.
        noise: differences of programs that were measured twice, see `noise_of_repeats`.
        clock: clock of the timings: `wall` or `cpu`.
        tables: report of the extraction.
    """

    folder: Path
    device: str
    target: str
    threads: int | None
    tasks: int
    measured: int
    before: int
    failures: list[dict[str, Any]]
    draw_failures: dict[str, str]
    noise: dict[str, float | int | None]
    clock: str
    tables: ExtractReport

    def summary(self) -> str:
        """Returns the report as lines of text."""
        failed = sum(kind["count"] for kind in self.failures)
        threads = "" if self.threads is None else f", {counted(self.threads, 'thread')}"
        lines = [
            f"{counted(self.measured, 'program')} of {counted(self.tasks, 'task')} on "
            f"{self.device} ({self.target}"
            f"{threads}), {failed} of them failed; {self.before} {agreed(self.before, 'were')} "
            "there before"
        ]
        if self.clock == "cpu":
            lines.append("timed by the CPU time of their thread, not wall time")
        median, mean = self.noise["median"], self.noise["mean"]
        if median is not None and mean is not None:
            lines.append(
                f"noise: {self.noise['n']} programs built and timed again differ by "
                f"{100 * median:.1f} % (median), {100 * mean:.1f} % (mean)"
            )
        for kind in self.failures:
            lines.append(f"  {kind['count']} {kind['name']}; the first: {kind['first_text']}")
        lines += _without_schedule(self.draw_failures)
        lines.append(
            f"{counted(self.tables.shards, 'shard')}; train on them: cdmpp train --dataset "
            f"{self.folder}"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        value = asdict(self)
        return {**value, "folder": str(self.folder), "tables": self.tables.to_json()}


def _without_schedule(failures: Mapping[str, str]) -> list[str]:
    """Returns one line per reason of tasks without a schedule."""
    reasons: dict[str, list[str]] = {}
    for name, text in failures.items():
        reasons.setdefault(text, []).append(name)
    return [
        f"  no schedule of {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: "
        f"{text}"
        for text, names in reasons.items()
    ]
