"""The result of a replay as values for `--json`, files and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cdmpp.replay.costs import GraphCosts, OperatorCost
from cdmpp.replay.engine import Replay, ReplayOptions, replay
from cdmpp.replay.what_if import scaled_times


@dataclass(frozen=True)
class ReplayOutcome:
    """A replayed network with its interval.

    Attributes:
        device: device of the replay, in words; empty if the graph names its devices.
        schedule: which programs the kernels are; may be empty.
        costs: costs of the operators.
        expected: replay with the latencies.
        low_s, high_s: totals with the ends of the intervals, assuming that the shared errors of all
            operators are equal; None if no operator has an interval.
        draws_s: totals under each draw of the schedules.
        what_if: replay with scaled operators, or None.
        scales: factors of `what_if`.
        measured: measured values, or None.
        notes: assumptions.
    """

    device: str
    schedule: str
    costs: GraphCosts
    expected: Replay
    low_s: float | None
    high_s: float | None
    draws_s: tuple[float, ...] = ()
    what_if: Replay | None = None
    scales: Mapping[str, float] = field(default_factory=dict)
    measured: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def without_interval(self) -> tuple[str, ...]:
        """Kinds of operators with calls of unknown error, most expensive first."""
        seconds: dict[str, float] = {}
        for one, cost in zip(self.costs.graph.operators, self.costs.costs, strict=True):
            if not cost.has_interval:
                kind = one.kind or one.label
                seconds[kind] = seconds.get(kind, 0.0) + cost.latency_s
        return tuple(sorted(seconds, key=lambda kind: -seconds[kind]))


def replay_costs(
    costs: GraphCosts,
    options: ReplayOptions,
    *,
    device: str = "",
    schedule: str = "",
    scales: Mapping[str, float] | None = None,
    notes: tuple[str, ...] = (),
) -> ReplayOutcome:
    """Replays a graph with the expected costs, both ends of the interval, and every draw.

    Raises:
        DataError: see `replay`.
        UsageError: a scale matches no operator.
    """
    graph, times = costs.graph, costs.times_s
    scales = dict(scales or {})
    expected = replay(graph, times, options=options)
    low_s = high_s = None
    if any(cost.has_interval for cost in costs.costs):  # with shorter operators it may end later
        low_s = min(replay(graph, costs.low_s, options=options).total_s, expected.total_s)
        high_s = max(replay(graph, costs.high_s, options=options).total_s, expected.total_s)
        if costs.own_width and low_s > 0:
            wide_low_s, wide_high_s = _with_own(low_s, expected.total_s, high_s, costs.own_width)
            least_s = replay(graph, [one.low_s for one in costs.costs], options=options).total_s
            most_s = replay(graph, [one.high_s for one in costs.costs], options=options).total_s
            low_s = min(low_s, max(wide_low_s, least_s))
            high_s = max(high_s, min(wide_high_s, most_s))
    return ReplayOutcome(
        device=device,
        schedule=schedule,
        costs=costs,
        expected=expected,
        low_s=low_s,
        high_s=high_s,
        draws_s=tuple(
            replay(graph, costs.drawn_s(draw), options=options).total_s
            for draw in range(costs.draw_count())
        ),
        what_if=replay(graph, scaled_times(graph, times, scales), options=options)
        if scales
        else None,
        scales=scales,
        notes=notes,
    )


def _with_own(low_s: float, total_s: float, high_s: float, width: float) -> tuple[float, float]:
    """Returns both ends of a total's interval, widened by `width` in squares of the logarithm."""
    low, high = (math.hypot(math.log(end / total_s), width) for end in (low_s, high_s))
    return total_s * math.exp(-low), total_s * math.exp(high)


def outcome_values(outcome: ReplayOutcome) -> dict[str, Any]:
    """Returns an outcome as JSON values; times in seconds."""
    run, graph = outcome.expected, outcome.costs.graph
    return {
        "name": graph.name, "source": graph.source, "device": outcome.device,
        "schedule": outcome.schedule, "operators": len(graph.operators),
        "has_edges": graph.has_edges, "policy": run.options.policy,
        "launch_s": run.options.launch_s, "gap_s": run.options.gap_s,
        "total_s": run.total_s, "low_s": outcome.low_s, "high_s": outcome.high_s,
        "without_interval": list(outcome.without_interval), "notes": list(outcome.notes),
        "sum_s": run.sum_s, "longest_path_s": run.longest_path_s,
        "queues": [
            {"device": place[0], "queue": place[1], "busy_s": busy,
             "idle_s": run.idle_s[place]}
            for place, busy in sorted(run.busy_s.items())
        ],
        "by_kind": by_kind(outcome),
        "critical_path": [
            {"id": graph.operators[step.index].id, "name": graph.operators[step.index].label,
             "time_s": run.times_s[step.index], "start_s": run.start_s[step.index],
             "waited_for": step.reason}
            for step in run.chain
        ],
        "uncovered": [
            {"id": one.id, "name": one.label, "kind": one.kind, "bound_s": cost.latency_s,
             "high_s": cost.high_s, "reason": cost.reason}
            for one, cost in outcome.costs.uncovered
        ],
        "draws": _distribution(outcome.draws_s),
        "what_if": None if outcome.what_if is None else
        {"scales": dict(outcome.scales), "total_s": outcome.what_if.total_s},
        "measured": outcome.measured,
    }  # fmt: skip


def calls_of(run: Replay, places: Mapping[str, int]) -> list[dict[str, Any]]:
    """Returns lanes, start, seconds and predecessors' indices of each operator, in graph order.

    Args:
        places: number of the kernel by the task of an operator, or by its label without a task.
    """
    known = {one.id: place for place, one in enumerate(run.graph.operators)}
    return [
        {"kernel": places[one.task or one.label], "kind": one.kind or one.label,
         "after": [known[name] for name in one.after if name in known],
         "lanes": [" ".join(place) for place in one.places], "start_s": start, "time_s": time}
        for one, start, time in zip(run.graph.operators, run.start_s, run.times_s, strict=True)
    ]  # fmt: skip


def by_kind(outcome: ReplayOutcome) -> list[dict[str, Any]]:
    """Returns calls, seconds, interval and sources by kind of operator, most expensive first."""
    rows: dict[str, dict[str, Any]] = {}
    for one, cost in zip(outcome.costs.graph.operators, outcome.costs.costs, strict=True):
        row = rows.setdefault(
            one.kind or one.label,
            {"calls": 0, "time_s": 0.0, "low_s": 0.0, "high_s": 0.0, "sources": set()},
        )
        row["calls"] += 1
        row["time_s"] += cost.latency_s
        row["low_s"] += cost.low_s
        row["high_s"] += cost.high_s
        row["sources"].add(cost.source)
    total = outcome.expected.sum_s or 1.0
    for row in rows.values():
        if row["low_s"] >= row["high_s"]:
            row["low_s"] = row["high_s"] = None
    found = [
        {"kind": kind, **row, "sources": sorted(row["sources"]), "share": row["time_s"] / total}
        for kind, row in rows.items()
    ]
    return sorted(found, key=lambda row: (-row["time_s"], row["kind"]))


def uncovered_groups(outcome: ReplayOutcome) -> list[tuple[str, int, OperatorCost]]:
    """Returns the operators with only a bound, grouped by name and reason: (name, calls, cost of
    all calls), highest upper end first.
    """
    groups: dict[tuple[str, str], list[OperatorCost]] = {}
    for one, cost in outcome.costs.uncovered:
        groups.setdefault((one.label, cost.reason), []).append(cost)
    found = [
        (name, len(costs), OperatorCost(
            sum(cost.latency_s for cost in costs), sum(cost.low_s for cost in costs),
            sum(cost.high_s for cost in costs), "bound", reason,
        ))
        for (name, reason), costs in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda group: (-group[2].high_s, group[0]))


def _distribution(values: tuple[float, ...]) -> dict[str, Any] | None:
    if not values:
        return None
    points = np.percentile(values, [10, 50, 90])
    return {
        "n": len(values), "mean_s": float(np.mean(values)), "min_s": min(values),
        "p10_s": float(points[0]), "median_s": float(points[1]), "p90_s": float(points[2]),
        "max_s": max(values), "totals_s": list(values),
    }  # fmt: skip
