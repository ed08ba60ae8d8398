"""A crash-safe journal of JSON lines, and a lock for its folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cdmpp.errors import DataError, UsageError
from cdmpp.files.json_text import parse_json
from cdmpp.text import counted

#: Error numbers of a full disk.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class LineJournal:
    """JSON objects in the order in which they were added.

    Every line is on disk when `append` returns. A truncated line is dropped when the file is opened
    again; a line that does not fit on the disk is removed.

    Args:
        path: the file, created if it is missing; its folder must exist.
        sort_keys: whether to sort the keys of each line.

    Attributes:
        entries: the lines so far.

    Raises:
        DataError: the file cannot be read or written, or a line in its middle is damaged.
    """

    def __init__(self, path: Path, *, sort_keys: bool = True) -> None:
        self.path = Path(path)
        self._sort_keys = sort_keys
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot write ({error.strerror}); choose another folder"
            ) from None
        try:
            self.entries = read_lines(self.path)
            self._size = self.path.read_bytes().rfind(b"\n") + 1
            self._cut()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, entry: dict[str, Any]) -> None:
        """Adds a line.

        Raises:
            DataError: the disk is full or fails; the file is then as before the call.
        """
        text = json.dumps(entry, separators=(",", ":"), sort_keys=self._sort_keys)
        line = f"{text}\n".encode("ascii")
        try:
            done = 0
            while done < len(line):
                done += os.write(self._file, line[done:])
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._cut()
            raise self._failure(error) from None
        self._size += len(line)
        self.entries.append(entry)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _failure(self, error: OSError) -> DataError:
        """Returns the error for a line that cannot be written."""
        hint = "free disk space" if error.errno in NO_SPACE else "fix this"
        return DataError(
            f"{self.path}: cannot write ({error.strerror}); "
            f"{counted(len(self.entries), 'line', 'are')} kept: {hint} and rerun the same command"
        )

    def _cut(self) -> None:
        os.ftruncate(self._file, self._size)
        os.lseek(self._file, self._size, os.SEEK_SET)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of a journal; an empty list if there is no file.

    Raises:
        DataError: the file cannot be read, or a complete line is not a JSON object.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror})") from None
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            value = parse_json(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise DataError(
                f"{path}: line {number} is damaged; expected a JSON object. Remove that line to "
                "continue with the others"
            )
        entries.append(value)
    return entries


@contextlib.contextmanager
def folder_lock(
    folder: Path,
    *,
    what: str = "another campaign is running in this folder",
    hint: str = "wait until it ends or choose another --out",
) -> Iterator[None]:
    """Locks a folder for this process; the lock is released when the process ends in any way.

    Args:
        what: what the process that holds the lock is doing, for the error text.
        hint: next step for the user who cannot get the lock.

    Raises:
        UsageError: another process holds the lock.
        DataError: the lock file cannot be created.
    """
    path = Path(folder) / ".lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DataError(f"{path}: cannot lock the folder ({error.strerror})") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 200).decode("utf-8", "replace").strip() or "another process"
            raise UsageError(f"{folder}: {what} ({holder}); {hint}") from None
        with contextlib.suppress(OSError):  # the lock also holds on a full disk
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(file)
