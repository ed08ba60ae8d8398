"""How often which operators occur in a trace or graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.replay.graph import OperatorGraph
from cdmpp.replay.traces.host_operators import HostOperator, is_view
from cdmpp.replay.traces.iteration_walk import SKIPPED_OPERATORS


@dataclass(frozen=True)
class OperatorStatistics:
    """One kind of operator.

    Attributes:
        name: of the operator.
        count: calls.
        inputs: different shapes of its inputs.
        launches: kernels that it launches in all.
        time_s: seconds of all calls; on the host for traces; None where some have none.
    """

    name: str
    count: int
    inputs: int
    launches: int
    time_s: float | None


def trace_statistics(iterations: Iterable[Sequence[HostOperator]]) -> list[OperatorStatistics]:
    """Returns the top-level operators of a trace, most frequent first."""
    rows: dict[str, list[HostOperator]] = {}
    for operators in iterations:
        for one in operators:
            rows.setdefault(one.name, []).append(one)
    return _ordered(
        OperatorStatistics(
            name, len(found), len({one.shapes for one in found}),
            sum(len(one.launches) for one in found),
            sum(one.end_us - one.start_us for one in found) * 1e-6,
        )
        for name, found in rows.items()
    )  # fmt: skip


def graph_statistics(graph: OperatorGraph) -> list[OperatorStatistics]:
    """Returns the kinds of operators of a graph, most frequent first."""
    rows: dict[str, list[Any]] = {}
    for one in graph.operators:
        rows.setdefault(one.kind or one.label, []).append(one)
    return _ordered(
        OperatorStatistics(
            name, len(found), len({one.shapes for one in found}), 0,
            None if any(one.time_s is None for one in found) else sum(one.time_s for one in found),
        )
        for name, found in rows.items()
    )  # fmt: skip


def cleaned(rows: Iterable[OperatorStatistics]) -> list[OperatorStatistics]:
    """Returns the rows without views and without what a walk skips."""
    return [row for row in rows if not is_view(row.name) and row.name not in SKIPPED_OPERATORS]


def _ordered(rows: Iterable[OperatorStatistics]) -> list[OperatorStatistics]:
    return sorted(rows, key=lambda row: (-row.count, row.name))
