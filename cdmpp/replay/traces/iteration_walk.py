"""Iteration walk: simulates a training iteration with a host clock and two device clocks.

Source: the iteration walk of the public repository owensgroup/ml_perf_model, in its first
(`reference`) and later version (`head`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cdmpp.errors import DataError, UsageError
from cdmpp.replay.traces.overheads import HostOverheads, Overhead, mean_overhead

WalkVersion = Literal["reference", "head"]
_End = Literal["low", "mean", "high"]
WALK_VERSIONS: tuple[WalkVersion, ...] = ("reference", "head")
#: Operators that both versions skip.
SKIPPED_OPERATORS = frozenset({"random_", "item"})
#: Later version, µs: extra time of each kernel; time of a blocking copy without launches.
KERNEL_EXTRA_US = 5.0
EVENT_US = 2.0


@dataclass(frozen=True)
class WalkedKernel:
    """The work of one launch.

    Attributes:
        time_us: predicted or measured; None = unknown, adds no device time.
        is_communication: whether it runs in the communication stream.
        low_us, high_us: its interval; None = unknown error.
    """

    time_us: float | None
    is_communication: bool = False
    low_us: float | None = None
    high_us: float | None = None


def walked_kernel(time_s: float, low_s: float | None, high_s: float | None) -> WalkedKernel:
    """Returns a kernel with a time and interval in seconds."""
    low_us, high_us = (None if end is None else 1e6 * end for end in (low_s, high_s))
    return WalkedKernel(1e6 * time_s, low_us=low_us, high_us=high_us)


@dataclass(frozen=True)
class WalkedOperator:
    """A top-level operator.

    Attributes:
        name: key of its overheads.
        calls: name of each launch call; empty = no launches.
        kernels: one per launch, in order; empty = no kernel model.
        is_blocking: whether the host waits for the device at its end (a copy to the host).
        needs_communication: whether it uses the result of a collective, or waits for one.
    """

    name: str
    calls: tuple[str, ...] = ()
    kernels: tuple[WalkedKernel, ...] = ()
    is_blocking: bool = False
    needs_communication: bool = False


@dataclass(frozen=True)
class WalkOptions:
    """Options of a walk.

    Attributes:
        version: see the module.
        uses_pooled: whether an operator without its own overheads uses the mean over all operators
            instead of raising an error.
    """

    version: WalkVersion = "reference"
    uses_pooled: bool = False

    def __post_init__(self) -> None:
        if self.version not in WALK_VERSIONS:
            raise UsageError(
                f"unknown walk {self.version!r}; expected one of {', '.join(WALK_VERSIONS)}"
            )


@dataclass(frozen=True)
class Walk:
    """A walked iteration; times in µs.

    Attributes:
        total_us: end of host and devices.
        active_us: sum of the kernel times, including the later version's extra.
        host_us: host clock at the end.
        device_us: device clocks at the end: compute, communication.
        exposed_communication_us: communication time not hidden by computation.
        after_us: host clock after each operator that was not skipped.
        pooled: overheads that were replaced by the mean over all operators.
        unmodelled: operator -> launches without a kernel model.
        low_us, high_us: totals with the ends of all overheads and kernels, assuming equal errors;
            None = no error is known.
        without_interval: overheads and kernels of unknown error.
    """

    total_us: float
    active_us: float
    host_us: float
    device_us: tuple[float, float]
    exposed_communication_us: float
    after_us: tuple[tuple[str, float], ...]
    pooled: tuple[str, ...]
    unmodelled: dict[str, int]
    low_us: float | None = None
    high_us: float | None = None
    without_interval: tuple[str, ...] = ()


def walk(
    operators: Sequence[WalkedOperator],
    overheads: HostOverheads,
    *,
    options: WalkOptions | None = None,
) -> Walk:
    """Returns the time of one iteration on one rank.

    Raises:
        DataError: no operators, or a missing overhead.
    """
    if not operators:
        raise DataError("an iteration without operators; expected at least one")
    options = options or WalkOptions()
    low, found, high = (
        _Walker(overheads, options, end).run(operators) for end in ("low", "mean", "high")
    )
    if low.total_us >= high.total_us:
        return found
    return replace(found, low_us=low.total_us, high_us=high.total_us)


def slowest(walks: Sequence[Walk]) -> Walk:
    """Returns the walk of the slowest rank, which all ranks wait for."""
    return max(walks, key=lambda one: one.total_us)


class _Walker:
    """Walks once, with all times at their mean or all at one end."""

    def __init__(self, overheads: HostOverheads, options: WalkOptions, end: _End) -> None:
        self.overheads, self.options, self.end = overheads, options, end
        self.cpu = self.compute = self.communication = 0.0
        self.active = self.exposed = 0.0
        self.pooled: dict[str, None] = {}
        self.unmodelled: dict[str, int] = {}
        self.without: dict[str, None] = {}

    def run(self, operators: Sequence[WalkedOperator]) -> Walk:
        after: list[tuple[str, float]] = []
        for one in operators:
            if one.name in SKIPPED_OPERATORS:
                continue
            self.cpu += self._value("t1", self.overheads.t1)
            self._operator(one)
            after.append((one.name, self.cpu))
        self._join_communication()
        return Walk(
            total_us=max(self.cpu, self.compute, self.communication),
            active_us=self.active, host_us=self.cpu,
            device_us=(self.compute, self.communication),
            exposed_communication_us=self.exposed, after_us=tuple(after),
            pooled=tuple(self.pooled), unmodelled=dict(self.unmodelled),
            without_interval=tuple(self.without),
        )  # fmt: skip

    def _operator(self, one: WalkedOperator) -> None:
        is_head = self.options.version == "head"
        if not one.calls:
            is_copy = is_head and one.is_blocking
            self.cpu += EVENT_US if is_copy else self._of("t5", one.name)
            return
        if is_head and one.needs_communication:
            self._join_communication()
        t2, t3 = self._of("t2", one.name), self._of("t3", one.name)
        self.cpu += t2
        if one.kernels:
            self._launch(one)
        else:
            self.unmodelled[one.name] = self.unmodelled.get(one.name, 0) + len(one.calls)
            self.cpu += self._between(one) * (len(one.calls) - 1)
            self.cpu += sum(self._call(call) for call in one.calls)
        self.cpu += t3
        if is_head and one.is_blocking:
            self._join_communication()
            self.cpu = max(self.cpu, self.compute)

    def _launch(self, one: WalkedOperator) -> None:
        is_head = self.options.version == "head"
        for place, call in enumerate(one.calls):
            t4 = self._call(call)
            kernel = one.kernels[place] if place < len(one.kernels) else WalkedKernel(None)
            if kernel.time_us is None:
                self.unmodelled[one.name] = self.unmodelled.get(one.name, 0) + 1
            elif kernel.low_us is None or kernel.high_us is None:
                self.without[f"kernels of {one.name}"] = None
            ready = self.cpu + (t4 if is_head else t4 / 2)
            if is_head and kernel.is_communication:
                self._join_communication()
                self.communication = max(self.communication, self.compute, ready)
                self.communication += self._time(kernel)
            else:
                self.compute = max(self.compute + 1, ready)
                self.compute += self._time(kernel)
            self.cpu += t4
            if place + 1 < len(one.calls):
                self.cpu += self._of("t5", one.name)

    def _time(self, kernel: WalkedKernel) -> float:
        if kernel.time_us is None:
            return 0.0
        extra = KERNEL_EXTRA_US if self.options.version == "head" else 0.0
        ends = {"low": kernel.low_us, "high": kernel.high_us}
        end_us = ends.get(self.end)
        time_us = kernel.time_us if end_us is None else end_us
        self.active += time_us + extra
        return time_us + extra

    def _join_communication(self) -> None:
        """Makes the compute stream wait for the communication stream."""
        waited = self.communication - self.compute
        if waited > 0:
            self.exposed += waited
            self.compute = self.communication

    def _between(self, one: WalkedOperator) -> float:
        return self._of("t5", one.name) if len(one.calls) > 1 else 0.0

    def _call(self, call: str) -> float:
        return self._found("t4", self.overheads.t4, call)

    def _of(self, which: Literal["t2", "t3", "t5"], name: str) -> float:
        return self._found(which, getattr(self.overheads, which), name)

    def _found(self, which: str, table: Mapping[str, Overhead], name: str) -> float:
        known = table.get(name)
        if known is not None:
            return self._value(f"{which} {name}", known)
        if not self.options.uses_pooled or not table:
            some = ", ".join(sorted(table)[:6]) or "none"
            raise DataError(
                f"no overhead {which.upper()} of {name!r} (known: {some}); use overheads of a "
                "trace that has it, or --pooled-overheads for the mean over all operators"
            )
        self.pooled[f"{which} {name}"] = None
        return self._value(f"{which} {name}", mean_overhead(list(table.values())))

    def _value(self, label: str, overhead: Overhead) -> float:
        if overhead.std_us is None:
            self.without[label] = None
        low_us, high_us = overhead.ends_us
        return {"low": low_us, "mean": overhead.mean_us, "high": high_us}[self.end]
