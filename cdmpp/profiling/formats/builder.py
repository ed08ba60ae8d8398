"""Builds profile rows from single events, for all readers of timelines."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.kernels.call import Call
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.profiling.formats.names import short_name
from cdmpp.profiling.schema import Events, Kind, Launch, ProfileRow

#: Kinds whose events nest on a lane; their rows have an own time.
_NESTING = frozenset({"cpu_op", "range", "python"})
#: Bound of an event's times and bytes: 292 years of nanoseconds.
_MOST = 2.0**63


@dataclass
class _Group:
    kind: Kind
    name: str
    launch: Launch | None
    call: Call | None
    moved_bytes: float | None = None


class EventBuilder:
    """Collects events compactly and builds rows from them.

    Events with the same kind, name, launch and call become one row.
    """

    def __init__(self) -> None:
        self._start = array("d")
        self._duration = array("d")
        self._lane = array("i")
        self._row = array("i")
        self._lanes: dict[object, int] = {}
        self._lane_names: list[str] = []
        self._groups: dict[object, int] = {}
        self._rows: list[_Group] = []

    def __len__(self) -> int:
        return len(self._start)

    def lane(self, key: object, name: str = "") -> int:
        """Returns the number of a lane, which is created if new."""
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = len(self._lane_names)
            self._lane_names.append(name or str(key))
        return found

    def has_lane(self, key: object) -> bool:
        """Whether a lane exists."""
        return key in self._lanes

    def name_lane(self, key: object, name: str) -> None:
        """Names a lane, which may already have events."""
        self._lane_names[self.lane(key)] = name

    def row(
        self, kind: Kind, name: str, launch: Launch | None = None, call: Call | None = None
    ) -> int:
        """Returns the number of a row, which is created if new.

        Raises:
            TypeError: the name is not text.
        """
        key = (kind, name, launch, call)
        found = self._groups.get(key)
        if found is None:
            if not isinstance(name, str):
                raise TypeError(f"a name that is not text, {name!r:.40}")
            found = self._groups[key] = len(self._rows)
            self._rows.append(_Group(kind, name, launch, call))
        return found

    def add(
        self,
        row: int,
        start: float,
        duration: float,
        lane: int,
        *,
        moved_bytes: float | None = None,
    ) -> None:
        """Adds an event, in the time unit of `finish`.

        Raises:
            ValueError: a negative, infinite or too large time or size.
        """
        if not (abs(start) < _MOST and 0 <= duration < _MOST and 0 <= (moved_bytes or 0) < _MOST):
            raise ValueError(
                f"a start of {start:g}, a duration of {duration:g}, {moved_bytes} bytes"
            )
        self._start.append(start)
        self._duration.append(duration)
        self._lane.append(lane)
        self._row.append(row)
        if moved_bytes is not None:
            group = self._rows[row]
            group.moved_bytes = (group.moved_bytes or 0.0) + moved_bytes

    def set_call(self, event: int, call: Call) -> None:
        """Sets the operator that an added event belongs to."""
        group = self._rows[self._row[event]]
        self._row[event] = self.row(group.kind, group.name, group.launch, call)

    def finish(self, *, units_per_s: float) -> tuple[tuple[ProfileRow, ...], Events]:
        """Returns (rows, events); time 0 is the start of the first event.

        Args:
            units_per_s: units of time per second.
        """
        start, origin = self._starts()
        duration = np.frombuffer(self._duration, np.float64) if len(self) else np.zeros(0)
        lane = np.array(self._lane, np.int64)
        row = np.array(self._row, np.int64)
        own, counted = self._own_time(start, duration, lane, row)
        start, duration, own = start[counted], duration[counted], own[counted]
        lane, row = lane[counted], row[counted]
        order = np.argsort(row, kind="stable")
        bounds = np.searchsorted(row[order], np.arange(len(self._rows) + 1))
        rows: list[ProfileRow] = []
        number = np.zeros(len(self._rows), np.int64)
        for index, group in enumerate(self._rows):
            chosen = order[bounds[index] : bounds[index + 1]]
            if not len(chosen):
                continue
            number[index] = len(rows)
            samples = duration[chosen] / units_per_s
            rows.append(
                ProfileRow(
                    kind=group.kind,
                    name=group.name,
                    short_name=short_name(group.name),
                    calls=len(samples),
                    total_s=float(duration[chosen].sum() / units_per_s),
                    min_s=float(samples.min()),
                    max_s=float(samples.max()),
                    self_s=float(own[chosen].sum() / units_per_s),
                    samples_s=samples,
                    moved_bytes=group.moved_bytes,
                    launch=group.launch,
                    call=group.call,
                )
            )
        self.origin = origin / units_per_s
        events = Events(
            start / units_per_s,
            duration / units_per_s,
            lane,
            number[row] if len(row) else row,
            tuple(self._lane_names),
        )
        return tuple(rows), events

    def _starts(self) -> tuple[FloatArray, float]:
        if not len(self):
            return np.zeros(0), 0.0
        start = np.frombuffer(self._start, np.float64)
        origin = float(start.min())
        return start - origin, origin

    def _own_time(
        self, start: FloatArray, duration: FloatArray, lane: IntArray, row: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Returns (float64 [E], durations without nested events; indices of the counted events).

        An operator whose only call is itself (`sort` calls `sort` with more arguments) counts once,
        as in torch's table.
        """
        own = duration.copy()
        counts = np.ones(len(start), bool)
        if not len(row):
            return own, np.flatnonzero(counts)
        nests = np.array([group.kind in _NESTING for group in self._rows], bool)
        names = [(group.kind, group.name) for group in self._rows]
        chosen = np.flatnonzero(nests[row])
        order = chosen[np.lexsort((-duration[chosen], start[chosen], lane[chosen]))]
        starts, ends = start.tolist(), (start + duration).tolist()
        lanes, rows = lane.tolist(), row.tolist()
        child_count: dict[int, int] = {}
        parent_of: dict[int, int] = {}
        above: list[int] = []
        before = -1
        for event in order.tolist():
            if lanes[event] != before:
                above.clear()
                before = lanes[event]
            while above and ends[above[-1]] <= starts[event]:
                above.pop()
            if above and ends[event] <= ends[above[-1]]:
                parent = parent_of[event] = above[-1]
                child_count[parent] = child_count.get(parent, 0) + 1
                own[parent] -= duration[event]
            above.append(event)
        stands_for: dict[int, int] = {}
        for event, parent in parent_of.items():  # outer events come first
            if child_count[parent] == 1 and names[rows[event]] == names[rows[parent]]:
                whole = stands_for[event] = stands_for.get(parent, parent)
                own[whole] += own[event]
                counts[event] = False
        return own, np.flatnonzero(counts)
