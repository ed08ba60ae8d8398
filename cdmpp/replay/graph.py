"""A network as a graph of operators: what runs where, after what, and how much it computes."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cdmpp.errors import DataError

Collective = Literal["all-reduce", "all-to-all", "all-gather", "reduce-scatter"]
COLLECTIVES: tuple[Collective, ...] = ("all-reduce", "all-to-all", "all-gather", "reduce-scatter")

#: Queues (streams) that operators go to when they do not say which.
COMPUTE, COPY, COMMUNICATION = "compute", "copy", "communication"
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Operator:
    """One call in a network.

    Attributes:
        id: unique in the graph. Operators of equal priority that could both be issued next are
            issued in the natural order of their ids (`op9` before `op10`).
        name: as people know it; default the id.
        kind: such as `conv2d`, `copy`, `all-reduce`; what `--scale` and tables go by.
        after: ids of the operators whose results it needs.
        device: label of a device of the graph.
        queue: the device's queue (stream) it runs in.
        priority: a lower number is issued earlier.
        time_s: seconds where they are known.
        low_s: lower end of the time's interval; None = unknown.
        high_s: upper end.
        flop: floating-point operations; None = unknown.
        bytes: distinct bytes that it reads and writes, or that a copy or collective moves.
        task: key of its computation, equal for equal calls; empty where it has none.
        shapes: of the arguments, e.g. `1x64x56x56`.
        collective: what several devices do together.
        devices: the labels that take part in a collective.
        is_blocking: the host waits for it before it issues anything more.
    """

    id: str
    name: str = ""
    kind: str = ""
    after: tuple[str, ...] = ()
    device: str = "device"
    queue: str = COMPUTE
    priority: int = 0
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    flop: float | None = None
    bytes: float | None = None
    task: str = ""
    shapes: tuple[str, ...] = ()
    collective: Collective | None = None
    devices: tuple[str, ...] = ()
    is_blocking: bool = False

    @property
    def label(self) -> str:
        """Its name, or its id where it has none."""
        return self.name or self.id

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The (device, queue) pairs it occupies."""
        return tuple((device, self.queue) for device in self.devices or (self.device,))


@dataclass(frozen=True)
class OperatorGraph:
    """A network as operators with data edges.

    Attributes:
        name: of the network.
        operators: in any order.
        devices: device label in the graph -> name of a DeviceSpec; labels without one are left out.
        source: what it was read from, in words.
        has_edges: whether the order of the operators is known. Tasks with weights have none: their
            calls run one after the other.
    """

    name: str
    operators: tuple[Operator, ...]
    devices: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    has_edges: bool = True

    def scaled(self, times_s: Mapping[str, float]) -> OperatorGraph:
        """Returns the graph with other times, by operator id."""
        changed = tuple(
            replace(one, time_s=times_s[one.id]) if one.id in times_s else one
            for one in self.operators
        )
        return replace(self, operators=changed)


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Returns a sort key under which numbers in a text count as numbers."""
    if text.isdecimal():
        return ((0, int(text), ""),)
    parts = _DIGITS.split(text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def predecessors(graph: OperatorGraph) -> list[list[int]]:
    """Returns for every operator the places of those it waits for, repeats left out.

    Raises:
        DataError: no operators, an id twice, or an edge from an id that is not there.
    """
    if not graph.operators:
        raise DataError(
            f"{graph.source or graph.name or 'the graph'}: no operators; expected at least one"
        )
    place = {one.id: index for index, one in enumerate(graph.operators)}
    if len(place) != len(graph.operators):
        (twice, _), *_ = Counter(one.id for one in graph.operators).most_common(1)
        raise DataError(
            f"{graph.source or graph.name}: two operators have the id {twice!r}; expected unique "
            "ids, rename one"
        )
    try:
        return [
            [
                place[name]
                for name in (one.after if len(one.after) < 2 else dict.fromkeys(one.after))
            ]
            for one in graph.operators
        ]
    except KeyError as error:
        missing = str(error.args[0])
        one = next(one for one in graph.operators if missing in one.after)
        raise DataError(
            f"{graph.source or graph.name}: operator {one.id!r} comes after {missing!r}, which "
            "is not in the graph; correct its `after`"
        ) from None


def issue_order(graph: OperatorGraph, before: Sequence[Sequence[int]]) -> list[int]:
    """Returns the places of all operators in the order in which a host issues them.

    That is the topological order in which the lowest priority number, then the lowest id, comes
    first. It depends on neither times nor the order in which the graph lists its operators.

    Args:
        before: `predecessors(graph)`.

    Raises:
        DataError: the graph has a cycle; names the operators of one.
    """
    operators = graph.operators
    ranks = ranked(operators)
    after: list[list[int]] = [[] for _ in operators]
    waiting = [0] * len(operators)
    for index, places in enumerate(before):
        waiting[index] = len(places)
        for place in places:
            after[place].append(index)
    of_rank = [0] * len(operators)
    for index, rank in enumerate(ranks):
        of_rank[rank] = index
    ready = [ranks[index] for index, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        index = of_rank[heapq.heappop(ready)]
        order.append(index)
        for follower in after[index]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, ranks[follower])
    if len(order) < len(operators):
        cycle = _a_cycle(before, [index for index, count in enumerate(waiting) if count])
        names = " -> ".join(operators[index].id for index in cycle)
        raise DataError(
            f"{graph.source or graph.name}: the operators {names} wait for each other; expected "
            "a graph without cycles; correct `after`"
        )
    return order


def ranked(operators: Sequence[Operator]) -> list[int]:
    """Returns the rank of each operator by (priority, id)."""
    order = sorted(
        range(len(operators)),
        key=lambda index: (operators[index].priority, natural_key(operators[index].id)),
    )
    ranks = [0] * len(operators)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return ranks


def longest_path_s(
    times_s: Sequence[float], before: Sequence[Sequence[int]], order: Iterable[int]
) -> float:
    """Returns the seconds of the longest chain of data edges: no number of queues is faster."""
    end = [0.0] * len(times_s)
    for index in order:
        start = max((end[place] for place in before[index]), default=0.0)
        end[index] = start + times_s[index]
    return max(end, default=0.0)


def _a_cycle(before: Sequence[Sequence[int]], left: Sequence[int]) -> list[int]:
    """Returns the places of one cycle, in the direction of the edges, first one repeated.

    Args:
        left: operators that wait, each for at least one other of them.
    """
    members = set(left)
    path: list[int] = []
    seen: dict[int, int] = {}
    index = left[0]
    while index not in seen:
        seen[index] = len(path)
        path.append(index)
        index = next(place for place in before[index] if place in members)
    cycle = path[seen[index] :]
    return [index, *reversed(cycle)]
