"""The replay: every operator gets a start and an end on the queues of its devices.

Queues (streams) work off one operator at a time. Under `issue-order` each does so in the order in
which the host issues operators, as GPU streams do; the total then never grows when an operator gets
faster. Under `earliest-ready` a free queue takes the operator of the best priority among those that
could start (list scheduling); the total may then grow when an operator gets faster (Graham's
anomaly).
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
    """What the replay adds to the operators' own times.

    Attributes:
        policy: see the module.
        launch_s: seconds of the host to issue one operator; every device has a host thread.
        gap_s: least pause of a queue between two operators.

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
        index: its place in the graph.
        reason: what it waited for: a result, its queue, the host, or nothing.
    """

    index: int
    reason: Reason


@dataclass(frozen=True)
class Replay:
    """A replayed graph; lists have one entry an operator, in the graph's order.

    Attributes:
        graph: what was replayed.
        options: how.
        times_s: seconds of each operator.
        start_s: when each starts, from 0.
        end_s: when each ends.
        total_s: end of the last one, or of the host.
        longest_path_s: longest chain of data edges.
        busy_s: (device, queue) -> seconds in which it works.
        chain: the operators that the total consists of, first to last.
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
        """(device, queue) -> seconds of the total in which it waits."""
        return {place: max(0.0, self.total_s - busy) for place, busy in self.busy_s.items()}


def replay(
    graph: OperatorGraph,
    times_s: Sequence[float] | None = None,
    *,
    options: ReplayOptions | None = None,
) -> Replay:
    """Returns when each operator runs.

    Args:
        graph: the network.
        times_s: seconds of each operator, in the graph's order; None = those in the graph.
        options: None = no launches, no gaps, issue order.

    Raises:
        DataError: no operators, an edge from nowhere, a cycle, or an operator without a time.
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
    """Returns seconds an operator.

    Raises:
        DataError: one is missing, negative or not finite, or there are more or fewer than
            operators.
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
    """Returns for every operator the numbers of the queues it occupies, and (device, queue) by
    number.
    """
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
    """Returns for every operator the numbers of the hosts that issue it."""
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
    """Returns starts, ends and the total when every queue works in issue order."""
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
    """Returns what the total consists of: from the last operator back to what each waited for."""
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
            # The host came last: it had issued what came before, or waited for a blocking operator.
            steps.append(Step(index, "host"))
            break
        steps.append(Step(index, reason))
        index = cause
    return tuple(reversed(steps))


def _by_start(start: Sequence[float], end: Sequence[float], order: Sequence[int]) -> list[int]:
    """Returns the operators as they ran. Those without duration stay in issue order, as data edges
    want it: the sort is stable.
    """
    return sorted(order, key=lambda index: (start[index], end[index]))


def _previous(ran: Sequence[int], places: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Returns for every operator those that ran just before it in its queues."""
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
