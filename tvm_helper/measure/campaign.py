"""Measuring campaign: draws, builds and times programs; its state is in a journal.

Programs are built in batches, then timed one after the other while nothing is built. Each result is
in the journal before the next program starts, so that a killed campaign can continue.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from cdmpp.config import to_dict
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
from cdmpp.text import counted
from cdmpp.timing.stats import timer
from tvm_helper.measure.failures import failure_name
from tvm_helper.measure.health import machine, noise_of_repeats, snapshot
from tvm_helper.measure.journal import COMMAND, TASKS_FOLDER, Journal, says_disk_is_full
from tvm_helper.measure.options import MeasureOptions, rpc_address
from tvm_helper.measure.sources import (
    REFERENCE_TASK,
    MeasuredTask,
    campaign_tasks,
    reference_task,
)
from tvm_helper.measure.tables import MeasureReport, failures_by_kind, write_tables
from tvm_helper.measure.target import (
    MeasureTarget,
    check_machine,
    measure_target,
    with_registered_label,
)
from tvm_helper.measure.trials import (
    LEAST_FREE_BYTES,
    WORKER_COMMAND,
    DiskFullError,
    Outcome,
    TrialRunner,
    joined_rounds,
    rounds_agree,
)

_REFERENCE, _RANDOM = "reference", "random"
#: Settings that must not change when a campaign is continued.
_FIXED = ("device", "target", "threads", "rpc", "timing")
#: Batches between two writes of the table of machine code. `cdmpp measure --machine-code` compiles
#: entries that a kill has lost.
_CODE_BATCHES = 8
#: Number of batches after which some of their programs are measured again.
_AGAIN_BATCHES = 64

_log = logging.getLogger("cdmpp")


def run_campaign(
    options: MeasureOptions,
    folder: Path,
    *,
    device_folders: Sequence[Path] = (),
    on_progress: OnProgress | None = None,
) -> MeasureReport:
    """Runs a campaign in a folder, or continues the one in the folder.

    Args:
        options: the campaign's options.
        folder: folder of the campaign, created if missing; becomes an extracted dataset.
        device_folders: folders with device files of the user.
        on_progress: called after every step.

    Raises:
        UsageError: invalid options, options that differ from those of the campaign in the folder,
            or a folder that another process uses.
        DeviceError: the label is another machine's, too many programs fail, a worker cannot be
            started, a device is not free, or the choosing model does not support the device.
        DataError: a file cannot be read or written, or the disk is full.
    """
    options.check()
    if options.rpc is not None:
        rpc_address(options.rpc)
    options = with_registered_label(options, device_folders)
    target = measure_target(options, device_folders)
    options.check_threads(target.threads)
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
        options: the campaign's options.
        folder: the campaign's folder.
        tasks: the tasks, in order.
        target: compile target of the programs.
        reference: task of the reference program, timed before every batch; None = no reference.
        command: command of the workers.
        least_free_bytes: free disk space below which the disk counts as full.
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
        self._lock, self._is_stopped, self._batches = RLock(), False, 0
        self._failures = SameFailures(
            options.stop_after_failures, f", or find the cause with: cdmpp doctor {self._folder}"
        )

    def run(self, on_progress: OnProgress | None = None) -> MeasureReport:
        """Measures the missing programs and writes the tables.

        Raises:
            CdmppError: see `run_campaign`. Finished measurements are in the journal; after a
                `DeviceError` also in the tables, unless writing them fails.
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

    # Files of the campaign.

    def _settle(self) -> None:
        """Writes the campaign's settings, or checks them against those in the folder."""
        values = {
            **self._target.to_json(),
            "rpc": self._options.rpc,
            "timing": self._options.timing.to_json(),
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

    # Measuring.

    def _measure(self, show: OnProgress) -> None:
        self._show, self._code = show, {}
        if self._options.machine_code:
            self._code = known_columns(self._folder, self._code_targets)
        jobs = self._options.jobs
        cpus = [None] if jobs == 1 else sorted(os.sched_getaffinity(0))[:jobs]
        with ExitStack() as stack:
            lanes = [_Lane(stack.enter_context(self._runner(cpu))) for cpu in cpus]
            try:
                self._draw(lanes[0].trials)
                missing = self._missing()
                measured = self._journal.of_kind("measured")
                self._done, self._total = len(measured), len(measured) + len(missing)
                self._failed = sum(entry["error_code"] != 0 for entry in measured)
                # A program is built once and timed in each round.
                self._clock = Clock(len(missing) * (1 + self._options.rounds))
                part = _AGAIN_BATCHES * self._options.batch
                for start in range(0, max(len(missing), 1), part):
                    self._measure_jobs(missing[start : start + part], lanes)
                    self._measure_jobs(self._chosen_again(), lanes)
            finally:
                self._save()

    def _runner(self, cpu: int | None) -> TrialRunner:
        return TrialRunner(
            self._options,
            self._target,
            self._folder,
            rpc=self._options.rpc,
            command=self._command,
            least_free_bytes=self._least_free_bytes,
            cpu=cpu,
        )

    def _measure_jobs(self, jobs: Sequence[_Job], lanes: Sequence[_Lane]) -> None:
        """Measures programs in batches, on all lanes in parallel."""
        if not jobs:
            return None
        size = self._options.batch
        batches = iter([jobs[start : start + size] for start in range(0, len(jobs), size)])
        if len(lanes) == 1:
            return self._measure_batches(batches, lanes[0])
        self._is_stopped = False
        with ThreadPoolExecutor(len(lanes)) as pool:
            for lane in [pool.submit(self._measure_batches, batches, lane) for lane in lanes]:
                try:
                    lane.result()
                except BaseException:
                    self._is_stopped = True  # the other lanes finish their current program
                    raise

    def _measure_batches(self, batches: Iterator[Sequence[_Job]], lane: _Lane) -> None:
        """Measures batches from the shared iterator until it ends or the campaign stops."""
        try:
            if lane.reference is None:
                lane.reference = self._built_reference(lane.trials)
            while not self._is_stopped:
                with self._lock:
                    batch = next(batches, None)
                if batch is None:
                    return
                self._append_health(lane)
                self._measure_batch({job.program_id: job for job in batch}, lane.trials)
        except BaseException:
            self._is_stopped = True
            raise

    def _measure_batch(self, batch: Mapping[str, _Job], trials: TrialRunner) -> None:
        self._show_progress("building")
        built: list[tuple[_Job, Outcome]] = []
        with timer("build a batch"):
            for name, outcome in trials.build(
                {name: self._program(job.task, job.schedule) for name, job in batch.items()}
            ):
                self._count_step(batch[name])
                if outcome.error_code:
                    self._count_step(batch[name], self._options.rounds)
                    self._note(batch[name], outcome, build_s=outcome.seconds, run_s=0.0)
                else:
                    built.append((batch[name], outcome))
        rounds: dict[str, list[Outcome]] = {job.program_id: [] for job, _ in built}
        for number in range(self._options.rounds + self._options.extra_rounds):
            for job, program in built:
                if self._is_stopped:
                    return
                if number < self._options.rounds:
                    self._count_step(job)
                timed = rounds[job.program_id]
                if self._is_timed(timed):
                    continue
                with timer("time a program"):
                    timed.append(trials.run(job.program_id, program.arguments, is_kept=True))
                if self._is_timed(timed):
                    trials.remove(job.program_id)
                    self._note_timed(job, program, timed)

    def _is_timed(self, rounds: Sequence[Outcome]) -> bool:
        """Returns whether a program failed or needs no further round."""
        if rounds and rounds[-1].error_code:
            return True
        extra = len(rounds) - self._options.rounds
        return extra >= self._options.extra_rounds or (extra >= 0 and rounds_agree(rounds))

    def _note_timed(self, job: _Job, program: Outcome, rounds: Sequence[Outcome]) -> None:
        """Records a program that was built and timed, in one or more rounds."""
        outcome = joined_rounds(rounds, self._options.timing.keep)
        self._note(job, outcome, build_s=program.seconds, run_s=outcome.seconds)
        if program.machine_code and not outcome.error_code:
            with self._lock:
                self._code[job.program_id] = np.array(program.machine_code, np.float32)
        self._show_progress("timing")

    @timer("draw programs")
    def _draw(self, trials: TrialRunner) -> None:
        """Draws the programs of tasks without drawn programs."""
        options, show = self._options, self._show
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
                outcome = trials.draw(
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
        """Returns the journal's drawings that match the current options, in order."""
        options = self._options
        wanted = {(task.key, *one) for task in self._tasks for one in self._ways(task)}
        return [
            entry
            for entry in self._journal.of_kind("drawn")
            if (entry["seed"], entry.get("choose_from", 1)) == (options.seed, options.choose_from)
            and _drawing(entry) in wanted
        ]

    def _ways(self, task: MeasuredTask) -> list[tuple[str, int]]:
        """Returns (way, number of programs) pairs of a task. Programs alternate between the ways;
        the task's hash selects the first one.
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
        """Returns the programs to measure: the first one of every task, then the second, ..."""
        done = {entry["program_id"] for entry in self._journal.of_kind("measured")}
        wanted = {task.key: task for task in self._tasks}
        columns: dict[str, list[_Job]] = {}
        for entry in self._drawn():
            column = columns.setdefault(entry["task"], [])
            column += [_Job(wanted[entry["task"]], **program) for program in entry["programs"]]
        rows = zip_longest(*columns.values())
        # Two ways of drawing can give the same program.
        jobs = list({job.program_id: job for row in rows for job in row if job}.values())
        if self._options.most_programs:
            jobs = jobs[: self._options.most_programs]
        return [job for job in jobs if job.program_id not in done]

    def _chosen_again(self) -> list[_Job]:
        """Returns the programs to measure a second time, drawn by their hash."""
        share, seed = self._options.again_share, self._options.seed
        done = {entry["program_id"] for entry in self._journal.of_kind("again")}
        wanted = {task.key: task for task in self._tasks}
        schedules = {
            program["program_id"]: program["schedule"]
            for entry in self._drawn()
            for program in entry["programs"]
        }
        return [
            _Job(wanted[entry["task"]], name, schedules[name], is_again=True)
            for entry in self._journal.of_kind("measured")
            if not entry["error_code"]
            and (name := entry["program_id"]) not in done
            and name in schedules
            and uniform_draw(f"again|{name}", seed) < share
        ]

    def _note(self, job: _Job, outcome: Outcome, *, build_s: float, run_s: float) -> None:
        """Records a program; raises after too many consecutive failures of one kind."""
        extra: dict[str, Any] = {}
        if outcome.timings_s:
            extra["timings_s"] = outcome.timings_s
        if self._options.timing.clock != "wall":
            extra["clock"] = self._options.timing.clock
        entry = {
            "kind": "again" if job.is_again else "measured",
            "program_id": job.program_id,
            "task": job.task.key,
            "measured_at": int(time.time()),
            "error_code": outcome.error_code,
            "error": outcome.error or None,
            "costs_s": outcome.costs_s,
            "build_s": build_s,
            "run_s": run_s,
            **extra,
        }
        with self._lock:
            self._journal.append(entry)
            if not job.is_again:
                self._done += 1
                self._failed += outcome.error_code != 0
            if self._is_stopped:  # by another lane, which raises the error
                return
            try:
                self._failures.add(failure_name(outcome.error_code), outcome.error)
            except CdmppError:
                self._is_stopped = True
                raise

    def _save(self) -> None:
        if self._code:
            MachineCode(self._code_targets, self._code).save(self._folder)

    # The reference program and the machine.

    @timer("build the reference")
    def _built_reference(self, trials: TrialRunner) -> Outcome | None:
        """Returns the built reference program; None without a reference."""
        if self._reference is None:
            return None
        built = trials.build_one(
            _REFERENCE, self._task_file(self._reference), timeout_s=self._options.draw_timeout_s
        )
        if built.error_code:
            raise DeviceError(
                f"the reference program ({REFERENCE_TASK}) cannot be built for "
                f"{self._target.options}: {built.error}; nothing was measured. Check the target, "
                "then rerun the same command"
            )
        return built

    def _append_health(self, lane: _Lane) -> None:
        """Times the reference program and records its result (also a failure) with the load. Saves
        the table of machine code every `_CODE_BATCHES` batches.
        """
        entry: dict[str, Any] = {"kind": "health", "at": int(time.time()), **snapshot()}
        if lane.reference is not None:
            timed = lane.trials.run(_REFERENCE, lane.reference.arguments, is_kept=True)
            entry["reference_costs_s"] = timed.costs_s or None
            entry["reference_error"] = timed.error or None
        with self._lock:
            self._journal.append(entry)
            if self._batches % _CODE_BATCHES == 0:
                self._save()
            self._batches += 1

    def _task_file(self, task: MeasuredTask) -> Path:
        return (self._folder / TASKS_FOLDER / f"{task.key}.json").absolute()

    def _program(self, task: MeasuredTask, schedule: Any) -> dict[str, Any]:
        return {"task": str(self._task_file(task)), "schedule": schedule}

    def _count_step(self, job: _Job, steps: int = 1) -> None:
        """Counts builds and rounds of timings for the remaining time."""
        if not job.is_again:
            with self._lock:
                self._clock.add(steps)

    def _show_progress(self, stage: str) -> None:
        with self._lock:
            left = self._clock.seconds_left()
            self._show(CampaignProgress(stage, self._done, self._total, self._failed, left))

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
                f"{self._folder}: none of {counted(len(measured), 'program')} could be measured; "
                f"most often: {failures[0]['name']}: {failures[0]['first_text']}. Find the cause "
                f"with: cdmpp doctor {self._folder}"
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
            noise=noise_of_repeats(self._journal.entries),
            clock=self._options.timing.clock,
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
    is_again: bool = False


@dataclass
class _Lane:
    """Worker processes of one CPU, and the reference program once it is built."""

    trials: TrialRunner
    reference: Outcome | None = None


def _check_model(options: MeasureOptions) -> None:
    """Checks that the model supports the device, before programs are drawn."""
    from cdmpp.predict.requested_device import asked_device
    from tvm_helper.cost_model.state_file import load_for_search

    asked_device(options.device, load_for_search(model_folder(options.model)).card)


def _of_networks(show: OnProgress) -> Callable[[int, int], None]:
    return lambda done, total: show(CampaignProgress("reading networks", done, total))
