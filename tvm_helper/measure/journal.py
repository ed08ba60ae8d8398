"""Journal of a campaign or a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.journal import NO_SPACE, LineJournal, read_lines
from cdmpp.processes.campaign import JOURNAL_FILE
from cdmpp.text import counted

TASKS_FOLDER = "tasks"
#: Command that creates folders of these campaigns.
COMMAND = "cdmpp measure"
#: Kinds of lines. `again`: a program that was built and timed a second time. `begun`, `drafted` and
#: `round` are lines of a search.
KINDS = ("drawn", "measured", "again", "health", "begun", "drafted", "round")
_NO_SPACE_TEXT = ("No space left on device", "Disk quota exceeded")


def disk_full(place: Path, count: int) -> DataError:
    """Returns the error for a full disk, with the number of kept programs."""
    return DataError(
        f"{place}: the disk is full; {counted(count, 'measured program', 'are')} kept. Free disk "
        "space and rerun the same command to continue"
    )


def says_disk_is_full(text: str) -> bool:
    """Whether the text of an error is about a full disk."""
    return any(part in text for part in _NO_SPACE_TEXT)


class Journal(LineJournal):
    """Lines of a campaign, in order; `kind` of each is one of `KINDS`.

    Args:
        folder: the campaign's existing folder.

    Raises:
        DataError: the file cannot be read or written, or a line in its middle is damaged.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(Path(folder) / JOURNAL_FILE)
        self.entries = _of_known_kinds(self.path, self.entries)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Returns the lines of a kind."""
        return [entry for entry in self.entries if entry["kind"] == kind]

    @property
    def measured_count(self) -> int:
        """Number of measured programs, including failed ones."""
        return sum(entry["kind"] == "measured" for entry in self.entries)

    def disk_full(self) -> DataError:
        """Returns the error for a full disk."""
        return disk_full(self.path.parent, self.measured_count)

    def _failure(self, error: OSError) -> DataError:
        if error.errno in NO_SPACE:
            return self.disk_full()
        return super()._failure(error)


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of a campaign's journal; an empty list without a file.

    Raises:
        DataError: it cannot be read, or a complete line is not a JSON object with `kind`.
    """
    path = Path(folder) / JOURNAL_FILE
    return _of_known_kinds(path, read_lines(path))


def _of_known_kinds(path: Path, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for number, entry in enumerate(entries, start=1):
        if "kind" not in entry:
            raise DataError(
                f"{path}: line {number} is damaged; expected a JSON object with `kind`. Remove "
                "that line to continue with the others"
            )
    return [entry for entry in entries if entry["kind"] in KINDS]
