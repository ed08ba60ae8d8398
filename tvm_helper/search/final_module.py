"""Final module of a search: best schedules, compiled and timed alternately with untuned ones."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, DeviceError
from cdmpp.files.atomic import make_folder, write_json, write_text
from cdmpp.processes.worker import Answer, Worker
from tvm_helper.measure.journal import TASKS_FOLDER, says_disk_is_full
from tvm_helper.measure.target import MeasureTarget
from tvm_helper.search.folder_files import FINAL_FILE, MODULE_FILE, SCHEDULES_FOLDER
from tvm_helper.search.options import SearchOptions
from tvm_helper.search.progress import SearchProgress
from tvm_helper.search.store import SearchStore
from tvm_helper.search.tasks import SearchTask
from tvm_helper.tasks.schedule_of_trace import schedule_of

#: Name of the module for comparison, with TVM's default schedule of every task.
_UNTUNED = "untuned"
FINAL_COMMAND = (sys.executable, "-m", "tvm_helper.search.worker")


def make_final(
    options: SearchOptions,
    target: MeasureTarget,
    tasks: Sequence[SearchTask],
    store: SearchStore,
    reason: str,
    show: Callable[[SearchProgress], None],
    *,
    command: Sequence[str] = FINAL_COMMAND,
) -> None:
    """Writes the schedules, the module and its timings with those of the untuned module.

    Args:
        options: options of the search.
        target: compile target.
        tasks: tasks of the search.
        store: folder of the search, with at least one measured program.
        reason: reason why the search ended.
        show: called before every step.
        command: command of the worker.

    Raises:
        DeviceError: the module cannot be compiled or timed.
        DataError: a file cannot be written.
    """
    trials = store.journal.measured_count
    traces = {task.key: _best_trace(store, task.key) for task in tasks}
    _write_schedules(store.folder, tasks, traces)
    scratch = make_folder(store.folder / f"final.{os.getpid()}.tmp", what="compiled modules")
    threads = {} if target.threads is None else {"TVM_NUM_THREADS": str(target.threads)}
    worker = Worker(
        command, scratch / "final.log", queue_timeout_s=options.queue_timeout_s,
        environment={"OMP_NUM_THREADS": "1", **threads},
    )  # fmt: skip
    try:
        final = _Final(options, target, tasks, store, worker, scratch, show)
        tuned, arguments = final.compile(traces)
        untuned, reason_untuned = final.compile_untuned()
        is_measured = {task.symbol for task in tasks if traces[task.key] is not None}
        if options.network is None:
            arguments = {name: own for name, own in arguments.items() if name in is_measured}
        timings = final.compare(tuned, untuned, arguments, reason_untuned)
        try:
            os.replace(tuned, store.folder / MODULE_FILE)
        except OSError as error:
            raise DataError(
                f"{store.folder / MODULE_FILE}: cannot write ({error.strerror})"
            ) from None
    finally:
        worker.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    write_json(
        store.folder / FINAL_FILE,
        {
            "trials": trials, "reason": reason, "timings": timings,
            "untuned": [task.symbol for task in tasks if traces[task.key] is None],
            "is_network": options.network is not None,
        },
    )  # fmt: skip


class _Final:
    """Requests to the worker that compiles and times the modules."""

    def __init__(
        self,
        options: SearchOptions,
        target: MeasureTarget,
        tasks: Sequence[SearchTask],
        store: SearchStore,
        worker: Worker,
        scratch: Path,
        show: Callable[[SearchProgress], None],
    ) -> None:
        self._options = options
        self._target = target
        self._tasks = tasks
        self._store = store
        self._worker = worker
        self._scratch = scratch
        self._show = show

    def progress(self, stage: str) -> SearchProgress:
        trials = self._store.journal.measured_count
        return SearchProgress(stage, trials, trials, None, None, None, ())

    def compile(self, traces: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
        """Returns the tuned module and the arguments of its functions."""
        self._show(self.progress("compiling"))
        path, answer = self._compiled("tuned", traces)
        if answer.outcome != "done":
            raise DeviceError(
                f"the final module cannot be compiled ({_said(answer)}); the best schedules are "
                f"in {self._store.folder / SCHEDULES_FOLDER}. Rerun the same command to retry"
            )
        return path, answer.value["arguments"]

    def compile_untuned(self) -> tuple[Path | None, str]:
        """Returns the untuned module; None and the reason if it cannot be compiled."""
        self._show(self.progress("compiling the untuned module"))
        path, answer = self._compiled(_UNTUNED, {})
        return (path, "") if answer.outcome == "done" else (None, _said(answer))

    def _compiled(self, name: str, traces: dict[str, Any]) -> tuple[Path, Answer]:
        path = (self._scratch / f"{name}.so").absolute()
        answer = self._ask(
            {"op": "network" if self._options.network else "tasks", "artifact": str(path),
             "tasks": [self._task(task, traces.get(task.key)) for task in self._tasks],
             "is_untuned": name == _UNTUNED,
             "target": dict(self._target.options), "network": self._network(),
             "network_input": list(self._options.network_input),
             "network_batch": self._options.network_batch}
        )  # fmt: skip
        return path, answer

    def compare(
        self, tuned: Path, untuned: Path | None, arguments: dict[str, Any], reason: str
    ) -> list[dict[str, Any]]:
        """Returns the timings, one entry per function."""
        found = []
        for number, (symbol, own) in enumerate(arguments.items(), start=1):
            self._show(self.progress(f"timing {number} of {len(arguments)}"))
            modules = [str(path) for path in (tuned, untuned) if path is not None]
            entry: dict[str, Any] = {
                "symbol": symbol, "tuned_costs_s": [], "untuned_costs_s": [], "error": None,
                "untuned_error": reason or None,
            }  # fmt: skip
            answer = self._timed(symbol, own, modules)
            if answer.outcome != "done" and untuned is not None:
                entry["untuned_error"] = f"beside it: {_said(answer)}"
                answer = self._timed(symbol, own, [str(tuned)])
            if answer.outcome == "done":
                entry["tuned_costs_s"], *others = answer.value["costs_s"]
                entry["untuned_costs_s"] = others[0] if others else []
            else:
                entry["error"] = _said(answer)
            found.append(entry)
        return found

    def _timed(self, symbol: str, arguments: Any, modules: list[str]) -> Answer:
        return self._ask(
            {"op": "compare", "function": symbol, "arguments": arguments, "modules": modules,
             "target_kind": self._target.kind, "repeats": self._options.final_repeats,
             "min_repeat_s": self._options.timing.min_repeat_s,
             "is_network": self._options.network is not None}
        )  # fmt: skip

    def _ask(self, request: dict[str, Any]) -> Answer:
        answer = self._worker.ask(request, timeout_s=self._options.final_timeout_s)
        if says_disk_is_full(answer.text):
            raise self._store.journal.disk_full()
        return answer

    def _task(self, task: SearchTask, trace: Any) -> dict[str, Any]:
        file = (self._store.folder / TASKS_FOLDER / f"{task.key}.json").absolute()
        return {"file": str(file), "symbol": task.symbol, "trace": trace}

    def _network(self) -> str | None:
        network = self._options.network
        return None if network is None else str(Path(network).absolute())


def _best_trace(store: SearchStore, key: str) -> Any:
    """Returns the trace of the task's fastest trial; None without one."""
    entries = [
        entry
        for entry in store.journal.entries
        if entry["kind"] == "measured" and entry["task"] == key and entry["costs_s"]
    ]
    best = min(entries, key=lambda e: sum(e["costs_s"]) / len(e["costs_s"]), default=None)
    return None if best is None else best["record"][1][0]


def _write_schedules(folder: Path, tasks: Sequence[SearchTask], traces: dict[str, Any]) -> None:
    place = make_folder(folder / SCHEDULES_FOLDER, what="schedules")
    for task in tasks:
        trace = traces[task.key]
        if trace is None:
            continue
        text = f"# {task.task.name}\n{schedule_of(task.module, trace).mod.script()}\n"
        write_text(place / f"{task.symbol}.py", text)
        write_text(place / f"{task.symbol}.json", json.dumps(trace) + "\n")


def _said(answer: Answer) -> str:
    return answer.text or answer.outcome
