"""What came of throwing cases at a reader: values, refusals, crashes, hangs, forbidden events."""

from __future__ import annotations

import codecs
import contextlib
import math
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from cdmpp.errors import CdmppError

#: Events that data must never cause (see "Audit events table" of the Python manual).
FORBIDDEN_EVENTS = (
    "pickle.find_class", "os.", "subprocess.", "shutil.", "socket.", "ctypes.", "exec", "compile",
    "import", "code.__new__", "builtins.input",
)  # fmt: skip
#: Looking into folders.
_HARMLESS_EVENTS = ("os.listdir", "os.scandir")
#: What no text that is shown may hold: it steers a terminal, or hides what is there.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LONGEST_SENTENCE = 3000


class HangError(BaseException):
    """A case took longer than the bound. No `except Exception` of what is tested takes it."""


@dataclass
class Outcome:
    """What became of the cases of one kind.

    Attributes:
        accepted: cases that were read.
        rejected: reason -> cases that were refused.
        crashes: error -> cases; `examples` keeps the first of each.
        hangs: cases that took longer than the bound.
        slowest_s: the slowest case, processor seconds.
        events: forbidden event -> how often it was seen.
    """

    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    crashes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    hangs: int = 0
    slowest_s: float = 0.0
    events: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Number of cases."""
        return self.accepted + sum(self.rejected.values()) + sum(self.crashes.values()) + self.hangs

    @property
    def is_clean(self) -> bool:
        """Whether nothing crashed, hung or reached out."""
        return not (self.crashes or self.hangs or self.events)

    def run(self, bound_s: float, case: bytes, action: Callable[[], str | None]) -> None:
        """Runs one case; `action` returns None when it was read, else the reason it was refused,
        or raises the product's error.
        """
        began = time.process_time()
        try:
            with time_bound(bound_s):
                reason = refusal_of(action)
        except HangError:
            self.hangs += 1
            self.examples.setdefault("hang", repr(case[:300]))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            self.crashed(name, f"{error!r:.200} {case[:300]!r}")
        else:
            if reason is None:
                self.accepted += 1
            else:
                self.rejected[reason] += 1
        self.slowest_s = max(self.slowest_s, time.process_time() - began)

    def crashed(self, name: str, example: str) -> None:
        """Counts a crash and keeps its first example."""
        self.crashes[name] += 1
        self.examples.setdefault(name, example)

    def add(self, other: Self) -> None:
        """Adds the cases of another one."""
        self.accepted += other.accepted
        self.rejected += other.rejected
        self.crashes += other.crashes
        self.examples = other.examples | self.examples
        self.hangs += other.hangs
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.events += other.events

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as JSON values."""
        counts = {
            name: dict(getattr(self, name).most_common())
            for name in ("rejected", "crashes", "events")
        }
        return {**asdict(self), **counts, "slowest_s": round(self.slowest_s, 4)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Returns what `to_json` made values of."""
        counts = {name: Counter(value[name]) for name in ("rejected", "crashes", "events")}
        return cls(**{**value, **counts})


@contextlib.contextmanager
def time_bound(seconds: float) -> Iterator[None]:
    """Raises `HangError` when the body takes more processor seconds, or 20 times as many of the
    clock: other processes may have the processor too.
    """

    def stop(*_: object) -> None:
        raise HangError

    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, 20 * seconds),
    )
    before = [signal.signal(number, stop) for _, number, _ in timers]
    for timer, _, most_s in timers:
        signal.setitimer(timer, most_s)
    try:
        yield
    finally:
        for (timer, number, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def refusal_of(action: Callable[[], str | None]) -> str | None:
    """Returns what the action returns, or the short form of the product's error.

    Raises:
        AssertionError: the error is no sentence that can be shown.
    """
    try:
        return action()
    except CdmppError as error:
        text = str(error)
        assert text.strip(), "an error without words"
        assert len(text) <= _LONGEST_SENTENCE, f"an error of {len(text)} characters"
        assert "Traceback" not in text, f"a traceback in {text[:200]!r}"
        return getattr(error, "reason", None) or short_reason(text)


def short_reason(text: str) -> str:
    """Returns the part of an error's text that does not depend on the case: no paths, numbers and
    quoted texts.
    """
    text = re.sub(r"^/.*?: ", "", text)
    text = re.sub(r"(/[^\s:;,'\"]+)+|'[^']*'|\"[^\"]*\"|\([^()]*\)", "", text)
    return " ".join(re.sub(r"[^A-Za-z ]", " ", text).split())[:60].strip() or "an error"


@contextlib.contextmanager
def audited(outcome: Outcome) -> Iterator[Callable[[bool], None]]:
    """Counts forbidden events of this process; gives what turns that on and off.

    An audit hook stays for ever: it hears nothing after the block.
    """
    listening = False

    def listen(is_on: bool) -> None:
        nonlocal listening
        listening = is_on

    def hear(event: str, _: tuple[Any, ...]) -> None:
        if listening and event.startswith(FORBIDDEN_EVENTS) and event not in _HARMLESS_EVENTS:
            outcome.events[event] += 1

    codecs.lookup("raw_unicode_escape")  # Python imports it with the first text of protocol 0
    sys.addaudithook(hear)
    try:
        yield listen
    finally:
        listen(False)


def check_finite(value: Any) -> None:
    """Raises an AssertionError where a number of a value, however deep, is none."""
    if isinstance(value, float):
        assert math.isfinite(value), f"{value} in what was read"
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            check_finite(part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            check_finite(part)
    elif hasattr(value, "dtype") and value.dtype.kind == "f":
        assert bool((abs(value) < math.inf).all()), "no finite number"  # nor NaN
