"""Timers: where the time of a program goes, by name and by nesting.

    enable_timers()
    with timer("epoch"):
        with timer("batch"):
            ...
    print(global_stats().tree_text())

Timers are off until `enable_timers` is called and then cost next to nothing. `Stat` accumulates
durations, `StatSet` holds the stats of a program, `profile_range` names a stretch for the vendor's
profiler as well, `BarrierStat` follows the processes of a distributed run.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar

from cdmpp.errors import UsageError
from cdmpp.text import csv_text
from cdmpp.timing.barrier import BarrierStat
from cdmpp.timing.profiler_range import ProfilerApi, ProfilerSession, default_session
from cdmpp.timing.stat import Stat, merged, span_text
from cdmpp.timing.tree import TimerNode, node_json, tree_lines

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

GLOBAL_NAME = "GlobalStatInfo"
#: Names whose timers are kept while timers are off; more make the memory of them start anew.
_MOST_IDLE = 4096
#: Buffers of finished threads are folded into one when there are more buffers than this.
_MOST_BUFFERS = 64
_FINISHED_THREADS = 0
_S_PER_NS = 1e-9

_log = logging.getLogger(__name__)


class _Buffer:
    """The timers of one thread."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.thread_id = threading.get_native_id()
        self.lock = threading.Lock()
        self.root = TimerNode(Stat(""))
        self.current = self.root


class StatSet:
    """The stats of a program by name; every thread adds to its own, reading merges them."""

    def __init__(
        self, name: str = GLOBAL_NAME, *, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """Args:
        clock: nanoseconds.
        """
        self.name = name
        self.clock = clock
        self._lock = threading.Lock()
        self._buffers: list[_Buffer] = []
        self._barriers: dict[str, BarrierStat] = {}
        self._local = threading.local()

    def add(self, name: str, duration_ns: int) -> None:
        """Adds a sample below the timers that run in this thread."""
        buffer = self._own()
        with buffer.lock:
            buffer.current.child(name).stat.add(duration_ns)

    def get(self, name: str) -> Stat:
        """Returns what all threads have under a name, on every call path; it may be empty."""
        return merged(name, (stat for stat in self._all() if stat.name == name))

    def stats(self) -> list[Stat]:
        """Returns one stat a name, most time first."""
        found: dict[str, Stat] = {}
        for stat in self._all():
            found.setdefault(stat.name, Stat(stat.name)).merge(stat)
        return sorted(found.values(), key=lambda stat: -stat.total_ns)

    def stats_by_thread(self) -> list[tuple[int, Stat]]:
        """Returns (system's id of the thread, stat), most time first; id 0 = finished threads."""
        found: dict[tuple[int, str], Stat] = {}
        for buffer in self._all_buffers():
            with buffer.lock:
                for node in buffer.root.walk():
                    if node.stat.count:
                        key = (buffer.thread_id, node.stat.name)
                        found.setdefault(key, Stat(node.stat.name)).merge(node.stat)
        rows = [(key[0], stat) for key, stat in found.items()]
        return sorted(rows, key=lambda row: -row[1].total_ns)

    def tree(self) -> TimerNode:
        """Returns the timers of all threads as one tree by call path; the root has no samples."""
        root = TimerNode(Stat(""))
        for buffer in self._all_buffers():
            with buffer.lock:
                root.merge(buffer.root)
        return root

    def barrier(self, name: str, rank_count: int) -> BarrierStat:
        """Returns the barrier of a name, made when it is not there."""
        with self._lock:
            if name not in self._barriers:
                self._barriers[name] = BarrierStat(name, rank_count, clock=self.clock)
            return self._barriers[name]

    def reset(self, name: str | None = None) -> None:
        """Forgets the samples of a name; None = all samples and barriers."""
        for buffer in self._all_buffers():
            with buffer.lock:
                for node in buffer.root.walk():
                    if name is None or node.stat.name == name:
                        node.stat.reset()
        if name is None:
            with self._lock:
                self._barriers.clear()

    def delete(self, name: str) -> None:
        """Removes a name and what is below it; a timer that runs loses its samples only."""
        for buffer in self._all_buffers():
            with buffer.lock:
                for node in buffer.root.walk():
                    found = node.children.get(name)
                    if found is None:
                        continue
                    if any(below.running for below in found.walk()):
                        found.stat.reset()
                    else:
                        del node.children[name]
        with self._lock:
            self._barriers.pop(name, None)

    def text(self, *, by_thread: bool = False) -> str:
        """Returns a line a name (or a thread and name), the barriers and a dashed line."""
        lines = [f"======= StatSet: [{self.name}] ======"]
        if by_thread:
            lines += [stat.line(thread_id=thread) for thread, stat in self.stats_by_thread()]
        else:
            lines += [stat.line() for stat in self.stats()]
        with self._lock:
            lines += [barrier.text() for barrier in self._barriers.values()]
        return "\n".join([*lines, "-" * 50])

    def tree_text(self) -> str:
        """Returns the tree, most time first, with each timer's share of the one above it."""
        root = self.tree()
        lines = [f"{'timer':<44}{'total (ms)':>12}{'of parent':>11}{'avg (ms)':>12}{'count':>9}"]
        whole = sum(node.stat.total_ns for node in root.children.values())
        tree_lines(root, whole, 0, lines)
        if len(lines) == 1:
            lines.append("(no timer ran)")
        return "\n".join(lines)

    def csv(self) -> str:
        """Returns a table, one row a name, seconds."""
        rows = (list(stat.as_json().values()) for stat in self.stats())
        return csv_text(list(Stat("").as_json()), rows)

    def as_json(self) -> dict[str, Any]:
        """Returns names, tree and barriers as JSON values, seconds."""
        with self._lock:
            barriers = [barrier.as_json() for barrier in self._barriers.values()]
        return {
            "name": self.name,
            "stats": [stat.as_json() for stat in self.stats()],
            "tree": node_json(self.tree())["children"],
            "barriers": barriers,
        }

    def _own(self) -> _Buffer:
        """Returns this thread's buffer."""
        try:
            buffer: _Buffer = self._local.buffer
        except AttributeError:
            buffer = self._local.buffer = _Buffer()
            with self._lock:
                if len(self._buffers) >= _MOST_BUFFERS:
                    self._buffers = _fold_finished(self._buffers)
                self._buffers.append(buffer)
        return buffer

    def _all_buffers(self) -> list[_Buffer]:
        with self._lock:
            return list(self._buffers)

    def _all(self) -> Iterator[Stat]:
        for buffer in self._all_buffers():
            with buffer.lock:
                copies = [merged(node.stat.name, [node.stat]) for node in buffer.root.walk()]
            yield from (stat for stat in copies if stat.count)


class Timing(Protocol):
    """What `timer` returns, whether timers are on or off.

    Attributes:
        elapsed_s: seconds of the last use; None while it runs, and when timers are off.
    """

    elapsed_s: float | None

    def start(self, *, at_ns: int | None = None) -> None:
        """Starts; `at_ns` = an earlier time of the set's clock."""

    def stop(self) -> None:
        """Stops and counts the sample."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]: ...


class _Timing:
    """One use of a timer: a context manager, a decorator, or a pair of start and stop."""

    __slots__ = (
        "_buffer", "_node", "_start_ns", "elapsed_s", "info", "name", "stats", "threshold_s",
    )  # fmt: skip

    def __init__(self, name: str, stats: StatSet, threshold_s: float | None, info: str) -> None:
        self.name = name
        self.stats = stats
        self.threshold_s = threshold_s
        self.info = info
        self.elapsed_s: float | None = None
        self._start_ns: int | None = None
        self._buffer: _Buffer | None = None
        self._node: TimerNode | None = None

    def start(self, *, at_ns: int | None = None) -> None:
        """Starts; `at_ns` = an earlier time of the set's clock.

        Raises:
            UsageError: it runs already.
        """
        if self._start_ns is not None:
            raise UsageError(f"timer {self.name!r} is started twice; make one for each use")
        buffer = self._buffer = self.stats._own()
        with buffer.lock:
            self._node = buffer.current.child(self.name)
            self._node.running += 1
            buffer.current = self._node
        self._start_ns = self.stats.clock() if at_ns is None else at_ns

    def stop(self) -> None:
        """Stops and counts the sample; `elapsed_s` has it.

        Raises:
            UsageError: it does not run.
        """
        stop_ns = self.stats.clock()
        buffer = self._buffer
        if self._start_ns is None or self._node is None or buffer is None:
            raise UsageError(f"timer {self.name!r} is stopped but does not run; start it first")
        duration_ns = stop_ns - self._start_ns
        with buffer.lock:
            self._node.stat.add(duration_ns)
            self._node.running -= 1
            # Timers that were stopped out of order do not stay above later ones.
            while not buffer.current.running and buffer.current.parent is not None:
                buffer.current = buffer.current.parent
        self._start_ns = None
        self.elapsed_s = duration_ns * _S_PER_NS
        if self.threshold_s is not None and self.elapsed_s >= self.threshold_s:
            _log.warning("Stat: [%s] %s [Span:%s]", self.name, self.info, span_text(duration_ns))

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        return _decorate(function, self.name, self.stats, self.threshold_s, self.info)


class _IdleTiming:
    """A timer while timers are off.

    Entering and leaving call built-in functions that do nothing: NoneType() is None, and formatting
    an empty text is an empty text, which does not swallow an exception. A method written in Python
    would cost four times as much.
    """

    __slots__ = ("_arguments",)

    __enter__ = type(None)
    __exit__ = "".format
    elapsed_s: float | None = None

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def start(self, *, at_ns: int | None = None) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        return _decorate(function, *self._arguments)


class _State:
    """The one switch of all timers, and the stats of the process."""

    __slots__ = ("global_stats", "idle", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self.idle: dict[str, _IdleTiming] = {}
        self.global_stats = StatSet()


# The house has no mutable state in modules but this: a switch that every timer can see at once.
_STATE = _State()


def timer(
    name: str, stats: StatSet | None = None, threshold_s: float | None = None, info: str = ""
) -> Timing:
    """Returns a timer: `with timer("x"):`, `@timer("x")`, or `.start()` and `.stop()`.

    Args:
        name: timers of one name on one call path share a stat.
        stats: the set that counts it; None = the process's.
        threshold_s: a use that takes at least so long is also logged; None = never.
        info: text in that log line.
    """
    if not _STATE.is_on:
        if name in _STATE.idle and stats is None and threshold_s is None:
            return _STATE.idle[name]  # type: ignore[return-value]
        return _idle_timing(name, stats, threshold_s, info)  # type: ignore[return-value]
    return _Timing(name, stats or _STATE.global_stats, threshold_s, info)


def enable_timers(is_on: bool = True) -> None:
    """Turns all timers of the process on or off; one that runs then still counts."""
    _STATE.is_on = is_on


def timers_are_on() -> bool:
    """Whether timers count."""
    return _STATE.is_on


def global_stats() -> StatSet:
    """Returns the stats of the process."""
    return _STATE.global_stats


@contextmanager
def profile_range(
    name: str, *, stats: StatSet | None = None, session: ProfilerSession | None = None
) -> Iterator[None]:
    """Times what runs inside and names it for the profilers that are there.

    The outermost range starts the vendor's profiler (`nsys -c cudaProfilerApi`), its end stops it.
    Without a GPU the range is named for torch's profiler; without torch only the timer is left.

    Args:
        stats: the set that counts it; None = the process's.
        session: None = the process's profiler.
    """
    with (session or default_session()).range(name), timer(name, stats):
        yield


def _idle_timing(
    name: str, stats: StatSet | None, threshold_s: float | None, info: str
) -> _IdleTiming:
    found = _IdleTiming(name, stats, threshold_s, info)
    if stats is None and threshold_s is None:
        if len(_STATE.idle) >= _MOST_IDLE:
            _STATE.idle.clear()
        _STATE.idle[name] = found
    return found


def _decorate(
    function: Callable[_P, _T],
    name: str,
    stats: StatSet | None,
    threshold_s: float | None,
    info: str,
) -> Callable[_P, _T]:
    @functools.wraps(function)
    def timed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with timer(name, stats, threshold_s, info):
            return function(*args, **kwargs)

    return timed


def _fold_finished(buffers: list[_Buffer]) -> list[_Buffer]:
    """Returns the buffers with those of finished threads merged into one."""
    folded = _Buffer()
    folded.thread_id = _FINISHED_THREADS
    alive = []
    for buffer in buffers:
        if buffer.thread_id != _FINISHED_THREADS and buffer.thread.is_alive():
            alive.append(buffer)
        else:
            with buffer.lock:
                folded.root.merge(buffer.root)
    return [folded, *alive]
