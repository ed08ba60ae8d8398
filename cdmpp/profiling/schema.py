"""The one form that profiles of every tool are read into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from cdmpp.analytic.kernels.call import Call
from cdmpp.arrays import FloatArray, IntArray

#: What a row is about. `operator` ran on an accelerator that is no GPU; `range` is a name that the
#: program itself gave to a stretch; `python` is a traced function.
Kind = Literal["kernel", "memcpy", "memset", "operator", "api", "cpu_op", "range", "python"]
#: Kinds that keep a GPU or an accelerator busy.
DEVICE_KINDS: Final[frozenset[Kind]] = frozenset({"kernel", "memcpy", "memset", "operator"})


@dataclass(frozen=True)
class Launch:
    """How a kernel was launched; None = the profile does not say.

    Attributes:
        grid: blocks, x y z.
        block: threads of a block, x y z.
        registers_per_thread: of the compiled kernel.
        shared_bytes: shared memory of a block, static and dynamic together.
    """

    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers_per_thread: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class ProfileRow:
    """Everything of one kind and name (and launch and call, where the profile tells them).

    Attributes:
        kind: what it is.
        name: as the tool wrote it.
        short_name: without template arguments and parameter list.
        calls: how often.
        total_s: seconds of all calls.
        min_s, max_s: of one call; None = the profile does not say.
        self_s: `total_s` without what other rows of this kind took inside; equal where nothing
            nests.
        percent: share as the tool wrote it, 0 to 100; None = it wrote none.
        samples_s: float64 [calls], in the order of the file; None = only sums are known.
        moved_bytes: bytes of all calls, as measured or copied; None = unknown.
        flop: floating-point operations of all calls; None = unknown.
        launch: of a kernel; None = unknown.
        call: operator behind it; None = unknown.
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
        """Seconds of one call; 0 without calls."""
        return self.total_s / self.calls if self.calls else 0.0

    @property
    def own_s(self) -> float:
        """Seconds that count in a share: without what nests inside."""
        return self.total_s if self.self_s is None else self.self_s


@dataclass(frozen=True)
class Events:
    """What happened when, on one clock.

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
    """What one file tells.

    Attributes:
        source: the file.
        format: name of the format, e.g. `nvprof summary`.
        rows: in the order of the file.
        events: None = the file has sums only.
        device_name: product name of the GPU; None = unknown.
        epoch_s: seconds since 1970 at time 0 of the events; None = unknown.
        notes: what the file lacks or what was left out, one sentence each.
    """

    source: str
    format: str
    rows: tuple[ProfileRow, ...]
    events: Events | None = None
    device_name: str | None = None
    epoch_s: float | None = None
    notes: tuple[str, ...] = ()
