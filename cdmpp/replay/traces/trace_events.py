"""Events of a profiler trace that a replay needs: operators, launches and kernels as columns."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

from cdmpp.errors import DataError
from cdmpp.files.json_stream import array_batches
from cdmpp.profiling.formats.chrome_trace import (
    EVENTS,
    KINDS,
    has_no_time,
    is_unfinished,
    unfinished_notes,
    untimed_note,
)

_ANNOTATION = "user_annotation"
_LAUNCH_WORDS = ("launch", "memcpyasync", "memsetasync")
_SYNC_WORDS = ("synchronize",)
#: Prefix of the marks of iterations.
STEP = "ProfilerStep#"


@dataclass
class Names:
    """A table of unique texts."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Returns the number of a text, which is added if new."""
        found = self.numbers.get(text)
        if found is None:
            found = self.numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


@dataclass
class EventColumns:
    """Events of one kind; times in µs, as in traces.

    Attributes:
        name, thread, detail: numbers of texts; `detail` is the shapes of an operator, or the stream
            of a kernel.
        start_us, duration_us: start and duration.
        link: correlation of launches and kernels, record function of operators; -1 = none.
    """

    name: array[int] = field(default_factory=lambda: array("l"))
    thread: array[int] = field(default_factory=lambda: array("l"))
    detail: array[int] = field(default_factory=lambda: array("l"))
    start_us: array[float] = field(default_factory=lambda: array("d"))
    duration_us: array[float] = field(default_factory=lambda: array("d"))
    link: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.name)

    def add(
        self, name: int, thread: int, detail: int, start_us: float, duration_us: float, link: int
    ) -> None:
        """Appends an event."""
        self.name.append(name)
        self.thread.append(thread)
        self.detail.append(detail)
        self.start_us.append(start_us)
        self.duration_us.append(duration_us)
        self.link.append(link)


@dataclass
class TraceEvents:
    """A trace.

    Attributes:
        source: path of the file.
        names: texts of the numbers in the columns.
        operators: framework operators, including nested ones.
        launches: calls that start work on a device.
        syncs: calls that wait for a device.
        kernels: work on devices.
        steps: (start, end) of each marked iteration, µs.
        events: number of events in the file, including unused ones.
        notes: what was left out, one sentence each.
    """

    source: str
    names: Names = field(default_factory=Names)
    operators: EventColumns = field(default_factory=EventColumns)
    launches: EventColumns = field(default_factory=EventColumns)
    syncs: EventColumns = field(default_factory=EventColumns)
    kernels: EventColumns = field(default_factory=EventColumns)
    steps: list[tuple[float, float]] = field(default_factory=list)
    events: int = 0
    notes: list[str] = field(default_factory=list)


def is_operator_annotation(name: str) -> bool:
    """Whether a marked range counts as an operator, which holds for steps of optimisers."""
    return name.startswith("Optimizer.")


def read_trace_events(path: Path) -> TraceEvents:
    """Reads the events of a torch.profiler chrome trace that a replay needs.

    Memory grows with the used operators, launches and kernels (about 50 bytes each), not with the
    file size.

    Raises:
        DataError: unreadable, truncated, or without operators.
    """
    path = Path(path)
    trace = TraceEvents(str(path))
    untimed, unfinished = [], 0
    for event in chain.from_iterable(array_batches(path, EVENTS, on_note=trace.notes.append)):
        trace.events += 1
        if isinstance(event, dict) and event.get("ph") == "X":
            if is_unfinished(event):
                unfinished += 1
            elif has_no_time(event):
                untimed.append(event)
            else:
                _keep(event, trace)
    trace.notes += unfinished_notes(unfinished)
    note = untimed_note(len(untimed), *_first_and_end(trace))
    if note is not None:
        trace.notes.append(note)
    else:
        for event in untimed:
            _keep(event, trace)
    if not len(trace.operators):
        raise DataError(
            f"{path}: {trace.events} events, but no operator; expected a trace of torch.profiler "
            "written with export_chrome_trace and activity CPU"
        )
    return trace


def _first_and_end(trace: TraceEvents) -> tuple[float, float]:
    """Returns the start of the first event and the end of the last one; (0, 0) without events."""
    columns = [
        one for one in (trace.operators, trace.launches, trace.syncs, trace.kernels) if len(one)
    ]
    if not columns:
        return 0.0, 0.0
    ends = (
        start + duration
        for one in columns
        for start, duration in zip(one.start_us, one.duration_us, strict=True)
    )
    return min(min(one.start_us) for one in columns), max(ends)


def _keep(event: dict[str, Any], trace: TraceEvents) -> None:
    category, name = event.get("cat"), event.get("name")
    start, duration = event.get("ts"), event.get("dur", 0)
    if not isinstance(name, str) or not _is_number(start) or not _is_number(duration):
        raise DataError(
            f"{trace.source}: event {trace.events} has name {name!r}, ts {start!r}, dur "
            f"{duration!r}; expected a text and numbers"
        )
    category = str(category).lower()
    kind = KINDS.get(category)
    arguments = event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    names = trace.names
    number = names.number(name)
    thread = names.number(f"{event.get('pid')}/{event.get('tid')}")
    where = (float(start), float(duration))
    if kind == "cpu_op" or category == _ANNOTATION:
        if name.startswith(STEP):
            trace.steps.append((where[0], where[0] + where[1]))
        elif category != _ANNOTATION or is_operator_annotation(name):
            shapes = arguments.get("Input Dims", arguments.get("Input dims", ""))
            detail = names.number(str(shapes))
            link = _integer(arguments.get("Record function id"))
            trace.operators.add(number, thread, detail, *where, link)
    elif kind == "api":
        low = name.lower()
        link = _integer(arguments.get("correlation"))
        if any(word in low for word in _LAUNCH_WORDS):
            trace.launches.add(number, thread, 0, *where, link)
        elif any(word in low for word in _SYNC_WORDS):
            trace.syncs.add(number, thread, 0, *where, link)
    elif kind in ("kernel", "memcpy", "memset"):
        device = arguments.get("device", event.get("pid"))
        stream = arguments.get("stream", event.get("tid"))
        place = names.number(f"gpu{device}/{stream}")
        trace.kernels.add(number, thread, place, *where, _integer(arguments.get("correlation")))


def _integer(value: Any) -> int:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and 0 <= value < 2**63 else -1


def _is_number(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -math.inf < value < math.inf
