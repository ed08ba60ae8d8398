"""Top-level operators of a trace with their launches, kernels and nested operators."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from cdmpp.errors import DataError
from cdmpp.replay.traces.trace_events import EventColumns, TraceEvents
from cdmpp.text import counted

_PREFIXES = ("autograd::engine::evaluate_function: ", "torch::autograd::", "aten::")
_COMMUNICATION_WORDS = ("nccl", "rccl", "allreduce", "alltoall")

#: Operators that only change the description of a tensor, or allocate one.
_VIEWS = frozenset({
    "t", "transpose", "view", "reshape", "expand", "as_strided", "permute", "detach", "detach_",
    "squeeze", "unsqueeze", "slice", "select", "narrow", "alias", "flatten", "unflatten", "split",
    "chunk", "resolve_conj", "resolve_neg", "TBackward0", "ViewBackward0",
    "TransposeBackward0", "PermuteBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0",
    "SqueezeBackward1", "UnsqueezeBackward0", "empty", "empty_like",
    "empty_strided", "lift_fresh",
})  # fmt: skip


@dataclass(frozen=True)
class HostLaunch:
    """A call that starts work on a device; times in µs.

    Attributes:
        call: such as `cudaLaunchKernel`.
        start_us, duration_us: of the call.
        kernel: name of the kernel, the longest one of a CUDA graph; empty if the trace has none.
        place: its device and stream, such as `gpu0/7`.
        kernel_start_us, kernel_us: start of the first kernel and duration of all; None if the trace
            has none.
    """

    call: str
    start_us: float
    duration_us: float
    kernel: str = ""
    place: str = ""
    kernel_start_us: float | None = None
    kernel_us: float | None = None

    @property
    def is_communication(self) -> bool:
        """Whether its kernel is a collective."""
        name = self.kernel.lower()
        return any(word in name for word in _COMMUNICATION_WORDS)


@dataclass(frozen=True)
class HostOperator:
    """A top-level operator.

    Attributes:
        name: name without namespace, such as `linear` or `AddmmBackward0`.
        start_us, end_us: on the host.
        thread: process and thread.
        shapes: shapes of its inputs as text of the trace.
        launches: in order.
        nested_us: starts of the operators that it called, in order.
        syncs_us: (start, end) of calls inside it that waited for a device.
    """

    name: str
    start_us: float
    end_us: float
    thread: str
    shapes: str
    launches: tuple[HostLaunch, ...]
    nested_us: tuple[float, ...]
    syncs_us: tuple[tuple[float, float], ...] = ()


def is_view(name: str) -> bool:
    """Whether an operator computes nothing."""
    return name in _VIEWS


def plain_name(name: str) -> str:
    """Returns an operator's name without namespace: `aten::linear` is `linear`."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.partition("#")[0] if name.startswith("Optimizer.") else name


def host_iterations(trace: TraceEvents) -> list[list[HostOperator]]:
    """Returns the top-level operators of each marked iteration, by start.

    Without marks, the whole trace is one iteration. Operators outside all marks are left out.

    Raises:
        DataError: no marked iteration contains an operator.
    """
    operators = sorted(_top_level(trace), key=lambda one: (one.start_us, one.thread))
    if not trace.steps:
        return [operators]
    iterations = []
    for start, end in sorted(trace.steps):
        inside = [one for one in operators if start <= one.start_us < end]
        if inside:
            iterations.append(inside)
    if not iterations:
        raise DataError(
            f"{trace.source}: {counted(len(trace.steps), 'marked iteration')} without an operator; "
            "expected profiler.step() after each iteration"
        )
    return iterations


def kernel_times_us(trace: TraceEvents) -> list[float]:
    """Returns the kernel time of each operator of a trace in µs, including nested operators, in the
    order of `trace.operators`.
    """
    columns, ran = trace.operators, trace.kernels
    kernels = _by_link(ran)
    launches = _by_thread(trace.launches)
    found = []
    for thread, start, duration in zip(
        columns.thread, columns.start_us, columns.duration_us, strict=True
    ):
        inside = _within(trace.launches, launches.get(thread, []), start, start + duration)
        started = (kernels.get(trace.launches.link[place], ()) for place in inside)
        found.append(sum(ran.duration_us[place] for places in started for place in places))
    return found


def _top_level(trace: TraceEvents) -> Iterator[HostOperator]:
    columns, text = trace.operators, trace.names.texts
    kernels = _by_link(trace.kernels)
    launches = _by_thread(trace.launches)
    syncs = _by_thread(trace.syncs)
    for thread, places in _by_thread(columns).items():
        index = 0
        while index < len(places):
            top = places[index]
            start = columns.start_us[top]
            end = start + columns.duration_us[top]
            stop = index + 1
            while stop < len(places) and columns.start_us[places[stop]] < end:
                stop += 1
            nested = tuple(columns.start_us[place] for place in places[index + 1 : stop])
            inside = _within(trace.launches, launches.get(thread, []), start, end)
            waits = _within(trace.syncs, syncs.get(thread, []), start, end)
            yield HostOperator(
                name=plain_name(text[columns.name[top]]),
                start_us=start,
                end_us=end,
                thread=text[thread],
                shapes=text[columns.detail[top]],
                launches=tuple(_launch(trace, place, kernels) for place in inside),
                nested_us=nested,
                syncs_us=tuple(_span(trace.syncs, place) for place in waits),
            )
            index = stop


def _by_link(kernels: EventColumns) -> dict[int, list[int]]:
    """Returns correlation -> indices of its kernels; a CUDA graph has several."""
    found: dict[int, list[int]] = {}
    for place, link in enumerate(kernels.link):
        if link >= 0:
            found.setdefault(link, []).append(place)
    return found


def _by_thread(columns: EventColumns) -> dict[int, list[int]]:
    """Returns thread -> indices of its events by start; of equal starts, the longer one first."""
    groups: dict[int, list[int]] = {}
    order = sorted(
        range(len(columns)),
        key=lambda place: (columns.start_us[place], -columns.duration_us[place]),
    )
    for place in order:
        groups.setdefault(columns.thread[place], []).append(place)
    return groups


def _within(columns: EventColumns, places: list[int], start: float, end: float) -> list[int]:
    key = columns.start_us.__getitem__
    first = bisect_right(places, start, key=key)
    # A launch may start together with its operator.
    while first > 0 and key(places[first - 1]) == start:
        first -= 1
    last = first
    while last < len(places) and key(places[last]) < end:
        last += 1
    return places[first:last]


def _launch(trace: TraceEvents, place: int, kernels: dict[int, list[int]]) -> HostLaunch:
    columns, text = trace.launches, trace.names.texts
    call, start = text[columns.name[place]], columns.start_us[place]
    duration = columns.duration_us[place]
    ran, own = trace.kernels, kernels.get(columns.link[place])
    if own is None:
        return HostLaunch(call, start, duration)
    longest = max(own, key=ran.duration_us.__getitem__)
    return HostLaunch(
        call, start, duration, text[ran.name[longest]], text[ran.detail[longest]],
        min(ran.start_us[one] for one in own), sum(ran.duration_us[one] for one in own),
    )  # fmt: skip


def _span(columns: EventColumns, place: int) -> tuple[float, float]:
    return columns.start_us[place], columns.start_us[place] + columns.duration_us[place]
