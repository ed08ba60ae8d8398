"""Folder of a search: the journal of all trials, and MetaSchedule's JSON database.

The journal is authoritative. Each trial is written to it and synced to disk before the next one
begins, together with its line of the database. Opening the folder drops truncated lines, and the
database's line of a trial that was begun but is not in the journal; that trial is measured again.
Missing lines of the database are restored from the journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.extraction.machine_code import MachineCode, known_columns
from cdmpp.datasets.metaschedule.databases import RECORD_FILE, WORKLOAD_FILE
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, write_bytes, write_json
from cdmpp.processes.campaign import campaign_folder, check_unchanged
from cdmpp.records import program_id
from tvm_helper.compat import meta_schedule
from tvm_helper.measure.journal import (
    TASKS_FOLDER,
    Journal,
    says_disk_is_full,
)
from tvm_helper.search.folder_files import SEARCH_FILE, read_search
from tvm_helper.search.tasks import SearchTask

#: Latency that TVM stores for a failed program, in seconds.
FAILED_S = 1e10


class SearchStore:
    """Folder of a search, locked by this process; see `open_store`.

    Args:
        folder: the existing folder.
        tasks: the tasks, in order.
        target: compile target.
        targets: label of the device -> target as text, as in the search's file.

    Attributes:
        folder: the folder.
        journal: all trials so far.
        database: TVM's database of the trials.

    Raises:
        DataError: a file cannot be read or written.
    """

    def __init__(
        self, folder: Path, tasks: Sequence[SearchTask], target: Any, targets: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self._target = target
        self.journal = Journal(folder)
        for name in (WORKLOAD_FILE, RECORD_FILE):
            _drop_torn_line(folder / name)
        try:
            _commit_workloads(folder, tasks)
            self._drop_begun_record()
            self._complete_records(tasks)
            self.database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
            self._workloads = {
                task.key: self.database.commit_workload(task.module) for task in tasks
            }
        except DataError:
            raise
        except Exception as error:  # TVM's reader raises many types
            if _is_full(folder, error):
                raise self.journal.disk_full() from None
            raise DataError(
                f"{folder}: the database cannot be read ({type(error).__name__}); remove "
                f"{WORKLOAD_FILE} and {RECORD_FILE} there; they are rebuilt from the journal"
            ) from None
        self._tasks = {task.key: task for task in tasks}
        self._targets = dict(targets)
        #: Program -> columns, including those of earlier runs; None until there is a new one.
        self._code: dict[str, NDArray[np.float32]] | None = None
        self._is_code_saved = True

    def add(self, key: str, candidate: Any, entry: dict[str, Any]) -> str:
        """Adds a trial to the database and the journal, and syncs both to disk.

        Args:
            key: key of the task.
            candidate: the measured candidate.
            entry: the result, with at least `costs_s` and `error_code`.

        Returns:
            The program's id.

        Raises:
            DataError: the disk is full or fails; then neither file has the trial.
        """
        path = self.folder / RECORD_FILE
        before = path.stat().st_size
        record = meta_schedule.database.TuningRecord(
            candidate.sch.trace, self._workloads[key], list(entry["costs_s"]) or [FAILED_S],
            self._target, candidate.args_info,
        )  # fmt: skip
        self.journal.append({"kind": "begun", "task": key, "at": before})
        try:
            self.database.commit_tuning_record(record)
            line = _line_at(path, before)
            if line is None:
                raise self.journal.disk_full()
            _sync(path)
            identity = program_id(
                "metaschedule", self._tasks[key].task.workload_key, line[1][0],
                str(self._target.kind.name),
            )  # fmt: skip
            self.journal.append(
                {"kind": "measured", "task": key, "program_id": identity, "record": line, **entry}
            )
        except Exception as error:
            os.truncate(path, before)
            if isinstance(error, DataError):
                raise
            if says_disk_is_full(str(error)) or isinstance(error, OSError):
                raise self.journal.disk_full() from None
            raise
        return identity

    def add_code(self, identity: str, columns: Sequence[float]) -> None:
        """Adds machine-code columns of a program; `save_code` writes them."""
        if self._code is None:
            self._code = known_columns(self.folder, self._targets)
        self._code[identity] = np.array(columns, np.float32)
        self._is_code_saved = False

    def save_code(self) -> None:
        """Writes the table of machine code if it has changed.

        Raises:
            DataError: it cannot be written.
        """
        if self._code is not None and not self._is_code_saved:
            MachineCode(self._targets, self._code).save(self.folder)
            self._is_code_saved = True

    def trials(self, key: str) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yields the trials of a task with their candidates, in the order of the journal.

        Raises:
            DataError: a trial does not match its task.
        """
        for entry in self.journal.entries:
            if entry["kind"] != "measured" or entry["task"] != key:
                continue
            try:
                record = meta_schedule.database.TuningRecord.from_json(
                    entry["record"][1], self._workloads[key]
                )
                candidate = record.as_measure_candidate()
            except Exception as error:  # TVM's checks raise many types
                raise DataError(
                    f"{self.folder}: a trial of the journal does not match its task "
                    f"({type(error).__name__}); TVM may have changed. Use another --out"
                ) from None
            yield entry, candidate

    def close(self) -> None:
        """Closes the journal and writes the table of machine code."""
        self.journal.close()
        self.save_code()

    def _drop_begun_record(self) -> None:
        """Drops the database's line of the last trial if the journal only has its beginning."""
        trials = [one for one in self.journal.entries if one["kind"] in ("begun", "measured")]
        path = self.folder / RECORD_FILE
        if not trials or trials[-1]["kind"] == "measured" or not path.is_file():
            return
        data, start = path.read_bytes(), trials[-1]["at"]
        end = data.find(b"\n", start) + 1
        if end and (not start or data[start - 1 : start] == b"\n"):
            write_bytes(path, data[:start] + data[end:])

    def _complete_records(self, tasks: Sequence[SearchTask]) -> None:
        """Appends lines of the journal that are missing in the database."""
        place = _places(self.folder, tasks)
        path = self.folder / RECORD_FILE
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        there = {_canonical(json.loads(line)) for line in text.splitlines()}
        lines = [
            _canonical([place[entry["task"]], entry["record"][1]])
            for entry in self.journal.entries
            if entry["kind"] == "measured"
        ]
        missing = [line for line in lines if line not in there]
        try:
            with path.open("a", encoding="utf-8") as stream:
                stream.writelines(line + "\n" for line in missing)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            if says_disk_is_full(str(error)):
                raise self.journal.disk_full() from None
            raise DataError(f"{path}: cannot write ({error.strerror})") from None


@contextmanager
def open_store(
    folder: Path, tasks: Sequence[SearchTask], target: Any, settings: dict[str, Any]
) -> Iterator[SearchStore]:
    """Opens and locks a search's folder.

    Args:
        folder: the folder, created if missing.
        tasks: the tasks, in order.
        target: compile target.
        settings: content of the search's file; `fixed` must equal that of an existing search in
            the folder.

    Raises:
        UsageError: another process uses the folder, or it has a search with other settings.
        DataError: a file cannot be read or written.
    """
    with campaign_folder(folder, what="search", settings=SEARCH_FILE):
        _settle(folder, settings)
        tasks_folder = make_folder(folder / TASKS_FOLDER, what="tasks of the search")
        for task in tasks:
            task.task.save(tasks_folder)
        fixed = settings["fixed"]
        store = SearchStore(folder, tasks, target, {fixed["device"]: fixed["target"]})
        try:
            yield store
        finally:
            store.close()


def _settle(folder: Path, settings: dict[str, Any]) -> None:
    if (folder / SEARCH_FILE).is_file():
        check_unchanged(folder, "search", read_search(folder)["fixed"], settings["fixed"])
    write_json(folder / SEARCH_FILE, settings)


def _commit_workloads(folder: Path, tasks: Sequence[SearchTask]) -> None:
    """Writes workloads that are missing in the database; its records need them."""
    records = folder / f"records.{os.getpid()}.tmp"
    database = meta_schedule.database.JSONDatabase(str(folder / WORKLOAD_FILE), str(records))
    for task in tasks:
        database.commit_workload(task.module)
    records.unlink(missing_ok=True)
    _sync(folder / WORKLOAD_FILE)


def _places(folder: Path, tasks: Sequence[SearchTask]) -> dict[str, int]:
    """Returns each task's line number in the file of the workloads."""
    with (folder / WORKLOAD_FILE).open(encoding="utf-8") as stream:
        hashes = [str(json.loads(line)[0]) for line in stream]
    return {task.key: hashes.index(json.loads(task.task.workload_key)[0]) for task in tasks}


def _drop_torn_line(path: Path) -> None:
    if path.is_file():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)


def _line_at(path: Path, start: int) -> Any:
    """Returns the JSON value of the line at an offset; None if the line is truncated."""
    with path.open("rb") as stream:
        stream.seek(start)
        data = stream.read()
    if not data.endswith(b"\n"):
        return None
    return json.loads(data)


def _canonical(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _is_full(folder: Path, error: Exception) -> bool:
    place = os.statvfs(folder)
    return says_disk_is_full(str(error)) or place.f_bavail * place.f_frsize < 1 << 16
