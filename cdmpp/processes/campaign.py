"""What every campaign does: holds a folder, keeps its settings, counts failures, tells the time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.files.atomic import make_folder, read_json, remove_abandoned, write_json
from cdmpp.files.journal import folder_lock

CAMPAIGN_FILE = "campaign.json"
JOURNAL_FILE = "journal.jsonl"


@dataclass(frozen=True)
class CampaignProgress:
    """How far a campaign is. `seconds_left` is None while nothing is known."""

    stage: str
    done: int
    total: int
    failed: int = 0
    seconds_left: float | None = None


#: Shows how far a campaign is.
OnProgress = Callable[[CampaignProgress], None]


def show_nothing(progress: object) -> None:
    """Shows nothing."""


class Clock:
    """Estimates what is left of so many parts from how long this run's parts took."""

    def __init__(self, total: int) -> None:
        self._start = time.monotonic()
        self._total = total
        self._done = 0

    def add(self, count: int = 1) -> None:
        """Counts parts that are done."""
        self._done += count

    def seconds_each(self) -> float | None:
        """Returns the mean seconds of a part, None before the first is done."""
        return (time.monotonic() - self._start) / self._done if self._done else None

    def seconds_left(self) -> float | None:
        """Returns the seconds of the parts that are left, None before the first is done."""
        each_s = self.seconds_each()
        return None if each_s is None else each_s * (self._total - self._done)


class SameFailures:
    """Counts consecutive failures of one kind.

    Args:
        most: so many are too many; 0 = never.
        advice: the end of the error's text: what to do besides.
    """

    def __init__(self, most: int, advice: str) -> None:
        self._most = most
        self._advice = advice
        self._kind, self._text, self._count = "", "", 0

    def add(self, kind: str, text: str) -> None:
        """Takes notice of a program; kind "" = it went well.

        Raises:
            DeviceError: it is the last of too many failures.
        """
        if kind != self._kind:
            self._kind, self._text, self._count = kind, text, 0
        self._count += 1
        if kind and self._most and self._count >= self._most:
            raise DeviceError(
                f"stopped after {self._count} consecutive failures of one kind ({kind}); first "
                f"failure: {self._text}. Fix this and rerun the same command{self._advice}"
            )


@contextlib.contextmanager
def campaign_folder(folder: Path, *, what: str, settings: str = CAMPAIGN_FILE) -> Iterator[Path]:
    """Makes and holds a folder, without what killed processes left there.

    Args:
        settings: name of the file that says what the folder's journal is of.

    Raises:
        UsageError: another process holds it, or its journal is of something else.
        DataError: it cannot be made or written.
    """
    make_folder(folder, what=what)
    journal = folder / JOURNAL_FILE
    if journal.is_file() and journal.stat().st_size and not (folder / settings).is_file():
        raise UsageError(
            f"{folder}: its {JOURNAL_FILE} is not that of a {what} ({settings} is missing); choose "
            "another --out"
        )
    with folder_lock(folder):
        remove_abandoned(folder)
        yield folder


def settle(
    folder: Path,
    values: Mapping[str, Any],
    *,
    fixed: Sequence[str],
    machine: Callable[[], dict[str, Any]],
    command: str,
) -> None:
    """Writes what a campaign is, or checks that it is the one in the folder.

    Args:
        values: what it is.
        fixed: names of values that must be the same when it is continued.
        machine: what the first run notes about the machine.

    Raises:
        UsageError: the folder holds another campaign.
        DataError: the file cannot be read or written.
    """
    path = folder / CAMPAIGN_FILE
    if path.is_file():
        old = read_campaign(folder, command)
        check_unchanged(folder, "campaign", old, {name: values[name] for name in fixed})
        here = old.get("machine")
    else:
        here = machine()
    write_json(path, {**values, "machine": here})


def read_campaign(folder: Path, command: str) -> dict[str, Any]:
    """Returns what a campaign's folder says of it: device, threads, options.

    Args:
        command: what makes such folders, such as `cdmpp measure`.

    Raises:
        DataError: it holds no campaign.
    """
    hint = f"expected the --out folder of `{command}`"
    value = read_json(Path(folder) / CAMPAIGN_FILE, what="campaign", hint=hint)
    if not isinstance(value, dict) or not isinstance(value.get("device"), str):
        raise DataError(f"{folder}: not a campaign (`device` is not text); {hint}")
    return value


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
    listed = ", ".join(_changes(there, now))
    if listed:
        raise UsageError(
            f"{folder} has a {what} with other settings ({listed[:400]}); use the same settings "
            "or choose another --out"
        )


def _changes(there: Mapping[str, Any], now: Mapping[str, Any], group: str = "") -> Iterator[str]:
    for name, new in now.items():
        old = there.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, {**dict.fromkeys(old), **new}, f"{group}{name}.")
        elif old != new:
            yield f"{group}{name}: {old} there, {new} now"
