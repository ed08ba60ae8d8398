"""Counts of the operators in a trace or graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.replay.graph import OperatorGraph
from cdmpp.replay.traces.execution_trace import TracedCall
from cdmpp.replay.traces.host_operators import HostOperator, is_view
from cdmpp.replay.traces.iteration_walk import SKIPPED_OPERATORS


@dataclass(frozen=True)
class OperatorStatistics:
    """Statistics of one kind of operator.

    Attributes:
        name: name of the operator.
        count: number of calls.
        shapes: shapes of its inputs -> number of calls, most frequent first.
        launches: total number of launched kernels; None = unknown.
        time_s: seconds of all calls, on the host for traces; None if the time of a call is unknown.
    """

    name: str
    count: int
    shapes: dict[str, int]
    launches: int | None
    time_s: float | None

    @property
    def inputs(self) -> int:
        """Number of different input shapes."""
        return len(self.shapes)


def trace_statistics(iterations: Iterable[Sequence[HostOperator]]) -> list[OperatorStatistics]:
    """Returns statistics of a trace's top-level operators, most frequent first."""
    rows: dict[str, list[HostOperator]] = {}
    for operators in iterations:
        for one in operators:
            rows.setdefault(one.name, []).append(one)
    return _ordered(
        OperatorStatistics(
            name, len(found), _counted(one.shapes for one in found),
            sum(len(one.launches) for one in found),
            sum(one.end_us - one.start_us for one in found) * 1e-6,
        )
        for name, found in rows.items()
    )  # fmt: skip


def call_statistics(
    calls: Iterable[TracedCall], times_s: Mapping[int, float]
) -> list[OperatorStatistics]:
    """Returns statistics of an execution trace's top-level operators, most frequent first.

    Args:
        times_s: see `read_execution_trace`.
    """
    rows: dict[str, list[TracedCall]] = {}
    for one in calls:
        rows.setdefault(one.name, []).append(one)
    return _ordered(
        OperatorStatistics(
            name, len(found), _counted(_joined(one.shape_texts) for one in found), None,
            _sum(times_s.get(one.function) for one in found),
        )
        for name, found in rows.items()
    )  # fmt: skip


def graph_statistics(graph: OperatorGraph) -> list[OperatorStatistics]:
    """Returns statistics of a graph's kinds of operators, most frequent first."""
    rows: dict[str, list[Any]] = {}
    for one in graph.operators:
        rows.setdefault(one.kind or one.label, []).append(one)
    return _ordered(
        OperatorStatistics(
            name, len(found), _counted(_joined(one.shapes) for one in found), None,
            _sum(one.time_s for one in found),
        )
        for name, found in rows.items()
    )  # fmt: skip


def cleaned(rows: Iterable[OperatorStatistics]) -> list[OperatorStatistics]:
    """Returns the rows without views and operators that a walk skips."""
    return [row for row in rows if not is_view(row.name) and row.name not in SKIPPED_OPERATORS]


def _counted(inputs: Iterable[str]) -> dict[str, int]:
    return dict(Counter(inputs).most_common())


def _joined(shapes: Iterable[str]) -> str:
    return ", ".join(shapes)


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None


def _ordered(rows: Iterable[OperatorStatistics]) -> list[OperatorStatistics]:
    return sorted(rows, key=lambda row: (-row.count, row.name))
