"""The common form of profiles of all tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from cdmpp.analytic.kernels.call import Call
from cdmpp.arrays import FloatArray, IntArray

#: Kind of a row. `operator` ran on an accelerator other than a GPU; `range` is named by the
#: program; `python` is a traced function.
Kind = Literal["kernel", "memcpy", "memset", "operator", "api", "cpu_op", "range", "python"]
#: Kinds that keep a GPU or an accelerator busy.
DEVICE_KINDS: Final[frozenset[Kind]] = frozenset({"kernel", "memcpy", "memset", "operator"})


@dataclass(frozen=True)
class Launch:
    """Launch configuration of a kernel; None = unknown.

    Attributes:
        grid: blocks, x y z.
        block: threads per block, x y z.
        registers_per_thread: of the compiled kernel.
        shared_bytes: shared memory per block, static and dynamic.
    """

    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers_per_thread: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class ProfileRow:
    """All calls of one kind and name (and launch and call, if the profile has them).

    Attributes:
        kind: kind of activity.
        name: name in the file.
        short_name: name without template arguments and parameter list.
        calls: number of calls.
        total_s: seconds of all calls.
        min_s, max_s: seconds of the shortest and longest call; None = unknown.
        self_s: `total_s` without nested rows of this kind; None = equal to `total_s`.
        percent: share in the file, 0 to 100; None = not in the file.
        samples_s: float64 [calls], in file order; None = only sums are known.
        moved_bytes: bytes of all calls, measured or copied; None = unknown.
        flop: floating-point operations of all calls; None = unknown.
        launch: of a kernel; None = unknown.
        call: operator that it belongs to; None = unknown.
        metrics: other counters by the tool's name, means over the calls.
    """

    kind: Kind
    name: str
    short_name: str
    calls: int
    total_s: float
    min_s: float | None = None
    max_s: float | None = None
    self_s: float | None = None
    percent: float | None = None
    samples_s: FloatArray | None = None
    moved_bytes: float | None = None
    flop: float | None = None
    launch: Launch | None = None
    call: Call | None = None
    metrics: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def mean_s(self) -> float:
        """Mean seconds per call; 0 without calls."""
        return self.total_s / self.calls if self.calls else 0.0

    @property
    def own_s(self) -> float:
        """Seconds without nested rows, used for shares."""
        return self.total_s if self.self_s is None else self.self_s


@dataclass(frozen=True)
class Events:
    """Events on one clock.

    Attributes:
        start_s: float64 [E].
        duration_s: float64 [E].
        lane: int64 [E], index into `lanes`.
        row: int64 [E], index into the profile's rows.
        lanes: names of the streams and threads.
    """

    start_s: FloatArray
    duration_s: FloatArray
    lane: IntArray
    row: IntArray
    lanes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True)
class Profile:
    """The profile in a file.

    Attributes:
        source: path of the file.
        format: name of the format, e.g. `nvprof summary`.
        rows: in file order.
        events: None = the file has only sums.
        device_name: product name of the GPU; None = unknown.
        epoch_s: Unix time in seconds at time 0 of the events; None = unknown.
        notes: what is missing or was left out, one sentence each.
    """

    source: str
    format: str
    rows: tuple[ProfileRow, ...]
    events: Events | None = None
    device_name: str | None = None
    epoch_s: float | None = None
    notes: tuple[str, ...] = ()
