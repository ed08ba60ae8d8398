"""Drawing, building and timing of programs in worker processes that may crash."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from cdmpp.config import to_dict
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder
from cdmpp.files.journal import NO_SPACE
from cdmpp.processes.worker import Answer, Worker, ask_all
from tvm_helper.measure.failures import Stage, failure_code
from tvm_helper.measure.journal import says_disk_is_full
from tvm_helper.measure.options import TrialOptions
from tvm_helper.measure.target import MeasureTarget

#: Minimum free disk space before a batch is built.
LEAST_FREE_BYTES = 64 << 20
#: Bytes of a test file, about as large as a large program.
_LARGE_PROGRAM = 1 << 20
#: Largest ratio of the two fastest rounds of a program that was not disturbed in both.
_AGREEMENT = 1.05
#: Seconds that a builder has to end a slow program itself before the builder is killed.
_GRACE_S = 2.0
WORKER_COMMAND = (sys.executable, "-m", "tvm_helper.measure.worker")


class DiskFullError(DataError):
    """The disk is full; the failure is not the program's."""

    def __init__(self) -> None:
        super().__init__("the disk is full; free disk space and rerun the same command")


@dataclass(frozen=True)
class Outcome:
    """Result of drawing, building or timing programs.

    Attributes:
        error_code: index of `cdmpp.records.ERROR_CODE_NAMES`; 0 = success.
        error: text of the failure, empty on success.
        seconds: duration.
        programs: `program_id` and `schedule` of each drawn program.
        arguments: data types and shapes of a built program's arguments.
        costs_s: costs of a timed program.
        timings_s: all timings of a timed program, if its costs are only some of them.
        machine_code: machine-code columns of a built program, if requested.
    """

    error_code: int
    error: str
    seconds: float
    programs: tuple[dict[str, Any], ...] = ()
    arguments: tuple[Any, ...] = ()
    costs_s: tuple[float, ...] = ()
    timings_s: tuple[float, ...] = ()
    machine_code: tuple[float, ...] = ()


def joined_rounds(rounds: Sequence[Outcome], keep: Literal["all", "minimum"]) -> Outcome:
    """Returns the joined timings of a program's rounds; a failed last round is the result.

    Args:
        rounds: outcomes of the rounds, at least one.
        keep: see `TimingOptions`.
    """
    last = rounds[-1]
    seconds = sum(one.seconds for one in rounds)
    if last.error_code:
        return replace(last, seconds=seconds)
    timings = tuple(cost for one in rounds for cost in one.timings_s or one.costs_s)
    if keep == "minimum":
        return replace(last, seconds=seconds, costs_s=(min(timings),), timings_s=timings)
    return replace(last, seconds=seconds, costs_s=timings)


def rounds_agree(rounds: Sequence[Outcome]) -> bool:
    """Returns whether the two fastest rounds of a program agree, or there is only one."""
    fastest = sorted(min(one.timings_s or one.costs_s) for one in rounds)
    return len(fastest) < 2 or fastest[1] <= _AGREEMENT * fastest[0]


class TrialRunner:
    """Worker processes that draw and build, and one that runs; they end with the `with` block.

    Args:
        options: time-outs and timing.
        target: compile target.
        folder: folder of the campaign or search, which temporarily stores built programs.
        rpc: `HOST:PORT:KEY` of TVM's RPC tracker; None = programs run on this machine.
        command: command of the workers.
        least_free_bytes: free disk space below which the disk counts as full.
        cpu: number of the CPU that builds and runs; None = any.

    Raises:
        DataError: the folder cannot be created.
    """

    def __init__(
        self,
        options: TrialOptions,
        target: MeasureTarget,
        folder: Path,
        *,
        rpc: str | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        least_free_bytes: int = LEAST_FREE_BYTES,
        cpu: int | None = None,
    ) -> None:
        self._options = options
        self._target = target
        self._rpc = rpc
        self._cpu = cpu
        own = "build" if cpu is None else f"build-{cpu}"
        scratch = folder / f"{own}.{os.getpid()}.tmp"
        self._folder = make_folder(scratch, what="built programs").absolute()
        self._least_free_bytes = least_free_bytes
        threads = target.threads
        count = {} if threads is None else {"TVM_NUM_THREADS": str(threads)}
        self._builders = [
            self._worker(command, f"build-{number}", {}) for number in range(options.build_jobs)
        ]
        self._runner = self._worker(command, "run", count)

    def _worker(self, command: Sequence[str], name: str, environment: dict[str, str]) -> Worker:
        # Otherwise TVM binds its threads to other CPUs.
        unbound = {} if self._cpu is None else {"TVM_BIND_THREADS": "0"}
        return Worker(
            command,
            self._folder / f"{name}.log",
            queue_timeout_s=self._options.queue_timeout_s,
            environment={"OMP_NUM_THREADS": "1", **unbound, **environment},
            cpu=self._cpu,
        )

    def draw(self, task: Path, *, timeout_s: float, **values: Any) -> Outcome:
        """Draws programs of a task.

        Args:
            task: the task's file.
            values: fields of the request, see `tvm_helper.measure.worker`.

        Raises:
            DiskFullError: the disk is full.
            DeviceError: a worker cannot be started.
        """
        request = {
            **values,
            "op": "draw",
            "task": str(task),
            "target": dict(self._target.options),
            "scratch": str(self._folder),
        }
        return self._outcome(self._builders[0].ask(request, timeout_s=timeout_s), "draw")

    def of_modules(self, modules: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Returns name -> program for `build`, of scheduled modules by name.

        Raises:
            DiskFullError: the disk is full.
            DataError: a file cannot be written.
        """
        return {name: {"module": self._written(name, one)} for name, one in modules.items()}

    def build(self, programs: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Outcome]]:
        """Builds programs; yields (name, outcome) in the order of completion.

        Args:
            programs: name -> `task` and `schedule`, or `module`; see `tvm_helper.measure.worker`.

        Raises:
            DiskFullError: the disk is full.
            DeviceError: a worker cannot be started.
        """
        if shutil.disk_usage(self._folder).free < self._least_free_bytes:
            raise DiskFullError
        common = {
            "op": "build",
            "target": dict(self._target.options),
            "machine_code": self._options.machine_code,
        }
        if self._target.kind == "llvm":  # a GPU's driver does not survive a fork
            common["limit_s"] = self._options.build_timeout_s
        requests = [
            {**common, **program, "artifact": str(self._artifact(name))}
            for name, program in programs.items()
        ]
        names = list(programs)
        timeout_s = self._options.build_timeout_s
        asked = ask_all(self._builders, requests, timeout_s=timeout_s, grace_s=_GRACE_S)
        for number, answer in asked:
            yield names[number], self._outcome(answer, "build")

    def build_one(self, name: str, task: Path, *, timeout_s: float) -> Outcome:
        """Draws one program of a task, always the same one, and builds it under a name.

        Raises:
            DiskFullError: the disk is full.
            DeviceError: a worker cannot be started.
        """
        drawn = self.draw(task, timeout_s=timeout_s, count=1, seed=0, choose_from=1)
        if drawn.error_code:
            return drawn
        program = {"task": str(task), "schedule": drawn.programs[0]["schedule"]}
        ((_, built),) = self.build({name: {**program, "machine_code": False}})
        return built

    def run(self, name: str, arguments: Sequence[Any], *, is_kept: bool = False) -> Outcome:
        """Times a built program, then removes it unless `is_kept`.

        Raises:
            DiskFullError: the disk is full.
            DeviceError: the worker cannot be started, or a remote device is not free.
        """
        request = {
            "op": "run",
            "artifact": str(self._artifact(name)),
            "arguments": list(arguments),
            "target_kind": self._target.kind,
            "timing": to_dict(self._options.timing),
            "rpc": self._rpc,
            "timeout_s": self._options.run_timeout_s,
        }
        answer = self._runner.ask(request, timeout_s=self._options.run_timeout_s)
        if answer.outcome == "failed" and self._target.kind != "llvm":
            self._runner.stop()  # a GPU error persists in the process and fails the next program
        if not is_kept:
            self.remove(name)
        return self._outcome(answer, "run")

    def remove(self, name: str) -> None:
        """Removes a built program."""
        self._artifact(name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        for one in (*self._builders, self._runner):
            one.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _check_folder(self) -> None:
        """Checks that the folder is writable, so that a failure is the program's.

        Raises:
            DataError: the folder is not writable.
        """
        probe = self._folder / "probe"
        try:
            probe.write_bytes(bytes(_LARGE_PROGRAM))
            probe.unlink()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFullError from None
            raise DataError(
                f"{self._folder.parent}: cannot write built programs ({error.strerror}); "
                "finished measurements are kept: fix this and rerun the same command"
            ) from None

    def _artifact(self, name: str) -> Path:
        return self._folder / f"{name}{'.so' if self._rpc is None else '.tar'}"

    def _written(self, name: str, module: Any) -> str:
        from tvm_helper.compat import tvm

        path = self._folder / f"{name}.json"
        try:
            path.write_text(str(tvm.ir.save_json(module)), encoding="utf-8")
        except OSError as error:
            if says_disk_is_full(str(error)):
                raise DiskFullError from None
            raise DataError(f"{path}: cannot write ({error.strerror})") from None
        return str(path)

    def _outcome(self, answer: Answer, stage: Stage) -> Outcome:
        if answer.outcome == "done":
            names = ("programs", "arguments", "costs_s", "timings_s", "machine_code")
            found = {name: tuple(answer.value.get(name, ())) for name in names}
            return Outcome(0, "", answer.elapsed_s, **found)
        if says_disk_is_full(answer.text):
            raise DiskFullError
        self._check_folder()
        code = failure_code(answer, stage=stage, target_kind=self._target.kind)
        return Outcome(code, answer.text, answer.elapsed_s)
