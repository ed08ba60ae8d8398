"""Journal file of a study; an incomplete line costs only itself."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from cdmpp.errors import DataError


class StudyJournal(JournalFileBackend):
    """Optuna's journal file that survives full disks and killed processes.

    A failed write restores the previous content. An incomplete last line, which Optuna could not
    read past, is removed before the next write.

    Raises:
        DataError: by every method, if the file cannot be read or written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._own_lock = JournalFileSymlinkLock(path)
        super().__init__(path, self._own_lock)

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Yields the logs from a number on."""
        with self._sentences():
            yield from super().read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Appends logs; they are on disk when the call returns."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with self._sentences():
            self._own_lock.acquire()
            try:
                _append(self._path, lines)
            finally:
                self._own_lock.release()

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # RuntimeError: the lock file is missing
            raise DataError(
                f"{self._path}: cannot read or write the study "
                f"({getattr(error, 'strerror', None) or error}); its trials are kept: fix this "
                "and rerun the same command"
            ) from None


def _append(path: str, lines: bytes) -> None:
    file = os.open(path, os.O_RDWR)
    try:
        size = _whole_size(file)
        os.ftruncate(file, size)
        try:
            done = 0
            while done < len(lines):
                done += os.pwrite(file, lines[done:], size + done)
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)
            raise
    finally:
        os.close(file)


def _whole_size(file: int) -> int:
    """Returns the size of a file in bytes up to the end of its last complete line."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        return os.pread(file, size, 0).rfind(b"\n") + 1
    return size
