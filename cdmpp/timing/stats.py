"""Timers: the time of a program by name and by nesting.

    enable_timers()
    with timer("epoch"):
        with timer("batch"):
            ...
    print(global_stats().tree_text())

Timers are off by default, which costs almost nothing; `enable_timers` turns them on. `Stat`
accumulates durations, `StatSet` has the stats of a program, `profile_range` also names a range for
the vendor's profiler, and `BarrierStat` has the arrivals of a distributed run's processes.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from cdmpp.errors import UsageError
from cdmpp.text import csv_text
from cdmpp.timing.barrier import BarrierStat
from cdmpp.timing.profiler_range import ProfilerApi, ProfilerSession, default_session
from cdmpp.timing.stat import Stat

__all__ = [
    "BarrierStat",
    "ProfilerApi",
    "ProfilerSession",
    "Stat",
    "StatSet",
    "TimerNode",
    "Timing",
    "enable_timers",
    "global_stats",
    "profile_range",
    "timer",
    "timers_are_on",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_K = TypeVar("_K")
#: (system's thread id, names of the timers on the call path, outermost first).
_Place = tuple[int, tuple[str, ...]]

GLOBAL_NAME = "GlobalStatInfo"
#: Maximum number of cached timers while timers are off; the cache is cleared when it is full.
_MOST_IDLE = 4096
#: Number of threads from which the stats of finished threads are merged under one id.
_MOST_THREADS = 64
_FINISHED_THREADS = 0

_log = logging.getLogger(__name__)


@dataclass
class TimerNode:
    """A timer in the tree of nested timers.

    Attributes:
        stat: durations on this call path.
        children: name of a nested timer -> its node.
    """

    stat: Stat
    children: dict[str, TimerNode] = field(default_factory=dict)

    def by_time(self) -> list[TimerNode]:
        """Returns the children, most time first."""
        return sorted(self.children.values(), key=lambda node: -node.stat.total_ns)

    def lines(self, own_ns: int, depth: int = 0) -> list[str]:
        """Returns one line per timer below this node, and the rest of the node's time."""
        found = []
        for node in self.by_time():
            stat = node.stat
            share = f"{100 * stat.total_ns / own_ns:.1f} %" if own_ns else "-"
            found.append(
                f"{'  ' * depth + stat.name:<44}{stat.total_ns / 1e6:>12.3f}{share:>11}"
                f"{stat.mean_ns / 1e6:>12.4g}{stat.count:>9}"
            )
            found += node.lines(stat.total_ns, depth + 1)
        rest_ns = self.stat.total_ns - sum(node.stat.total_ns for node in self.children.values())
        if self.children and rest_ns > 0:
            name = "  " * depth + "(rest)"
            found.append(f"{name:<44}{rest_ns / 1e6:>12.3f}{100 * rest_ns / own_ns:>9.1f} %")
        return found

    def as_json(self) -> dict[str, Any]:
        """Returns the node and its descendants as JSON values, most time first."""
        return {**self.stat.as_json(), "children": [node.as_json() for node in self.by_time()]}


class _Thread(threading.local):
    """Running timers of this thread, outermost first."""

    def __init__(self) -> None:
        self.id = threading.get_native_id()
        self.running: list[Timing] = []

    def place(self, name: str) -> _Place:
        """Returns the place of a timer that starts now."""
        above = self.running[-1].place[1] if self.running else ()
        return self.id, (*above, name)


class StatSet:
    """Stats of a program by thread and call path, merged on reading."""

    def __init__(
        self, name: str = GLOBAL_NAME, *, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """Args:
        clock: returns nanoseconds.
        """
        self.name = name
        self.clock = clock
        self.here = _Thread()
        self._lock = threading.Lock()
        self._stats: dict[_Place, Stat] = {}
        self._thread_ids: set[int] = set()
        self._barriers: dict[str, BarrierStat] = {}

    def add(self, name: str, duration_ns: int) -> None:
        """Adds a sample below the running timers of this thread."""
        self.add_at(self.here.place(name), duration_ns)

    def add_at(self, place: _Place, duration_ns: int) -> None:
        """Adds a sample to a thread and call path."""
        with self._lock:
            if place[0] not in self._thread_ids:
                self._add_thread(place[0])
            if place not in self._stats:
                self._stats[place] = Stat(place[1][-1])
            self._stats[place].add(duration_ns)

    def get(self, name: str) -> Stat:
        """Returns the merged stat of a name over all threads and call paths; it may be empty."""
        return dict(self._by(lambda place: place[1][-1])).get(name) or Stat(name)

    def stats(self) -> list[Stat]:
        """Returns one stat per name, most time first."""
        return [stat for _, stat in self._by(lambda place: place[1][-1])]

    def stats_by_thread(self) -> list[tuple[int, Stat]]:
        """Returns (system's thread id, stat), most time first; id 0 = finished threads."""
        return [(key[0], stat) for key, stat in self._by(lambda place: (place[0], place[1][-1]))]

    def tree(self) -> TimerNode:
        """Returns the timers of all threads as one tree by call path; the root has no samples."""
        root = TimerNode(Stat(""))
        for path, stat in self._by(lambda place: place[1]):
            node = root
            for name in path:
                node = node.children.setdefault(name, TimerNode(Stat(name)))
            node.stat.merge(stat)
        return root

    def barrier(self, name: str, rank_count: int) -> BarrierStat:
        """Returns the barrier of a name; creates it if needed.

        Raises:
            UsageError: the barrier has another number of ranks, or there are fewer than two.
        """
        with self._lock:
            if name not in self._barriers:
                self._barriers[name] = BarrierStat(name, rank_count, clock=self.clock)
            found = self._barriers[name]
        if found.rank_count != rank_count:
            raise UsageError(
                f"barrier {name!r}: got {rank_count} ranks, expected {found.rank_count} as before"
            )
        return found

    def reset(self, name: str | None = None) -> None:
        """Deletes the samples of a name; None = all samples and barriers."""
        with self._lock:
            for place in list(self._stats):
                if name in (None, place[1][-1]):
                    del self._stats[place]
            if name is None:
                self._barriers.clear()

    def delete(self, name: str) -> None:
        """Deletes the timers of a name, the timers below them, and the barrier of that name."""
        with self._lock:
            for place in list(self._stats):
                if name in place[1]:
                    del self._stats[place]
            self._barriers.pop(name, None)

    def text(self, *, by_thread: bool = False) -> str:
        """Returns one line per name (or per thread and name), the barriers and a dashed line."""
        lines = [f"======= StatSet: [{self.name}] ======"]
        if by_thread:
            lines += [stat.line(thread_id=thread) for thread, stat in self.stats_by_thread()]
        else:
            lines += [stat.line() for stat in self.stats()]
        with self._lock:
            lines += [barrier.text() for barrier in self._barriers.values()]
        return "\n".join([*lines, "-" * 50])

    def tree_text(self) -> str:
        """Returns the tree as text, most time first, with each timer's share of its parent."""
        root = self.tree()
        lines = [f"{'timer':<44}{'total (ms)':>12}{'of parent':>11}{'avg (ms)':>12}{'count':>9}"]
        whole_ns = sum(node.stat.total_ns for node in root.children.values())
        lines += root.lines(whole_ns) or ["(no timer ran)"]
        return "\n".join(lines)

    def csv(self) -> str:
        """Returns CSV with one row per name, in seconds."""
        rows = (list(stat.as_json().values()) for stat in self.stats())
        return csv_text(list(Stat("").as_json()), rows)

    def as_json(self) -> dict[str, Any]:
        """Returns names, tree and barriers as JSON values, in seconds."""
        with self._lock:
            barriers = [barrier.as_json() for barrier in self._barriers.values()]
        return {
            "name": self.name,
            "stats": [stat.as_json() for stat in self.stats()],
            "tree": self.tree().as_json()["children"],
            "barriers": barriers,
        }

    def _by(self, key_of: Callable[[_Place], _K]) -> list[tuple[_K, Stat]]:
        """Returns (key, merged stat of its places), most time first."""
        with self._lock:
            found = _merged(self._stats, key_of)
        return sorted(found.items(), key=lambda item: -item[1].total_ns)

    def _add_thread(self, thread_id: int) -> None:
        if len(self._thread_ids) >= _MOST_THREADS:
            self._thread_ids &= {thread.native_id for thread in threading.enumerate()}
            alive = self._thread_ids
            self._stats = _merged(
                self._stats, lambda at: at if at[0] in alive else (_FINISHED_THREADS, at[1])
            )
        self._thread_ids.add(thread_id)


class Timing:
    """One use of a timer: a context manager, a decorator, or a pair of start and stop.

    Attributes:
        elapsed_s: seconds of the last use; None before the first use and when timers are off.
    """

    __slots__ = ("_arguments", "_running", "_start_ns", "elapsed_s", "place")

    def __init__(self, name: str, stats: StatSet | None, threshold_s: float | None, info: str):
        self._arguments = (name, stats, threshold_s, info)
        self.elapsed_s: float | None = None
        self._start_ns: int | None = None

    def start(self, *, at_ns: int | None = None) -> None:
        """Starts the timer, now or at `at_ns` of the set's clock.

        Raises:
            UsageError: the timer is running.
        """
        name, stats = self._arguments[0], self._arguments[1] or global_stats()
        if self._start_ns is not None:
            raise UsageError(f"timer {name!r} is started twice; make one for each use")
        self.place = stats.here.place(name)
        self._running = stats.here.running
        self._running.append(self)
        self._start_ns = stats.clock() if at_ns is None else at_ns

    def stop(self) -> None:
        """Stops the timer, adds the sample and sets `elapsed_s`.

        Raises:
            UsageError: the timer is not running.
        """
        name, stats, threshold_s, info = self._arguments
        stats = stats or global_stats()
        stop_ns = stats.clock()
        if self._start_ns is None:
            raise UsageError(f"timer {name!r} is stopped but does not run; start it first")
        duration_ns = stop_ns - self._start_ns
        self._start_ns = None
        self._running.remove(self)
        stats.add_at(self.place, duration_ns)
        self.elapsed_s = duration_ns * 1e-9
        if threshold_s is not None and self.elapsed_s >= threshold_s:
            span = f"{duration_ns // 1_000_000}ms{duration_ns // 1000 % 1000}us"
            _log.warning("Stat: [%s] %s [Span:%s]", name, info, span)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """Returns a function that is timed while timers are on."""

        @functools.wraps(function)
        def timed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with timer(*self._arguments):
                return function(*args, **kwargs)

        return timed


class _IdleTiming(Timing):
    """A timer while timers are off.

    `__enter__` and `__exit__` are built-in functions without effect: NoneType() returns None, and
    "".format() returns an empty text, which does not suppress an exception. Methods in Python would
    cost four times as much.
    """

    __slots__ = ()

    __enter__ = type(None)  # type: ignore[assignment]
    __exit__ = "".format  # type: ignore[assignment]

    def start(self, *, at_ns: int | None = None) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""


class _State:
    """The switch of all timers and the stats of the process."""

    __slots__ = ("global_stats", "idle", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self.idle: dict[str, _IdleTiming] = {}
        self.global_stats = StatSet()


# Mutable module state is allowed only here: every timer must see the switch.
_STATE = _State()


def timer(
    name: str, stats: StatSet | None = None, threshold_s: float | None = None, info: str = ""
) -> Timing:
    """Returns a timer: `with timer("x"):`, `@timer("x")`, or `.start()` and `.stop()`.

    Args:
        name: timers with the same name and call path share a stat.
        stats: set that receives the samples; None = the process's set.
        threshold_s: minimum duration of a use that is also logged; None = log nothing.
        info: text in the log line.
    """
    if not _STATE.is_on:
        if name in _STATE.idle and stats is None and threshold_s is None:
            return _STATE.idle[name]
        idle = _IdleTiming(name, stats, threshold_s, info)
        if stats is None and threshold_s is None:
            if len(_STATE.idle) >= _MOST_IDLE:
                _STATE.idle.clear()
            _STATE.idle[name] = idle
        return idle
    return Timing(name, stats, threshold_s, info)


def enable_timers(is_on: bool = True) -> None:
    """Turns all timers of the process on or off; a running timer still counts."""
    _STATE.is_on = is_on


def timers_are_on() -> bool:
    """Returns whether timers are on."""
    return _STATE.is_on


def global_stats() -> StatSet:
    """Returns the stats of the process."""
    return _STATE.global_stats


@contextmanager
def profile_range(
    name: str, *, stats: StatSet | None = None, session: ProfilerSession | None = None
) -> Iterator[None]:
    """Times the work inside and names it for the available profilers.

    The outermost range starts and stops the vendor's profiler (`nsys -c cudaProfilerApi`). Without
    CUDA the range is named only for torch's profiler; if torch is not loaded it is only timed.

    Args:
        stats: set that receives the sample; None = the process's set.
        session: None = the process's profiler.
    """
    with (session or default_session()).range(name), timer(name, stats):
        yield


def _merged(stats: Mapping[_Place, Stat], key_of: Callable[[_Place], _K]) -> dict[_K, Stat]:
    found: dict[_K, Stat] = {}
    for place, stat in stats.items():
        found.setdefault(key_of(place), Stat(stat.name)).merge(stat)
    return found
