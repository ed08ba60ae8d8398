"""What a campaign has done so far: a file of JSON lines that survives a kill at any moment.

Every line is complete on disk before the campaign goes on. A line that was cut off is dropped when
the journal is opened again; a line that does not fit the disk is taken back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, UsageError

JOURNAL_FILE = "journal.jsonl"
CAMPAIGN_FILE = "campaign.json"
TASKS_FOLDER = "tasks"
_LOCK_FILE = ".lock"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_SPACE_TEXT = ("No space left on device", "Disk quota exceeded")


def disk_full(place: Path, count: int) -> DataError:
    """Returns the error of a disk that is full, with what is safe."""
    return DataError(
        f"{place}: the disk is full; {count} measured programs are safe there. Free some space and "
        "run the same command again to continue"
    )


def says_disk_is_full(text: str) -> bool:
    """Whether an error's text is about a full disk."""
    return any(part in text for part in _NO_SPACE_TEXT)


def check_unchanged(
    folder: Path, what: str, there: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Checks that a campaign or search is continued with the settings that it began with.

    Args:
        there: the settings in the folder.
        now: those that must not differ.

    Raises:
        UsageError: some do.
    """
    changed = [name for name in now if there.get(name) != now[name]]
    if changed:
        listed = ", ".join(f"{name}: {there.get(name)} there, {now[name]} now" for name in changed)
        raise UsageError(
            f"{folder} holds a {what} with other settings ({listed[:400]}); use the same or choose "
            "another --out"
        )


class Journal:
    """The lines of a campaign, in order.

    Args:
        folder: the campaign's folder, which is there.

    Attributes:
        entries: every line so far; `kind` is `drawn`, `measured`, `health` or, in a search,
            `round`.

    Raises:
        DataError: the file cannot be read or written, or a line in its middle is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / JOURNAL_FILE
        self.entries = read_journal(folder)
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            self._size = _whole_bytes(self.path)
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot write ({error.strerror}); choose another folder"
            ) from None

    def append(self, entry: dict[str, Any]) -> None:
        """Adds a line; when this returns it is on the disk.

        Raises:
            DataError: the disk is full or fails; the journal is then as before the call.
        """
        line = (json.dumps(entry, separators=(",", ":"), sort_keys=True) + "\n").encode("ascii")
        try:
            done = 0
            while done < len(line):
                done += os.write(self._file, line[done:])
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
                os.lseek(self._file, self._size, os.SEEK_SET)
            if error.errno in _NO_SPACE:
                raise disk_full(self.path, self.measured_count) from None
            raise DataError(
                f"{self.path}: cannot write ({error.strerror}); what is in it is safe"
            ) from None
        self._size += len(line)
        self.entries.append(entry)

    @property
    def measured_count(self) -> int:
        """Programs that are done, failed ones included."""
        return sum(entry["kind"] == "measured" for entry in self.entries)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def _whole_bytes(path: Path) -> int:
    """Returns how many bytes the complete lines of a file have."""
    data = path.read_bytes()
    return data.rfind(b"\n") + 1


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of a campaign's journal; none when there is no file.

    Raises:
        DataError: it cannot be read, or a complete line is no JSON object.
    """
    path = Path(folder) / JOURNAL_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror})") from None
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            value = json.loads(line)
            kind = value["kind"]
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{path}: line {number} is damaged; expected a JSON object with `kind`. Remove "
                "that line to continue with the others"
            ) from None
        if kind in ("drawn", "measured", "health", "round"):
            entries.append(value)
    return entries


@contextlib.contextmanager
def campaign_lock(folder: Path) -> Iterator[None]:
    """Holds the folder for one campaign; it is free again when the process is gone, however.

    Raises:
        UsageError: another campaign holds it.
        DataError: the lock cannot be made.
    """
    path = Path(folder) / _LOCK_FILE
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DataError(f"{path}: cannot lock the folder ({error.strerror})") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 200).decode("utf-8", "replace").strip() or "another process"
            raise UsageError(
                f"{folder}: a campaign is running there ({holder}); wait for it or choose another "
                "--out"
            ) from None
        with contextlib.suppress(OSError):  # a full disk does not keep the lock from holding
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(file)
