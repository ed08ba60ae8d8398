"""A network as a graph of operators: devices, queues, data edges and work."""

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

#: Default queues (streams) of operators.
COMPUTE, COPY, COMMUNICATION = "compute", "copy", "communication"
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Operator:
    """One call in a network.

    Attributes:
        id: unique in the graph. Among operators of equal priority that could be issued next, the
            natural order of ids decides (`op9` before `op10`).
        name: display name; empty = the id.
        kind: such as `conv2d`, `copy`, `all-reduce`; key of `--scale` and of tables.
        after: ids of the operators whose results it needs.
        device: label of a device of the graph.
        queue: queue (stream) of the device that runs it.
        priority: a lower number is issued earlier.
        time_s: seconds; None = unknown.
        low_s: lower end of the time's interval; None = unknown.
        high_s: upper end; None = unknown.
        flop: floating-point operations; None = unknown.
        bytes: distinct bytes read and written, or moved by a copy or collective; None = unknown.
        task: key of its computation, equal for equal calls; may be empty.
        shapes: shapes of the arguments, e.g. `1x64x56x56`.
        collective: kind of collective; None = not a collective.
        devices: labels of the devices in a collective.
        is_blocking: whether the host waits for it before it issues the next operator.
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
        """The name, or the id without a name."""
        return self.name or self.id

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The (device, queue) pairs it occupies."""
        return tuple((device, self.queue) for device in self.devices or (self.device,))


@dataclass(frozen=True)
class OperatorGraph:
    """A network as operators with data edges.

    Attributes:
        name: name of the network.
        operators: in any order.
        devices: label in the graph -> name of a DeviceSpec; may lack labels.
        source: where it was read from, in words.
        has_edges: whether the data edges are known. Tasks with weights have none; their calls run
            one after the other.
    """

    name: str
    operators: tuple[Operator, ...]
    devices: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    has_edges: bool = True

    def scaled(self, times_s: Mapping[str, float]) -> OperatorGraph:
        """Returns the graph with some times replaced, by operator id."""
        changed = tuple(
            replace(one, time_s=times_s[one.id]) if one.id in times_s else one
            for one in self.operators
        )
        return replace(self, operators=changed)


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Returns a sort key that compares numbers in a text by value."""
    if text.isdecimal():
        return ((0, int(text), ""),)
    parts = _DIGITS.split(text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def predecessors(graph: OperatorGraph) -> list[list[int]]:
    """Returns the indices of each operator's predecessors, without duplicates.

    Raises:
        DataError: no operators, a duplicate id, or an edge from an unknown id.
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
    """Returns the indices of all operators in the order in which a host issues them.

    It is the topological order with the lowest priority number first, then the lowest id. It
    depends on neither the times nor the order of operators in the graph.

    Args:
        before: `predecessors(graph)`.

    Raises:
        DataError: the graph has a cycle; the error names its operators.
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
    """Returns the seconds of the longest chain of data edges, a lower bound for any replay."""
    end = [0.0] * len(times_s)
    for index in order:
        start = max((end[place] for place in before[index]), default=0.0)
        end[index] = start + times_s[index]
    return max(end, default=0.0)


def _a_cycle(before: Sequence[Sequence[int]], left: Sequence[int]) -> list[int]:
    """Returns the indices of one cycle, in the direction of the edges, the first one repeated.

    Args:
        left: operators that each wait for at least one other of them.
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
