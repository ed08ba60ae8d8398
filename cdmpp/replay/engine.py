"""The replay: computes the start and end of every operator on the queues of its devices.

A queue (stream) runs one operator at a time. With `issue-order` it runs operators in the order in
which the host issues them, like a GPU stream; a faster operator then never increases the total.
With `earliest-ready` a free queue takes the ready operator of the best priority (list scheduling);
the total may then increase when an operator gets faster (Graham's anomaly).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cdmpp.errors import DataError, UsageError
from cdmpp.processes.collector import without_collector
from cdmpp.replay.earliest_ready import EarliestReady
from cdmpp.replay.graph import Operator, OperatorGraph, issue_order, longest_path_s, predecessors

Policy = Literal["issue-order", "earliest-ready"]
POLICIES: tuple[Policy, ...] = ("issue-order", "earliest-ready")
Reason = Literal["data", "queue", "host", "start"]


@dataclass(frozen=True)
class ReplayOptions:
    """Overheads and scheduling policy of a replay.

    Attributes:
        policy: see the module.
        launch_s: seconds of the host to issue one operator; every device has a host thread.
        gap_s: minimum pause of a queue between two operators.

    Raises:
        UsageError: a time that is negative or not finite, or an unknown policy.
    """

    policy: Policy = "issue-order"
    launch_s: float = 0.0
    gap_s: float = 0.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(
                f"unknown replay policy {self.policy!r}; expected one of {', '.join(POLICIES)}"
            )
        for name in ("launch_s", "gap_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise UsageError(f"replay: {name} is {value!r}, expected seconds from 0 up")


@dataclass(frozen=True)
class Step:
    """An operator on the critical chain.

    Attributes:
        index: its index in the graph.
        reason: what it waited for: a result, its queue, the host, or nothing.
    """

    index: int
    reason: Reason


@dataclass(frozen=True)
class Replay:
    """A replayed graph; lists have one entry per operator, in the graph's order.

    Attributes:
        graph: the replayed graph.
        options: options of the replay.
        times_s: seconds of each operator.
        start_s: start of each operator, from 0.
        end_s: end of each operator.
        total_s: end of the last operator, or of the host.
        longest_path_s: longest chain of data edges.
        busy_s: (device, queue) -> seconds of work.
        chain: the operators that make up the total, first to last.
    """

    graph: OperatorGraph
    options: ReplayOptions
    times_s: tuple[float, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    total_s: float
    longest_path_s: float
    busy_s: dict[tuple[str, str], float]
    chain: tuple[Step, ...]

    @property
    def sum_s(self) -> float:
        """Sum of all operators' times."""
        return math.fsum(self.times_s)

    @property
    def idle_s(self) -> dict[tuple[str, str], float]:
        """(device, queue) -> idle seconds of the total."""
        return {place: max(0.0, self.total_s - busy) for place, busy in self.busy_s.items()}


def replay(
    graph: OperatorGraph,
    times_s: Sequence[float] | None = None,
    *,
    options: ReplayOptions | None = None,
) -> Replay:
    """Replays a graph: returns the start and end of each operator.

    Args:
        graph: the network.
        times_s: seconds of each operator, in the graph's order; None = those in the graph.
        options: None = no launches, no gaps, issue order.

    Raises:
        DataError: no operators, an edge from an unknown id, a cycle, or an operator without a time.
    """
    with without_collector():
        return _replay(graph, checked_times(graph, times_s), options or ReplayOptions())


def _replay(graph: OperatorGraph, times: list[float], options: ReplayOptions) -> Replay:
    before = predecessors(graph)
    order = issue_order(graph, before)
    places, names = _places(graph.operators)
    hosts = _hosts(graph.operators)
    blocking = [one.is_blocking for one in graph.operators]
    is_in_order = options.policy == "issue-order"
    if is_in_order:
        run = _issue_order(times, before, order, places, hosts, blocking, options)
    else:
        priorities = [one.priority for one in graph.operators]
        run = EarliestReady(
            times, before, order, places, hosts, blocking, priorities, options.launch_s,
            options.gap_s,
        ).run()  # fmt: skip
    start, end, total = run
    busy = [0.0] * len(names)
    for index, numbers in enumerate(places):
        for number in numbers:
            busy[number] += times[index]
    ran = order if is_in_order else _by_start(start, end, order)
    return Replay(
        graph=graph,
        options=options,
        times_s=tuple(times),
        start_s=tuple(start),
        end_s=tuple(end),
        total_s=total,
        longest_path_s=longest_path_s(times, before, order),
        busy_s=dict(zip(names, busy, strict=True)),
        chain=_chain(start, end, before, _previous(ran, places), options.gap_s),
    )


def checked_times(graph: OperatorGraph, times_s: Sequence[float] | None) -> list[float]:
    """Returns the seconds of each operator.

    Raises:
        DataError: a time is missing, negative or not finite, or the number of times differs from
            the number of operators.
    """
    given = [one.time_s for one in graph.operators] if times_s is None else list(times_s)
    if len(given) != len(graph.operators):
        raise DataError(
            f"{len(given)} times for {len(graph.operators)} operators; expected one for each"
        )
    for one, value in zip(graph.operators, given, strict=True):
        if value is None or not 0 <= value < math.inf:
            raise DataError(
                f"{graph.source or graph.name}: operator {one.id!r} has the time {value!r}; "
                "expected seconds from 0 up; give it a time, or the values that a cost is "
                "computed from (see docs/how-to/replay.md)"
            )
    return [float(value) for value in given if value is not None]


def _places(
    operators: Sequence[Operator],
) -> tuple[list[tuple[int, ...]], list[tuple[str, str]]]:
    """Returns the queue numbers of each operator, and (device, queue) by number."""
    numbers: dict[tuple[str, str], int] = {}
    alone: dict[tuple[str, str], tuple[int, ...]] = {}
    found = []
    for one in operators:
        if one.devices:
            found.append(tuple(numbers.setdefault(p, len(numbers)) for p in one.places))
            continue
        place = (one.device, one.queue)
        if place not in alone:
            alone[place] = (numbers.setdefault(place, len(numbers)),)
        found.append(alone[place])
    return found, list(numbers)


def _hosts(operators: Sequence[Operator]) -> list[tuple[int, ...]]:
    """Returns the numbers of the hosts that issue each operator."""
    numbers: dict[str, int] = {}
    alone: dict[str, tuple[int, ...]] = {}
    found = []
    for one in operators:
        if one.devices:
            found.append(tuple(numbers.setdefault(n, len(numbers)) for n in one.devices))
            continue
        if one.device not in alone:
            alone[one.device] = (numbers.setdefault(one.device, len(numbers)),)
        found.append(alone[one.device])
    return found


def _issue_order(
    times: Sequence[float],
    before: Sequence[Sequence[int]],
    order: Sequence[int],
    places: Sequence[tuple[int, ...]],
    hosts: Sequence[tuple[int, ...]],
    blocking: Sequence[bool],
    options: ReplayOptions,
) -> tuple[list[float], list[float], float]:
    """Returns the starts, the ends and the total with every queue in issue order."""
    launch_s, gap_s = options.launch_s, options.gap_s
    start, end = [0.0] * len(times), [0.0] * len(times)
    free = [0.0] * (1 + max(max(numbers) for numbers in places))
    clock = [0.0] * (1 + max(max(numbers) for numbers in hosts))
    for index in order:
        at = 0.0
        for place in before[index]:
            if end[place] > at:
                at = end[place]
        for host in hosts[index]:
            clock[host] += launch_s
            if clock[host] > at:
                at = clock[host]
        for number in places[index]:
            if free[number] > at:
                at = free[number]
        start[index] = at
        done = end[index] = at + times[index]
        for number in places[index]:
            free[number] = done + gap_s
        if blocking[index]:
            for host in hosts[index]:
                clock[host] = done
    return start, end, max(max(end), max(clock))


def _chain(
    start: Sequence[float],
    end: Sequence[float],
    before: Sequence[Sequence[int]],
    previous: Sequence[tuple[int, ...]],
    gap_s: float,
) -> tuple[Step, ...]:
    """Returns the operators that make up the total, found backwards from the last one."""
    index = max(range(len(end)), key=end.__getitem__)
    steps: list[Step] = []
    while True:
        at = start[index]
        if at == 0.0:
            steps.append(Step(index, "start"))
            break
        cause = next((place for place in before[index] if end[place] == at), None)
        reason: Reason = "data"
        if cause is None:
            reason = "queue"
            cause = next((place for place in previous[index] if end[place] + gap_s == at), None)
        if cause is None:
            # The host came last: it issued earlier operators, or waited for a blocking one.
            steps.append(Step(index, "host"))
            break
        steps.append(Step(index, reason))
        index = cause
    return tuple(reversed(steps))


def _by_start(start: Sequence[float], end: Sequence[float], order: Sequence[int]) -> list[int]:
    """Returns the operators in the order of their starts. The sort is stable: operators without
    duration stay in issue order, which respects the data edges.
    """
    return sorted(order, key=lambda index: (start[index], end[index]))


def _previous(ran: Sequence[int], places: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Returns for each operator its predecessors in its queues."""
    previous: list[tuple[int, ...]] = [()] * len(ran)
    last: dict[int, int] = {}
    for index in ran:
        own = places[index]
        if len(own) == 1:
            number = own[0]
            if number in last:
                previous[index] = (last[number],)
            last[number] = index
        else:
            previous[index] = tuple(last[number] for number in own if number in last)
            for number in own:
                last[number] = index
    return previous
