"""Chrome traces of torch.profiler (also TensorBoard's `*.pt.trace.json.gz`) and of TensorFlow.

Source: the Trace Event Format; the output of libkineto.
"""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

from cdmpp.analytic.kernels.call import Call
from cdmpp.errors import DataError
from cdmpp.files.json_stream import array_batches
from cdmpp.processes.collector import without_collector
from cdmpp.profiling.formats.builder import EventBuilder
from cdmpp.profiling.schema import Kind, Launch, Profile
from cdmpp.text import counted

FORMAT = "chrome trace"
#: The key of the list of events.
EVENTS = "traceEvents"
_US_PER_S = 1e6
_NS_PER_S = 1e9
_NO_ARGUMENTS: dict[str, Any] = {}
#: Lower-case category of an event -> its kind.
KINDS: dict[str, Kind] = {
    "cpu_op": "cpu_op", "operator": "cpu_op", "kernel": "kernel", "gpu_memcpy": "memcpy",
    "gpu_memset": "memset", "memcpy": "memcpy", "memset": "memset", "cuda_runtime": "api",
    "cuda_driver": "api", "hip_runtime": "api", "runtime": "api", "user_annotation": "range",
    "gpu_user_annotation": "range", "python_function": "python",
}  # fmt: skip
#: Categories of events about the profiler itself.
_OWN = frozenset({"Trace", "overhead", "ac2g", "async_cpu_to_gpu", "fwdbwd", "cpu_instant_event"})
#: Operator -> position and name of the arguments that a model needs.
_SETTINGS = {
    "aten::conv2d": {3: "stride", 4: "padding", 5: "dilation", 6: "groups"},
    "aten::convolution": {3: "stride", 4: "padding", 5: "dilation", 6: "transposed", 8: "groups"},
    "aten::_convolution": {3: "stride", 4: "padding", 5: "dilation", 6: "transposed", 8: "groups"},
    "aten::cudnn_convolution": {2: "padding", 3: "stride", 4: "dilation", 5: "groups"},
    "aten::mkldnn_convolution": {3: "padding", 4: "stride", 5: "dilation", 6: "groups"},
    "aten::embedding_bag": {7: "include_last_offset"},
    "aten::_embedding_bag": {7: "include_last_offset"},
    "aten::softmax": {1: "dim"},
    "aten::_softmax": {1: "dim"},
}

#: Errors of events that are not as expected.
_BAD = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def has_no_time(event: dict[str, Any]) -> bool:
    """Whether an event has start and duration 0, which may mean that it was not measured."""
    return event.get("ts") == 0 and event.get("dur") == 0


def is_unfinished(event: dict[str, Any]) -> bool:
    """Whether an event's duration is negative: torch writes -1 for unfinished events."""
    duration = event.get("dur")
    return isinstance(duration, int | float) and duration < 0


def unfinished_notes(count: int) -> list[str]:
    """Returns the note about omitted unfinished events."""
    shown = f"{counted(count, 'event', 'have')} a negative duration (unfinished): left out"
    return [shown] if count else []


def untimed_note(count: int, first: float, end: float) -> str | None:
    """Returns the note about omitted events without a time; None = they belong to the trace.

    They belong to it only if the trace starts near 0, because other clocks start long before.

    Args:
        count: number of events with start and duration 0.
        first, end: start and end of the other events.
    """
    if not count or first <= end - first:
        return None
    return f"{counted(count, 'event', 'have')} time 0 and duration 0 (not measured): left out"


def read_chrome_trace(path: Path) -> Profile:
    """Reads a trace. Total times include nested events; own times of operators exclude them.

    Raises:
        DataError: not JSON, truncated, an event without its fields, or no event with a duration.
    """
    reader = _Reader(path)
    head: dict[str, Any] = {}
    with without_collector():
        for batch in array_batches(
            path, EVENTS, on_value=head.__setitem__, on_note=reader.notes.append
        ):
            for event in batch:
                reader.add(event)
        return reader.finish(head)


class _Reader:
    """Converts events to rows, one at a time."""

    def __init__(self, path: Path) -> None:
        self.builder = EventBuilder()
        self.notes: list[str] = []
        self._path = path
        self._first, self._end = math.inf, -math.inf
        self._untimed: list[dict[str, Any]] = []
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        self._processes: dict[Any, str] = {}
        self._threads: dict[tuple[Any, Any], str] = {}
        self._call_of: dict[Any, Call] = {}
        self._unmatched = self._unfinished = 0
        # Kernels before their operator: number of the event, `External id`.
        self._waiting = (array("q"), array("q"))
        self._kind_of: dict[tuple[Any, Any], Kind | None] = {}
        self._lanes: dict[tuple[Any, Any], int] = {}
        self._rows: dict[tuple[Any, ...], int] = {}
        self._operators: dict[tuple[str, ...], tuple[int, Call]] = {}

    def add(self, event: Any) -> None:
        """Reads one event.

        Raises:
            DataError: a field is missing, or has the wrong type.
        """
        try:
            phase = event["ph"]
            if phase == "X":
                if is_unfinished(event):
                    self._unfinished += 1
                elif has_no_time(event):
                    self._untimed.append(event)
                else:
                    self._complete(event)
            elif phase == "B":
                self._open.setdefault((event.get("pid"), event.get("tid")), []).append(event)
            elif phase == "E":
                self._close(event)
            elif phase == "M":
                self._name(event)
        except _BAD as error:
            raise self._bad(event, error) from None

    def finish(self, head: dict[str, Any]) -> Profile:
        """Returns the profile.

        Raises:
            DataError: no event with a duration, or an event without its fields.
        """
        builder = self.builder
        note = untimed_note(len(self._untimed), self._first, self._end)
        if note is not None and len(builder):
            self.notes.append(note)
        else:
            for untimed in self._untimed:
                try:
                    self._complete(untimed)
                except _BAD as error:
                    raise self._bad(untimed, error) from None
        for event, external in zip(*self._waiting, strict=True):
            if external in self._call_of:
                builder.set_call(event, self._call_of[external])
        if not len(builder):
            raise DataError(
                f"{self._path}: a trace without an event that has a duration; expected operators "
                "or kernels; the profiler may have stopped before the work began"
            )
        for (pid, tid), name in self._threads.items():
            if builder.has_lane((pid, tid)):
                builder.name_lane((pid, tid), name)
        rows, events = builder.finish(units_per_s=_US_PER_S)
        base = head.get("baseTimeNanoseconds")
        devices = head.get("deviceProperties")
        devices = devices if isinstance(devices, list) else []
        names = {str(each.get("name")) for each in devices if isinstance(each, dict)}
        if type(base) is not int or not 0 <= base < 2**63:
            base = None
        left = sum(len(stack) for stack in self._open.values()) + self._unmatched
        if left:
            self.notes.append(f"left out {counted(left, 'event')} with a beginning or an end only")
        self.notes += unfinished_notes(self._unfinished)
        marks = ("schemaVersion", "deviceProperties", "baseTimeNanoseconds")
        is_torch = any(mark in head for mark in marks)
        return Profile(
            str(self._path), f"{FORMAT} ({'torch' if is_torch else 'events'})", rows, events,
            device_name=names.pop() if len(names) == 1 else None,
            epoch_s=base / _NS_PER_S + builder.origin if base is not None else None,
            notes=tuple(self.notes),
        )  # fmt: skip

    def _bad(self, event: Any, error: Exception) -> DataError:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        return DataError(
            f"{self._path}: an event does not match the trace format ({what}): "
            f"{str(event)[:80]}; expected ph, name, ts and dur"
        )

    def _complete(self, event: dict[str, Any]) -> None:
        """Adds an event with a duration. Plain keys keep the lookup of rows and lanes fast, because
        a trace has millions of events."""
        key = (event.get("cat"), event.get("pid"))
        if key not in self._kind_of:
            self._kind_of[key] = self._kind(event)
        kind = self._kind_of[key]
        if kind is None:
            return
        duration = float(event["dur"])
        args = event.get("args") or _NO_ARGUMENTS
        moved = None
        if kind == "kernel":
            row = self._kernel_row(event["name"], args)
        elif kind == "cpu_op":
            row = self._operator_row(event["name"], args)
        else:
            row = self._plain_row(kind, event["name"])
            if kind in ("memcpy", "memset") and "bytes" in args:
                moved = float(args["bytes"])
        place = (key[1], event.get("tid"))
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = self.builder.lane(place, f"{place[0]} {place[1]}")
        start = float(event["ts"])
        self._first, self._end = min(self._first, start), max(self._end, start + duration)
        self.builder.add(row, start, duration, lane, moved_bytes=moved)

    def _plain_row(self, kind: Kind, name: str) -> int:
        row = self._rows.get((kind, name))
        if row is None:
            row = self._rows[kind, name] = self.builder.row(kind, name)
        return row

    def _operator_row(self, name: str, args: dict[str, Any]) -> int:
        shapes = args.get("Input Dims")
        if not shapes or not isinstance(shapes, list):
            return self._plain_row("cpu_op", name)
        concrete = str(args.get("Concrete Inputs")) if name in _SETTINGS else ""
        key = (name, str(shapes), str(args.get("Input type")), concrete)
        found = self._operators.get(key)
        if found is None:
            call = _call(name, args)
            found = self._operators[key] = (self.builder.row("cpu_op", name, None, call), call)
        external = args.get("External id")
        if external is not None:
            self._call_of[external] = found[1]
        return found[0]

    def _kernel_row(self, name: str, args: dict[str, Any]) -> int:
        grid, block = args.get("grid"), args.get("block")
        external = args.get("External id", args.get("external id"))
        call = self._call_of.get(external)
        if call is None and isinstance(external, int):
            self._waiting[0].append(len(self.builder))
            self._waiting[1].append(external)
        has_launch = isinstance(grid, list) and isinstance(block, list)
        shape = (*grid, *block) if has_launch else ()  # type: ignore[misc]
        registers, shared = args.get("registers per thread"), args.get("shared memory")
        # The id of a call is unique, because all calls are kept.
        key = (name, shape, registers, shared, id(call))
        row = self._rows.get(key)
        if row is None:
            launch = None
            if grid is not None and block is not None and has_launch:
                launch = Launch(_triple(grid), _triple(block), registers, shared)
            row = self._rows[key] = self.builder.row("kernel", name, launch, call)
        return row

    def _close(self, event: dict[str, Any]) -> None:
        stack = self._open.get((event.get("pid"), event.get("tid")))
        if not stack:
            self._unmatched += 1
            return
        begin = stack.pop()
        self._complete({**begin, "dur": float(event["ts"]) - float(begin["ts"])})

    def _name(self, event: dict[str, Any]) -> None:
        args = event.get("args") or {}
        if event["name"] == "process_name":
            self._processes[event.get("pid")] = str(args.get("name", ""))
            self._kind_of.clear()
        elif event["name"] == "thread_name":
            self._threads[event.get("pid"), event.get("tid")] = str(args.get("name", ""))

    def _kind(self, event: dict[str, Any]) -> Kind | None:
        """Returns the kind of an event; None = an event of the profiler itself."""
        category = event.get("cat")
        if category in _OWN:
            return None
        found = KINDS.get(category.lower() if isinstance(category, str) else "")
        if found is not None:
            return found
        process = self._processes.get(event.get("pid"), "")
        if process.startswith(("/device:GPU", "/device:TPU", "/gpu")):
            return "kernel"
        return "cpu_op" if process.startswith("/host") else "range"


def _call(name: str, args: dict[str, Any]) -> Call:
    """Returns the call from an operator's arguments."""
    concrete = args.get("Concrete Inputs") or ()
    settings = tuple(
        (what, values)
        for place, what in _SETTINGS.get(name, {}).items()
        if place < len(concrete) and (values := _integers(concrete[place]))
    )
    return Call(
        name,
        tuple(_shape(each) for each in args["Input Dims"]),
        tuple(str(each) for each in args.get("Input type") or ()),
        settings,
    )


def _shape(value: Any) -> tuple[int, ...]:
    """Returns a shape; () for other values (a scalar, a list of tensors)."""
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        return tuple(value)
    return ()


def _triple(value: list[Any]) -> tuple[int, int, int]:
    x, y, z = (int(each) for each in value)
    return x, y, z


def _integers(text: Any) -> tuple[int, ...]:
    """Returns the integers of an argument such as `[1, 1]` or `True`; () without integers."""
    if text in ("True", "False"):
        return (int(text == "True"),)
    parts = str(text).strip("[]").split(",")
    try:
        return tuple(int(part) for part in parts if part.strip())
    except ValueError:
        return ()
