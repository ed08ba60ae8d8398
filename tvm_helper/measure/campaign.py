"""A measuring campaign: draws, builds and times programs; what it knows is in a journal.

Programs are built in batches, and timed one after the other while nothing is built. Every program
is in the journal before the next one is touched, so that a killed campaign goes on where it was.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.config import to_dict
from cdmpp.datasets.extraction.extract import ExtractReport
from cdmpp.datasets.extraction.machine_code import MachineCode, known_columns
from cdmpp.datasets.splits import uniform_draw
from cdmpp.devices.registry import find_device
from cdmpp.errors import CdmppError, DataError, DeviceError
from cdmpp.files.atomic import make_folder
from cdmpp.pretrained import model_folder
from cdmpp.processes.campaign import (
    CampaignProgress,
    Clock,
    OnProgress,
    SameFailures,
    campaign_folder,
    settle,
    show_nothing,
)
from cdmpp.timing.stats import timer
from tvm_helper.measure.failures import failure_name
from tvm_helper.measure.health import machine, snapshot
from tvm_helper.measure.journal import COMMAND, TASKS_FOLDER, Journal, says_disk_is_full
from tvm_helper.measure.options import MeasureOptions, rpc_address
from tvm_helper.measure.sources import (
    REFERENCE_TASK,
    MeasuredTask,
    campaign_tasks,
    reference_task,
)
from tvm_helper.measure.tables import failures_by_kind, write_tables
from tvm_helper.measure.target import MeasureTarget, check_machine, measure_target
from tvm_helper.measure.trials import (
    LEAST_FREE_BYTES,
    WORKER_COMMAND,
    DiskFullError,
    Outcome,
    TrialRunner,
)

_REFERENCE, _RANDOM = "reference", "random"
#: What must be the same when a campaign is continued.
_FIXED = ("device", "target", "threads", "rpc", "timing")
#: Batches between two writes of the table of machine code. What a kill takes of it,
#: `cdmpp measure --machine-code` compiles again.
_CODE_BATCHES = 8

_log = logging.getLogger("cdmpp")


@dataclass(frozen=True)
class MeasureReport:
    """What a campaign's folder holds.

    Attributes:
        folder: the extracted dataset.
        device: label.
        target: TVM's target as JSON.
        threads: of a program on a CPU, None on other devices.
        tasks: number of tasks.
        measured: programs in the tables; `before` of them from earlier runs.
        failures: kinds of failure, as `failures_by_kind`.
        draw_failures: tasks of which no schedule could be drawn: name (and the way, but for random
            schedules) -> first error text.
        tables: what was written.
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
    tables: ExtractReport

    def summary(self) -> str:
        """Returns the report as lines of text."""
        failed = sum(kind["count"] for kind in self.failures)
        threads = "" if self.threads is None else f", {self.threads} threads"
        lines = [
            f"{self.measured} programs of {self.tasks} tasks on {self.device} ({self.target}"
            f"{threads}), {failed} of them failed; {self.before} were there before"
        ]
        for kind in self.failures:
            lines.append(f"  {kind['count']} {kind['name']}; the first: {kind['first_text']}")
        lines += _without_schedule(self.draw_failures)
        lines.append(
            f"{self.tables.shards} shards; train on them: cdmpp train --dataset {self.folder}"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        value = asdict(self)
        return {**value, "folder": str(self.folder), "tables": self.tables.to_json()}


def _without_schedule(failures: Mapping[str, str]) -> list[str]:
    """Returns a line for each reason for which tasks have no schedule."""
    reasons: dict[str, list[str]] = {}
    for name, text in failures.items():
        reasons.setdefault(text, []).append(name)
    return [
        f"  no schedule of {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: "
        f"{text}"
        for text, names in reasons.items()
    ]


def run_campaign(
    options: MeasureOptions,
    folder: Path,
    *,
    device_folders: Sequence[Path] = (),
    on_progress: OnProgress | None = None,
) -> MeasureReport:
    """Measures what the options ask for into a folder; continues what is there.

    Args:
        options: the campaign.
        folder: made when missing; becomes an extracted dataset.
        device_folders: folders with device files of the user.
        on_progress: called after every step.

    Raises:
        UsageError: options that make no sense or are not those of the campaign in the folder, or
            another campaign holds the folder.
        DeviceError: the label is not of this machine, everything fails, a worker cannot be
            started, a device is not free, or the model that chooses does not know it.
        DataError: a file cannot be read or written, also for want of space.
    """
    options.check()
    if options.rpc is not None:
        rpc_address(options.rpc)
    target = measure_target(options, device_folders)
    if options.rpc is None:
        spec = find_device(options.device, device_folders)
        check_machine(options.device, target.tvm_target(), spec, is_forced=options.force)
    if options.choose_from > 1:
        _check_model(options)
    tasks = campaign_tasks(options, target.tvm_target(), _of_networks(on_progress or show_nothing))
    campaign = Campaign(options, folder, tasks, target, reference=reference_task())
    return campaign.run(on_progress)


class Campaign:
    """One run of a campaign.

    Args:
        options: what to do.
        folder: where.
        tasks: the tasks, in order.
        target: what programs are compiled for.
        reference: a task of which one program is timed before every batch; None = none.
        command: what workers run.
        least_free_bytes: below this the disk counts as full.
    """

    def __init__(
        self,
        options: MeasureOptions,
        folder: Path,
        tasks: Sequence[MeasuredTask],
        target: MeasureTarget,
        *,
        reference: MeasuredTask | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        least_free_bytes: int = LEAST_FREE_BYTES,
    ) -> None:
        self._options = options
        self._folder = Path(folder)
        self._tasks = list(tasks)
        self._target = target
        self._code_targets = {target.device: target.text}
        self._reference = reference
        self._command = command
        self._least_free_bytes = least_free_bytes
        self._failures = SameFailures(
            options.stop_after_failures, f", or look closer: cdmpp doctor {self._folder}"
        )

    def run(self, on_progress: OnProgress | None = None) -> MeasureReport:
        """Measures what is missing and writes the tables.

        Raises:
            CdmppError: see `run_campaign`. What was measured is in the journal, and in the tables
                unless they could not be written.
        """
        with campaign_folder(self._folder, what="measuring campaign"):
            self._settle()
            with Journal(self._folder) as self._journal:
                before = self._journal.measured_count
                try:
                    self._measure(on_progress or show_nothing)
                except DiskFullError:
                    raise self._journal.disk_full() from None
                except DeviceError as error:
                    self._tables_despite(error)
                    raise
                return self._report(before)

    # What is there already.

    def _settle(self) -> None:
        """Writes what the campaign is, or checks that it is the one in the folder."""
        values = {
            **self._target.to_json(),
            "rpc": self._options.rpc,
            "timing": to_dict(self._options.timing),
            "options": to_dict(self._options),
        }
        settle(self._folder, values, fixed=_FIXED, machine=machine, command=COMMAND)
        folder = make_folder(self._folder / TASKS_FOLDER, what="tasks of the campaign")
        for task in [*self._tasks, *([self._reference] if self._reference else [])]:
            task.save(folder)

    def _tables_despite(self, error: CdmppError) -> None:
        try:
            if self._journal.measured_count:
                write_tables(self._folder)
        except CdmppError as second:
            _log.warning("the tables were not written (%s), after: %s", second, error)

    # The work.

    def _measure(self, show: OnProgress) -> None:
        options = self._options
        code: dict[str, NDArray[np.float32]] = {}
        if options.machine_code:
            code = known_columns(self._folder, self._code_targets)
        with TrialRunner(
            options,
            self._target,
            self._folder,
            rpc=options.rpc,
            command=self._command,
            least_free_bytes=self._least_free_bytes,
        ) as self._trials:
            try:
                self._draw(show)
                jobs = self._missing()
                if jobs:
                    self._measure_jobs(jobs, code, show)
            finally:
                self._save(code)

    def _measure_jobs(
        self, jobs: Sequence[_Job], code: dict[str, NDArray[np.float32]], show: OnProgress
    ) -> None:
        size = self._options.batch
        total = self._journal.measured_count + len(jobs)
        reference = self._built_reference()
        clock = Clock(len(jobs))
        for start in range(0, len(jobs), size):
            self._append_health(reference)
            if start % (_CODE_BATCHES * size) == 0:
                self._save(code)
            batch = {job.program_id: job for job in jobs[start : start + size]}
            show(self._progress("building", total, clock))
            built: list[tuple[_Job, Outcome]] = []
            with timer("build a batch"):
                for name, outcome in self._trials.build(
                    {name: self._program(job.task, job.schedule) for name, job in batch.items()}
                ):
                    if outcome.error_code:
                        self._note(batch[name], outcome, build_s=outcome.seconds, run_s=0.0)
                        clock.add()
                    else:
                        built.append((batch[name], outcome))
            for job, program in built:
                with timer("time a program"):
                    outcome = self._trials.run(job.program_id, program.arguments)
                self._note(job, outcome, build_s=program.seconds, run_s=outcome.seconds)
                if program.machine_code and not outcome.error_code:
                    code[job.program_id] = np.array(program.machine_code, np.float32)
                clock.add()
                show(self._progress("timing", total, clock))

    @timer("draw programs")
    def _draw(self, show: OnProgress) -> None:
        """Draws the programs of the tasks that have none yet."""
        options = self._options
        drawn = {_drawing(entry) for entry in self._drawn()}
        drawings = [(task, way, count) for task in self._tasks for way, count in self._ways(task)]
        missing = [one for one in drawings if (one[0].key, *one[1:]) not in drawn]
        there, total = len(drawings) - len(missing), len(drawings)
        show(CampaignProgress("drawing", there, total))
        model: dict[str, Any] = {}
        if options.choose_from > 1:
            model = {"device": options.device, "model": str(model_folder(options.model))}
        for number, (task, way, count) in enumerate(missing, start=there + 1):
            wanted = {
                "count": count, "seed": options.seed, "choose_from": options.choose_from,
                **({} if way == _RANDOM else {"way": way}),
            }  # fmt: skip
            if task.programs is not None:
                programs = tuple(
                    {"program_id": identity, "schedule": steps}
                    for identity, steps in task.programs[:count]
                )
                outcome = Outcome(0, "", 0.0, programs)
            else:
                outcome = self._trials.draw(
                    self._task_file(task), timeout_s=options.draw_timeout_s, **wanted, **model
                )
            self._journal.append(
                {
                    "kind": "drawn",
                    "task": task.key,
                    **wanted,
                    "error": outcome.error or None,
                    "error_code": outcome.error_code,
                    "programs": outcome.programs,
                }
            )
            show(CampaignProgress("drawing", number, total))

    def _drawn(self) -> list[dict[str, Any]]:
        """Returns what was drawn as it is wanted now, in the order of the journal."""
        options = self._options
        wanted = {(task.key, *one) for task in self._tasks for one in self._ways(task)}
        return [
            entry
            for entry in self._journal.of_kind("drawn")
            if (entry["seed"], entry.get("choose_from", 1)) == (options.seed, options.choose_from)
            and _drawing(entry) in wanted
        ]

    def _ways(self, task: MeasuredTask) -> list[tuple[str, int]]:
        """Returns how a task's programs are scheduled and how many each way: they take turns, and
        the task's hash says which is the first.
        """
        ways, count = self._options.schedules, self._per_task()
        if task.programs is not None or len(ways) == 1:
            return [(_RANDOM if task.programs is not None else ways[0], count)]
        first = int(uniform_draw(task.key, self._options.seed) * len(ways))
        turns = Counter(ways[(first + number) % len(ways)] for number in range(count))
        return list(turns.items())

    def _per_task(self) -> int:
        most, tasks = self._options.most_programs, len(self._tasks)
        return min(self._options.per_task, -(-most // tasks)) if most else self._options.per_task

    def _missing(self) -> list[_Job]:
        """Returns what is to be measured: the first program of every task, then the second, ..."""
        done = {entry["program_id"] for entry in self._journal.of_kind("measured")}
        wanted = {task.key: task for task in self._tasks}
        columns: dict[str, list[_Job]] = {}
        for entry in self._drawn():
            column = columns.setdefault(entry["task"], [])
            column += [_Job(wanted[entry["task"]], **program) for program in entry["programs"]]
        rows = zip_longest(*columns.values())
        jobs = [job for row in rows for job in row if job is not None]
        if self._options.most_programs:
            jobs = jobs[: self._options.most_programs]
        return [job for job in jobs if job.program_id not in done]

    def _note(self, job: _Job, outcome: Outcome, *, build_s: float, run_s: float) -> None:
        """Notes a program; raises when it is the last of too many failures of one kind."""
        self._journal.append(
            {
                "kind": "measured",
                "program_id": job.program_id,
                "task": job.task.key,
                "measured_at": int(time.time()),
                "error_code": outcome.error_code,
                "error": outcome.error or None,
                "costs_s": outcome.costs_s,
                "build_s": build_s,
                "run_s": run_s,
            }
        )
        self._failures.add(failure_name(outcome.error_code), outcome.error)

    def _save(self, code: dict[str, NDArray[np.float32]]) -> None:
        if code:
            MachineCode(self._code_targets, code).save(self._folder)

    # The reference program and the machine.

    @timer("build the reference")
    def _built_reference(self) -> Outcome | None:
        """Returns the reference program, built; None where there is none."""
        if self._reference is None:
            return None
        built = self._trials.build_one(
            _REFERENCE, self._task_file(self._reference), timeout_s=self._options.draw_timeout_s
        )
        if built.error_code:
            raise DeviceError(
                f"the reference program ({REFERENCE_TASK}) cannot be built for "
                f"{self._target.options}: {built.error}; nothing was measured. Check the target, "
                "then run the same command again"
            )
        return built

    def _append_health(self, reference: Outcome | None) -> None:
        """Times the reference program and notes the load; its failure is noted, no more."""
        entry: dict[str, Any] = {"kind": "health", "at": int(time.time()), **snapshot()}
        if reference is not None:
            timed = self._trials.run(_REFERENCE, reference.arguments, is_kept=True)
            entry["reference_costs_s"] = timed.costs_s or None
            entry["reference_error"] = timed.error or None
        self._journal.append(entry)

    def _task_file(self, task: MeasuredTask) -> Path:
        return (self._folder / TASKS_FOLDER / f"{task.key}.json").absolute()

    def _program(self, task: MeasuredTask, schedule: Any) -> dict[str, Any]:
        return {"task": str(self._task_file(task)), "schedule": schedule}

    def _progress(self, stage: str, total: int, clock: Clock) -> CampaignProgress:
        measured = self._journal.of_kind("measured")
        failed = sum(entry["error_code"] != 0 for entry in measured)
        return CampaignProgress(stage, len(measured), total, failed, clock.seconds_left())

    @timer("write tables")
    def _report(self, before: int) -> MeasureReport:
        measured = self._journal.of_kind("measured")
        if not measured:
            texts = [e["error"] for e in self._journal.entries if e.get("error")]
            raise DeviceError(
                "no program could be drawn or measured"
                + (f"; the first error: {texts[0]}" if texts else "; the tasks have no programs")
            )
        try:
            tables = write_tables(self._folder)
        except DataError as error:
            if says_disk_is_full(str(error)):
                raise self._journal.disk_full() from None
            raise
        failures = failures_by_kind(measured)
        if all(entry["error_code"] for entry in measured):
            raise DeviceError(
                f"{self._folder}: none of {len(measured)} programs could be measured; most often: "
                f"{failures[0]['name']}: {failures[0]['first_text']}. Look closer: cdmpp doctor "
                f"{self._folder}"
            )
        names = {task.key: task.name for task in self._tasks}
        return MeasureReport(
            folder=self._folder,
            device=self._options.device,
            target=self._target.text,
            threads=self._target.threads,
            tasks=len({entry["task"] for entry in measured}),
            measured=len(measured),
            before=before,
            failures=failures,
            draw_failures={
                names.get(e["task"], e["task"]) + (f" as {e['way']}" if "way" in e else ""): (
                    e["error"]
                )
                for e in self._journal.of_kind("drawn")
                if e["error"]
            },
            tables=tables,
        )


def _drawing(entry: Mapping[str, Any]) -> tuple[str, str, int]:
    """Returns (task, way, count) of a line of the journal."""
    return entry["task"], entry.get("way", _RANDOM), entry["count"]


@dataclass(frozen=True)
class _Job:
    task: MeasuredTask
    program_id: str
    schedule: Any


def _check_model(options: MeasureOptions) -> None:
    """Says what is wrong with the model before anything is drawn."""
    from cdmpp.predict.requested_device import asked_device
    from tvm_helper.cost_model.state_file import load_for_search

    asked_device(options.device, load_for_search(model_folder(options.model)).card)


def _of_networks(show: OnProgress) -> Callable[[int, int], None]:
    return lambda done, total: show(CampaignProgress("reading networks", done, total))
