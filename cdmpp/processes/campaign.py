"""Shared parts of campaigns: folder lock, settings file, failure counter, time estimate."""

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
    """Progress of a campaign. `seconds_left` is None until it can be estimated."""

    stage: str
    done: int
    total: int
    failed: int = 0
    seconds_left: float | None = None


#: Reports the progress of a campaign.
OnProgress = Callable[[CampaignProgress], None]


def show_nothing(progress: object) -> None:
    """Ignores the progress."""


class Clock:
    """Estimates the remaining seconds of `total` parts from the mean time of the finished ones."""

    def __init__(self, total: int) -> None:
        self._start = time.monotonic()
        self._total = total
        self._done = 0

    def add(self, count: int = 1) -> None:
        """Counts finished parts."""
        self._done += count

    def seconds_each(self) -> float | None:
        """Returns the mean seconds per part, None before the first is finished."""
        return (time.monotonic() - self._start) / self._done if self._done else None

    def seconds_left(self) -> float | None:
        """Returns the seconds for the remaining parts, None before the first is finished."""
        each_s = self.seconds_each()
        return None if each_s is None else each_s * (self._total - self._done)


class SameFailures:
    """Counts consecutive failures of one kind.

    Args:
        most: number of consecutive failures that raises an error; 0 = unlimited.
        advice: end of the error text: further steps.
    """

    def __init__(self, most: int, advice: str) -> None:
        self._most = most
        self._advice = advice
        self._kind, self._text, self._count = "", "", 0

    def add(self, kind: str, text: str) -> None:
        """Counts the outcome of a program; kind "" = success.

        Raises:
            DeviceError: `most` consecutive programs failed in the same way.
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
    """Creates and locks a folder, and removes temporary files that killed processes left there.

    Args:
        settings: name of the file that describes the folder's journal.

    Raises:
        UsageError: another process holds the lock, or `settings` is missing beside a journal.
        DataError: the folder cannot be created or written.
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
    """Writes the settings of a campaign, or checks that they match those in the folder.

    Args:
        values: the settings.
        fixed: names of settings that a continued campaign must not change.
        machine: describes the machine; called in the first run only.

    Raises:
        UsageError: the folder holds a campaign with other settings.
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
    """Returns the settings of a campaign's folder: device, threads, options.

    Args:
        command: command that creates such folders, such as `cdmpp measure`.

    Raises:
        DataError: the folder holds no campaign.
    """
    hint = f"expected the --out folder of `{command}`"
    value = read_json(Path(folder) / CAMPAIGN_FILE, what="campaign", hint=hint)
    if not isinstance(value, dict) or not isinstance(value.get("device"), str):
        raise DataError(f"{folder}: not a campaign (`device` is not text); {hint}")
    return value


def check_unchanged(
    folder: Path, what: str, there: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Checks that a campaign or search continues with the settings of its first run.

    Args:
        there: the settings in the folder.
        now: the settings that must be equal.

    Raises:
        UsageError: a setting differs.
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
