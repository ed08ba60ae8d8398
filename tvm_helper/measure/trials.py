"""Builds and times the candidates of a search in worker processes that may die."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.config import to_dict
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder
from cdmpp.processes.worker import Answer, Worker, ask_all
from tvm_helper.compat import tvm
from tvm_helper.measure.failures import program_failure
from tvm_helper.measure.journal import says_disk_is_full
from tvm_helper.measure.target import MeasureTarget
from tvm_helper.search.options import SearchOptions

#: What has to be free on the disk before a batch is built.
LEAST_FREE_BYTES = 64 << 20
WORKER_COMMAND = (sys.executable, "-m", "tvm_helper.measure.worker")


class DiskFullError(Exception):
    """There is no space to build or to time; no program's fault."""


@dataclass(frozen=True)
class Outcome:
    """What became of building or timing a program.

    Attributes:
        error_code: as `cdmpp.records.ERROR_CODE_NAMES`, 0 = it went well.
        error: text of the failure, empty where it went well.
        seconds: how long it took.
        arguments: of a built program: types and shapes.
        costs_s: of a timed program.
        machine_code: of a built program, where it is asked for: the columns of its code.
    """

    error_code: int
    error: str
    seconds: float
    arguments: tuple[Any, ...] = ()
    costs_s: tuple[float, ...] = ()
    machine_code: tuple[float, ...] = ()


class TrialRunner:
    """Worker processes that build, and one that runs.

    Args:
        options: time-outs and timing.
        target: what is compiled for.
        folder: where built programs lie for a while; made, and removed by `close`.
        command: what workers run.
        least_free_bytes: below this the disk counts as full.

    Raises:
        DataError: the folder cannot be made.
    """

    def __init__(
        self,
        options: SearchOptions,
        target: MeasureTarget,
        folder: Path,
        *,
        command: Sequence[str] = WORKER_COMMAND,
        least_free_bytes: int = LEAST_FREE_BYTES,
    ) -> None:
        self._options = options
        self._target = target
        self._folder = make_folder(folder, what="built programs").absolute()
        self._least_free_bytes = least_free_bytes
        threads = target.threads
        count = {} if threads is None else {"TVM_NUM_THREADS": str(threads)}
        self._builders = [
            self._worker(command, f"build-{number}", {}) for number in range(options.build_jobs)
        ]
        self._runner = self._worker(command, "run", count)

    def _worker(self, command: Sequence[str], name: str, environment: dict[str, str]) -> Worker:
        return Worker(
            command, self._folder / f"{name}.log", queue_timeout_s=self._options.queue_timeout_s,
            environment={"OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip

    def artifact(self, name: str) -> Path:
        """Returns where the program of that name is built."""
        return self._folder / f"{name}.so"

    def build(self, modules: dict[str, Any]) -> Iterator[tuple[str, Outcome]]:
        """Builds scheduled modules, by name; yields (name, outcome) as they come.

        Raises:
            DiskFullError: there is no space.
            DeviceError: a worker cannot be started.
        """
        if shutil.disk_usage(self._folder).free < self._least_free_bytes:
            raise DiskFullError
        requests = [self._build_request(name, module) for name, module in modules.items()]
        names = list(modules)
        timeout_s = self._options.build_timeout_s
        for number, answer in ask_all(self._builders, requests, timeout_s=timeout_s):
            yield names[number], self._outcome(answer, is_build=True)

    def run(self, name: str, arguments: Sequence[Any]) -> Outcome:
        """Times a built program and removes it.

        Raises:
            DiskFullError: there is no space.
            DeviceError: the worker cannot be started.
        """
        request = {
            "op": "run", "artifact": str(self.artifact(name)), "arguments": list(arguments),
            "target_kind": self._target.kind, "timing": to_dict(self._options.timing), "rpc": None,
            "timeout_s": self._options.run_timeout_s,
        }  # fmt: skip
        answer = self._runner.ask(request, timeout_s=self._options.run_timeout_s)
        self.artifact(name).unlink(missing_ok=True)
        return self._outcome(answer, is_build=False)

    def close(self) -> None:
        """Ends the workers and removes the folder."""
        for one in (*self._builders, self._runner):
            one.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _build_request(self, name: str, module: Any) -> dict[str, Any]:
        path = self._folder / f"{name}.json"
        try:
            path.write_text(str(tvm.ir.save_json(module)), encoding="utf-8")
        except OSError as error:
            if says_disk_is_full(str(error)):
                raise DiskFullError from None
            raise DataError(f"{path}: cannot write ({error.strerror})") from None
        return {
            "op": "build", "module": str(path), "target": dict(self._target.options),
            "artifact": str(self.artifact(name)), "machine_code": self._options.machine_code,
        }  # fmt: skip

    def _outcome(self, answer: Answer, *, is_build: bool) -> Outcome:
        if answer.outcome == "done":
            return Outcome(
                0, "", answer.elapsed_s, tuple(answer.value.get("arguments", ())),
                tuple(answer.value.get("costs_s", ())),
                tuple(answer.value.get("machine_code", ())),
            )  # fmt: skip
        if says_disk_is_full(answer.text):
            raise DiskFullError
        code = program_failure(answer, is_build=is_build, target_kind=self._target.kind)
        return Outcome(code, answer.text, answer.elapsed_s)
