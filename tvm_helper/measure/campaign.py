"""A measuring campaign: draws, builds and times programs; what it knows is in a journal.

Programs are built in batches, and timed one after the other while nothing is built. Every program
is in the journal before the next one is touched, so that a killed campaign goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.config import to_dict
from cdmpp.datasets.extraction.extract import ExtractReport
from cdmpp.datasets.extraction.machine_code import MachineCode, known_columns
from cdmpp.errors import CdmppError, DataError, DeviceError
from cdmpp.files.atomic import make_folder, remove_abandoned, write_json
from cdmpp.files.journal import folder_lock
from cdmpp.pretrained import model_folder
from cdmpp.processes.worker import Answer, Worker, ask_all
from cdmpp.timing.stats import timer
from tvm_helper.measure.failures import (
    INSTANTIATION,
    SameFailures,
    failure_code,
    program_failure,
)
from tvm_helper.measure.health import machine, snapshot
from tvm_helper.measure.journal import (
    CAMPAIGN_FILE,
    TASKS_FOLDER,
    Journal,
    check_unchanged,
    disk_full,
    says_disk_is_full,
)
from tvm_helper.measure.options import MeasureOptions, rpc_address
from tvm_helper.measure.sources import MeasuredTask, campaign_tasks
from tvm_helper.measure.tables import failures_by_kind, read_campaign, write_tables
from tvm_helper.measure.target import MeasureTarget, measure_target
from tvm_helper.measure.trials import LEAST_FREE_BYTES, WORKER_COMMAND

#: Named, so that every campaign on any machine has the same one.
REFERENCE_TASK = "matmul:m=192,n=192,k=192"
#: What must be the same when a campaign is continued.
_FIXED = ("device", "target", "threads", "rpc", "timing")
#: Batches between two writes of the table of machine code. What a kill takes of it,
#: `cdmpp measure --machine-code` compiles again.
_CODE_BATCHES = 8

_log = logging.getLogger("cdmpp")


@dataclass(frozen=True)
class MeasureProgress:
    """How far a campaign is. `seconds_left` is None while nothing is known."""

    stage: str
    done: int
    total: int
    failed: int
    seconds_left: float | None


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
        draw_failures: tasks of which no schedule could be drawn: name -> first error text.
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
        lines += [f"  no schedule of {name}: {text}" for name, text in self.draw_failures.items()]
        lines.append(
            f"{self.tables.shards} shards; train on them: cdmpp train --dataset {self.folder}"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        value = asdict(self)
        return {**value, "folder": str(self.folder), "tables": self.tables.to_json()}


def run_campaign(
    options: MeasureOptions,
    folder: Path,
    *,
    device_folders: Sequence[Path] = (),
    on_progress: Callable[[MeasureProgress], None] | None = None,
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
        DeviceError: everything fails, a worker cannot be started, a device is not free, or the
            model that chooses does not know it.
        DataError: a file cannot be read or written, also for want of space.
    """
    options.check()
    if options.rpc is not None:
        rpc_address(options.rpc)
    target = measure_target(options, device_folders)
    if options.choose_from > 1:
        _check_model(options)
    tasks = campaign_tasks(options, target.tvm_target(), _of_networks(on_progress or _ignore))
    reference = campaign_tasks(MeasureOptions(sample=(REFERENCE_TASK,)), None)[0]
    campaign = Campaign(options, folder, tasks, target, reference=reference)
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
        self._reference = reference
        self._command = command
        self._least_free_bytes = least_free_bytes
        self._reference_artifact: tuple[Path, list[Any]] | None = None
        self._failures = SameFailures(
            options.stop_after_failures, f", or look closer: cdmpp doctor {self._folder}"
        )

    def run(self, on_progress: Callable[[MeasureProgress], None] | None = None) -> MeasureReport:
        """Measures what is missing and writes the tables.

        Raises:
            CdmppError: see `run_campaign`. What was measured is in the journal, and in the tables
                unless they could not be written.
        """
        make_folder(self._folder, what="measuring campaign")
        with folder_lock(self._folder):
            remove_abandoned(self._folder)
            self._settle()
            self._journal = Journal(self._folder)
            try:
                before = self._journal.measured_count
                self._code = self._known_code()
                try:
                    with self._workers():
                        try:
                            self._measure(on_progress or _ignore)
                        finally:
                            self._save_code()
                except DeviceError as error:
                    self._tables_despite(error)
                    raise
                return self._report(before)
            finally:
                self._journal.close()

    # What is there already.

    def _settle(self) -> None:
        """Writes what the campaign is, or checks that it is the one in the folder."""
        values = {
            **self._target.to_json(), "rpc": self._options.rpc,
            "timing": to_dict(self._options.timing),
        }  # fmt: skip
        path = self._folder / CAMPAIGN_FILE
        if path.is_file():
            old = read_campaign(self._folder)
            check_unchanged(self._folder, "campaign", old, {n: values[n] for n in _FIXED})
            values["machine"] = old.get("machine")
        else:
            values["machine"] = machine()
        write_json(path, {**values, "options": to_dict(self._options)})
        folder = make_folder(self._folder / TASKS_FOLDER, what="tasks of the campaign")
        for task in [*self._tasks, *([self._reference] if self._reference else [])]:
            task.save(folder)

    def _tables_despite(self, error: CdmppError) -> None:
        try:
            if self._journal.measured_count:
                write_tables(self._folder)
        except CdmppError as second:
            _log.warning("the tables were not written (%s), after: %s", second, error)

    # Workers.

    @contextlib.contextmanager
    def _workers(self) -> Iterator[None]:
        self._scratch = make_folder(self._folder / f"build.{_pid()}.tmp", what="built programs")
        options = self._options
        threads = self._target.threads
        count = {} if threads is None else {"TVM_NUM_THREADS": str(threads)}

        def worker(name: str, environment: dict[str, str]) -> Worker:
            return Worker(
                self._command, self._scratch / f"{name}.log",
                queue_timeout_s=options.queue_timeout_s,
                environment={"OMP_NUM_THREADS": "1", **environment},
            )  # fmt: skip

        self._builders = [worker(f"build-{number}", {}) for number in range(options.build_jobs)]
        self._runner = worker("run", count)
        try:
            yield
        finally:
            for one in (*self._builders, self._runner):
                one.stop()
            shutil.rmtree(self._scratch, ignore_errors=True)

    # The work.

    def _measure(self, show: Callable[[MeasureProgress], None]) -> None:
        self._draw(show)
        jobs = self._missing()
        total = self._journal.measured_count + len(jobs)
        if not jobs:
            return
        self._build_reference()
        clock = _Clock(len(jobs))
        for start in range(0, len(jobs), self._options.batch):
            self._check_space()
            self._append_health()
            if start % (_CODE_BATCHES * self._options.batch) == 0:
                self._save_code()
            batch = jobs[start : start + self._options.batch]
            built: list[tuple[_Job, dict[str, Any], float]] = []
            show(self._progress("building", total, clock))
            requests = [self._build_request(job) for job in batch]
            building = timer("build a batch")
            building.start()
            answers = ask_all(
                self._builders, requests, timeout_s=self._options.build_timeout_s
            )  # fmt: skip
            for number, answer in answers:
                if answer.outcome == "done":
                    built.append((batch[number], answer.value, answer.elapsed_s))
                else:
                    self._fail(batch[number], answer, is_build=True)
                    clock.add(1)
            building.stop()
            for job, program, build_s in built:
                self._time(job, program, build_s)
                clock.add(1)
                show(self._progress("timing", total, clock))

    @timer("draw programs")
    def _draw(self, show: Callable[[MeasureProgress], None]) -> None:
        """Draws the programs of the tasks that have none yet."""
        options, count = self._options, self._per_task()
        drawn = {entry["task"] for entry in self._drawn()}
        missing = [task for task in self._tasks if task.key not in drawn]
        show(MeasureProgress("drawing", len(self._tasks) - len(missing), len(self._tasks), 0, None))
        for number, task in enumerate(missing, start=1 + len(self._tasks) - len(missing)):
            entry: dict[str, Any] = {
                "kind": "drawn", "task": task.key, "count": count, "seed": options.seed,
                "choose_from": options.choose_from, "error": None, "error_code": 0, "programs": [],
            }  # fmt: skip
            if task.programs is not None:
                entry["programs"] = [
                    {"program_id": identity, "schedule": steps}
                    for identity, steps in task.programs[:count]
                ]
            else:
                request = {
                    "op": "draw", "task": self._task_file(task), "target": self._target.options,
                    "count": count, "seed": options.seed, "scratch": str(self._scratch),
                    "choose_from": options.choose_from,
                }  # fmt: skip
                if options.choose_from > 1:
                    request |= {"device": options.device, "model": str(model_folder(options.model))}
                answer = self._builders[0].ask(request, timeout_s=self._options.draw_timeout_s)
                if answer.outcome == "done":
                    entry["programs"] = answer.value["programs"]
                elif says_disk_is_full(answer.text):
                    raise disk_full(self._folder, self._journal.measured_count)
                else:
                    entry["error_code"] = failure_code(answer, died=INSTANTIATION)
                    entry["error"] = answer.text
            self._journal.append(entry)
            show(MeasureProgress("drawing", number, len(self._tasks), 0, None))

    def _drawn(self) -> list[dict[str, Any]]:
        """Returns what was drawn as it is wanted now."""
        options = self._options
        wanted = (self._per_task(), options.seed, options.choose_from)
        return [
            entry
            for entry in self._journal.entries
            if entry["kind"] == "drawn"
            and (entry["count"], entry["seed"], entry.get("choose_from", 1)) == wanted
        ]

    def _per_task(self) -> int:
        most, tasks = self._options.most_programs, len(self._tasks)
        return min(self._options.per_task, -(-most // tasks)) if most else self._options.per_task

    def _missing(self) -> list[_Job]:
        """Returns what is to be measured: the first program of every task, then the second, ..."""
        done = {e["program_id"] for e in self._journal.entries if e["kind"] == "measured"}
        wanted = {task.key: task for task in self._tasks}
        columns = [
            [_Job(wanted[entry["task"]], **program) for program in entry["programs"]]
            for entry in self._drawn()
            if entry["task"] in wanted
        ]
        longest = max(map(len, columns), default=0)
        jobs = [column[row] for row in range(longest) for column in columns if row < len(column)]
        if self._options.most_programs:
            jobs = jobs[: self._options.most_programs]
        return [job for job in jobs if job.program_id not in done]

    @timer("time a program")
    def _time(self, job: _Job, program: dict[str, Any], build_s: float) -> None:
        artifact = self._artifact(job)
        request = self._run_request(artifact, program["arguments"])
        answer = self._runner.ask(request, timeout_s=self._options.run_timeout_s)
        artifact.unlink(missing_ok=True)
        if answer.outcome != "done":
            self._fail(job, answer, is_build=False, build_s=build_s)
            return
        self._append(job, error_code=0, error=None, costs_s=answer.value["costs_s"],
                     build_s=build_s, run_s=answer.elapsed_s)  # fmt: skip
        if "machine_code" in program:
            self._code[job.program_id] = np.array(program["machine_code"], np.float32)
        self._failures.add(0, "")

    def _fail(self, job: _Job, answer: Answer, *, is_build: bool, build_s: float = 0.0) -> None:
        """Notes a failure; raises when it is the last of too many of one kind."""
        if says_disk_is_full(answer.text):
            raise disk_full(self._folder, self._journal.measured_count)
        code = program_failure(answer, is_build=is_build, target_kind=self._target.kind)
        seconds = (answer.elapsed_s, 0.0) if is_build else (build_s, answer.elapsed_s)
        self._append(job, error_code=code, error=answer.text, costs_s=[], build_s=seconds[0],
                     run_s=seconds[1])  # fmt: skip
        self._failures.add(code, answer.text)

    def _append(self, job: _Job, **values: Any) -> None:
        self._journal.append(
            {"kind": "measured", "program_id": job.program_id, "task": job.task.key,
             "measured_at": int(time.time()), **values}
        )  # fmt: skip

    # Machine code.

    def _known_code(self) -> dict[str, NDArray[np.float32]]:
        """Returns what the table has already."""
        if not self._options.machine_code:
            return {}
        return known_columns(self._folder, self._text)

    def _save_code(self) -> None:
        if self._code:
            MachineCode(self._text, self._code).save(self._folder)

    @property
    def _text(self) -> str:
        return str(self._target.to_json()["target"])

    # The reference program and the machine.

    @timer("build the reference")
    def _build_reference(self) -> None:
        if self._reference is None:
            return
        file = self._task_file(self._reference)
        common = {"task": file, "target": self._target.options}
        request = {
            **common, "op": "draw", "count": 1, "seed": 0, "choose_from": 1,
            "scratch": str(self._scratch),
        }  # fmt: skip
        drawn = self._builders[0].ask(request, timeout_s=self._options.draw_timeout_s)
        built = drawn
        artifact = self._scratch / f"reference{self._suffix}"
        if drawn.outcome == "done":
            schedule = drawn.value["programs"][0]["schedule"]
            request = {**common, "op": "build", "schedule": schedule, "artifact": str(artifact)}
            built = self._builders[0].ask(request, timeout_s=self._options.build_timeout_s)
        if built.outcome != "done":
            if says_disk_is_full(built.text):
                raise disk_full(self._folder, self._journal.measured_count)
            raise DeviceError(
                f"the reference program ({REFERENCE_TASK}) cannot be built for "
                f"{self._target.options}: {built.text}; nothing was measured. Check the target, "
                "then run the same command again"
            )
        self._reference_artifact = (artifact, built.value["arguments"])

    def _append_health(self) -> None:
        """Times the reference program and notes the load; its failure is noted, no more."""
        entry: dict[str, Any] = {"kind": "health", "at": int(time.time()), **snapshot()}
        if self._reference_artifact is not None:
            request = self._run_request(*self._reference_artifact)
            answer = self._runner.ask(request, timeout_s=self._options.run_timeout_s)
            entry["reference_costs_s"] = answer.value.get("costs_s")
            entry["reference_error"] = answer.text or None
        self._journal.append(entry)

    def _check_space(self) -> None:
        if shutil.disk_usage(self._folder).free < self._least_free_bytes:
            raise disk_full(self._folder, self._journal.measured_count)

    # Requests.

    def _task_file(self, task: MeasuredTask) -> str:
        return str((self._folder / TASKS_FOLDER / f"{task.key}.json").absolute())

    @property
    def _suffix(self) -> str:
        return ".so" if self._options.rpc is None else ".tar"

    def _artifact(self, job: _Job) -> Path:
        return self._scratch / f"{job.program_id}{self._suffix}"

    def _build_request(self, job: _Job) -> dict[str, Any]:
        return {
            "op": "build", "task": self._task_file(job.task), "schedule": job.schedule,
            "target": self._target.options, "artifact": str(self._artifact(job).absolute()),
            "machine_code": self._options.machine_code,
        }  # fmt: skip

    def _run_request(self, artifact: Path, arguments: list[Any]) -> dict[str, Any]:
        return {
            "op": "run", "artifact": str(artifact.absolute()), "arguments": arguments,
            "target_kind": self._target.kind, "timing": to_dict(self._options.timing),
            "rpc": self._options.rpc, "timeout_s": self._options.run_timeout_s,
        }  # fmt: skip

    def _progress(self, stage: str, total: int, clock: _Clock) -> MeasureProgress:
        entries = self._journal.entries
        failed = sum(e["kind"] == "measured" and e["error_code"] != 0 for e in entries)
        done = self._journal.measured_count
        return MeasureProgress(stage, done, total, failed, clock.seconds_left())

    @timer("write tables")
    def _report(self, before: int) -> MeasureReport:
        if not self._journal.measured_count:
            texts = [e["error"] for e in self._journal.entries if e.get("error")]
            raise DeviceError(
                "no program could be drawn or measured"
                + (f"; the first error: {texts[0]}" if texts else "; the tasks have no programs")
            )
        try:
            tables = write_tables(self._folder)
        except DataError as error:
            if says_disk_is_full(str(error)):
                count = self._journal.measured_count
                raise disk_full(self._folder, count) from None
            raise
        names = {task.key: task.name for task in self._tasks}
        drawn = [e for e in self._journal.entries if e["kind"] == "drawn" and e["error"]]
        measured = [e for e in self._journal.entries if e["kind"] == "measured"]
        return MeasureReport(
            folder=self._folder,
            device=self._options.device,
            target=json.dumps(self._target.options, sort_keys=True),
            threads=self._target.threads,
            tasks=len({entry["task"] for entry in measured}),
            measured=len(measured),
            before=before,
            failures=failures_by_kind(measured),
            draw_failures={names.get(e["task"], e["task"]): e["error"] for e in drawn},
            tables=tables,
        )


@dataclass(frozen=True)
class _Job:
    task: MeasuredTask
    program_id: str
    schedule: Any


class _Clock:
    """Estimates what is left from how long this run's programs took."""

    def __init__(self, total: int) -> None:
        self._start = time.monotonic()
        self._total = total
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count

    def seconds_left(self) -> float | None:
        if not self._done:
            return None
        return (time.monotonic() - self._start) / self._done * (self._total - self._done)


def _pid() -> int:
    import os

    return os.getpid()


def _check_model(options: MeasureOptions) -> None:
    """Says what is wrong with the model before anything is drawn."""
    from cdmpp.training.asked_device import asked_device
    from tvm_helper.cost_model.state_file import load_for_search

    asked_device(options.device, load_for_search(model_folder(options.model)).card)


def _of_networks(show: Callable[[MeasureProgress], None]) -> Callable[[int, int], None]:
    return lambda done, total: show(MeasureProgress("reading networks", done, total, 0, None))


def _ignore(progress: MeasureProgress) -> None:
    """Shows nothing."""
