"""Time spent on adding a device, across killed and resumed runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cdmpp.files.atomic import read_json, write_json

CLOCK_FILE = "clock.json"


class StepClock:
    """Spent seconds, including those of earlier runs, and notes that survive a killed run."""

    def __init__(self, folder: Path, began: float) -> None:
        self._path = folder / CLOCK_FILE
        self._began = began
        self.notes: dict[str, Any] = {}
        if self._path.is_file():
            self.notes = read_json(
                self._path, what="clock", hint=f"remove {self._path} to restart the time limit"
            )
        self._before = float(self.notes.get("spent_s", 0.0))
        self._parts: dict[str, float] = dict(self.notes.get("parts", {}))
        self._written = float("-inf")

    def spent_s(self) -> float:
        """Returns the seconds of this run and of earlier ones."""
        return self._before + time.monotonic() - self._began

    def note(self, **values: Any) -> None:
        """Writes the spent time: at once with new values, otherwise at most once per second."""
        now = time.monotonic()
        if values or now - self._written >= 1.0:
            self._written = now
            self.notes |= values
            self.notes |= {"spent_s": self.spent_s(), "parts": self._parts}
            write_json(self._path, self.notes)

    def part(self, name: str) -> Part:
        """Returns a context manager that adds the time of its block to a part."""
        return Part(self, name)

    def add(self, name: str, seconds: float) -> None:
        """Adds seconds to a part."""
        self._parts[name] = self._parts.get(name, 0.0) + seconds
        self.note(parts=self._parts)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each part and the `total`."""
        return {**self._parts, "total": self.spent_s()}


class Part:
    """Context manager that adds the time of its block to a part of a clock."""

    def __init__(self, clock: StepClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *details: object) -> None:
        self._clock.add(self._name, time.monotonic() - self._started)
