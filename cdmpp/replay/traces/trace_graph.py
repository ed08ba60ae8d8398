"""Traces as graphs: host pieces in order, kernels after their launches; merging of traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdmpp.errors import DataError
from cdmpp.replay.graph import COMMUNICATION, Collective, Operator, OperatorGraph
from cdmpp.replay.traces.host_operators import HostLaunch, HostOperator
from cdmpp.replay.traces.iteration_walk import WalkedKernel, WalkedOperator
from cdmpp.text import counted

_US = 1e-6
_HOST = "cpu"
_COLLECTIVE_WORDS: tuple[tuple[str, Collective], ...] = (
    ("allreduce", "all-reduce"), ("all_reduce", "all-reduce"), ("alltoall", "all-to-all"),
    ("sendrecv", "all-to-all"), ("allgather", "all-gather"), ("all_gather", "all-gather"),
    ("reducescatter", "reduce-scatter"), ("reduce_scatter", "reduce-scatter"),
)  # fmt: skip


@dataclass(frozen=True)
class _Piece:
    """A piece of host time that ends with a launch, a wait for a device, or the operator's end."""

    name: str
    kind: str
    seconds: float
    launch: HostLaunch | None = None
    waits: bool = False


def graph_of_iteration(
    operators: Sequence[HostOperator], *, name: str, source: str
) -> OperatorGraph:
    """Returns one traced iteration as a graph with measured times.

    Host time is cut at launches, so that a kernel may start when its launch call ends; the time
    between two operators belongs to the later one. Kernels run in their stream, in launch order.
    Waiting for a device is not host time: the piece after the wait depends on the last kernel of
    each stream.

    Raises:
        DataError: no operators.
    """
    if not operators:
        raise DataError(f"{source}: an iteration without operators; expected at least one")
    found: list[Operator] = []
    last_host: str | None = None
    kernels: dict[str, str] = {}
    clock = operators[0].start_us
    number = 0
    for one in operators:
        for piece in _pieces(one, clock):
            number += 1
            after = [last_host] if last_host else []
            if piece.waits:
                after += list(kernels.values())
            last_host = f"{number}"
            found.append(
                Operator(
                    id=last_host, name=piece.name, kind=piece.kind, after=tuple(after),
                    device=_HOST, queue="host", time_s=piece.seconds,
                    shapes=(one.shapes,) if one.shapes else (),
                )
            )  # fmt: skip
            launch = piece.launch
            if launch is not None and launch.kernel_us is not None:
                number += 1
                device, _, stream = launch.place.partition("/")
                found.append(
                    Operator(
                        id=f"{number}", name=launch.kernel, kind=one.name, after=(last_host,),
                        device=device,
                        queue=COMMUNICATION if launch.is_communication else f"stream{stream}",
                        time_s=launch.kernel_us * _US,
                    )
                )  # fmt: skip
                kernels[launch.place] = f"{number}"
        clock = max(clock, one.end_us)
    return OperatorGraph(name=name, operators=tuple(found), source=source)


def _pieces(one: HostOperator, clock: float) -> list[_Piece]:
    """Returns the host time of an operator in pieces, from the end of the previous operator."""
    cuts: list[tuple[float, float, HostLaunch | None]] = [
        (launch.start_us, launch.start_us + launch.duration_us, launch) for launch in one.launches
    ]
    cuts += [(start, end, None) for start, end in one.syncs_us]
    pieces = []
    at = min(clock, one.end_us)
    for start, end, launch in sorted(cuts, key=lambda cut: cut[:2]):
        if launch is not None:
            pieces.append(_Piece(one.name, one.name, max(0.0, end - at) * _US, launch))
        else:
            pieces.append(_Piece(one.name, one.name, max(0.0, start - at) * _US))
            pieces.append(_Piece(f"{one.name} waits", "synchronise", 0.0, waits=True))
        at = max(at, end)
    if one.end_us > at or not pieces:
        pieces.append(_Piece(one.name, one.name, max(0.0, one.end_us - at) * _US))
    return pieces


def mean_of_iterations(graphs: Sequence[OperatorGraph]) -> OperatorGraph:
    """Merges several iterations of one network into one graph with mean times and their ranges.

    Raises:
        DataError: no graph, or iterations with different operators.
    """
    if not graphs:
        raise DataError("no iterations to merge; expected at least one")
    first = graphs[0]
    if len(graphs) == 1:
        return first
    for number, other in enumerate(graphs[1:], start=2):
        if len(other.operators) != len(first.operators):
            raise DataError(
                f"{first.source or first.name}: iteration {number} has "
                f"{counted(len(other.operators), 'operator')}, the first one "
                f"{len(first.operators)}; expected the same number, "
                "leave out those that differ (--iterations FIRST:LAST)"
            )
        for left, right in zip(first.operators, other.operators, strict=True):
            if (left.name, left.after, left.places) != (right.name, right.after, right.places):
                raise DataError(
                    f"{first.source or first.name}: operator {left.id} is {left.label!r} in the "
                    f"first iteration and {right.label!r} in iteration {number}; expected the "
                    "same operators, leave out those that differ (--iterations FIRST:LAST)"
                )
    merged = []
    for column in zip(*(graph.operators for graph in graphs), strict=True):
        times = [one.time_s for one in column if one.time_s is not None]
        if len(times) < len(column):
            merged.append(column[0])
            continue
        mean = float(np.clip(np.mean(times), min(times), max(times)))
        merged.append(replace(column[0], time_s=mean, low_s=min(times), high_s=max(times)))
    return replace(first, operators=tuple(merged), source=_sources(graphs))


def joined_processes(graphs: Sequence[OperatorGraph], names: Sequence[str]) -> OperatorGraph:
    """Merges the graphs of several processes (ranks) into one.

    Devices and ids get the process's name as a prefix. The n-th collectives of all processes become
    one operator, which starts when all have arrived. Its time is the shortest of them, because the
    others include waiting.

    Raises:
        DataError: the processes have different numbers of collectives.
    """
    if len(graphs) == 1:
        return graphs[0]
    collectives = [
        [one for one in graph.operators if _collective_of(one) is not None] for graph in graphs
    ]
    counts = {name: len(found) for name, found in zip(names, collectives, strict=True)}
    if len(set(counts.values())) != 1:
        text = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise DataError(
            f"the processes run different numbers of collectives ({text}); expected traces of the "
            "same iterations of every rank"
        )
    joint: dict[tuple[int, str], str] = {}
    operators: list[Operator] = []
    for number, column in enumerate(zip(*collectives, strict=True), start=1):
        identity = f"collective.{number}"
        for rank, one in enumerate(column):
            joint[rank, one.id] = identity
        times = [one.time_s for one in column if one.time_s is not None]
        operators.append(
            replace(
                column[0], id=identity, collective=_collective_of(column[0]), queue=COMMUNICATION,
                devices=tuple(f"{names[rank]}/{one.device}" for rank, one in enumerate(column)),
                device=f"{names[0]}/{column[0].device}",
                after=tuple(
                    joint.get((rank, name), f"{names[rank]}/{name}")
                    for rank, one in enumerate(column) for name in one.after
                ),
                time_s=min(times) if len(times) == len(column) else None, low_s=None, high_s=None,
            )
        )  # fmt: skip
    for rank, graph in enumerate(graphs):
        for one in graph.operators:
            if (rank, one.id) in joint:
                continue
            operators.append(
                replace(
                    one, id=f"{names[rank]}/{one.id}", device=f"{names[rank]}/{one.device}",
                    devices=tuple(f"{names[rank]}/{name}" for name in one.devices),
                    after=tuple(
                        joint.get((rank, name), f"{names[rank]}/{name}") for name in one.after
                    ),
                )
            )  # fmt: skip
    devices = {
        f"{names[rank]}/{label}": device
        for rank, graph in enumerate(graphs)
        for label, device in graph.devices.items()
    }
    return OperatorGraph(
        name=graphs[0].name, operators=tuple(operators), devices=devices, source=_sources(graphs)
    )


def walked_operators(operators: Sequence[HostOperator]) -> list[WalkedOperator]:
    """Returns a traced iteration as operators of a walk, with the kernel times of the trace."""
    walked = []
    has_open = False
    for one in operators:
        kernels = tuple(
            WalkedKernel(launch.kernel_us, launch.is_communication) for launch in one.launches
        )
        is_known = any(kernel.time_us is not None for kernel in kernels)
        is_own = any(kernel.is_communication for kernel in kernels)
        # A trace shows which operator waits for a collective, but not which one uses its result.
        walked.append(
            WalkedOperator(
                name=one.name,
                calls=tuple(launch.call for launch in one.launches),
                kernels=kernels if is_known else (),
                is_blocking=bool(one.syncs_us),
                needs_communication=has_open and "wait" in one.name.lower(),
            )
        )
        has_open = has_open or is_own
    return walked


def _collective_of(one: Operator) -> Collective | None:
    if one.queue != COMMUNICATION:
        return None
    name = one.name.lower()
    return next((word for part, word in _COLLECTIVE_WORDS if part in name), None)


def _sources(graphs: Sequence[OperatorGraph]) -> str:
    return ", ".join(dict.fromkeys(graph.source for graph in graphs if graph.source))
