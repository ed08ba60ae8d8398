"""The replay engine: known schedules, and what holds for every graph."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.errors import DataError, UsageError
from cdmpp.replay.engine import POLICIES, Policy, ReplayOptions, replay
from cdmpp.replay.graph import Operator, OperatorGraph
from tests.replay.graphs import chain, graphs

ROUNDING = 1e-12
policies = st.sampled_from(POLICIES)


def operator(name: str, seconds: float, *after: str, queue: str = "compute", **more) -> Operator:  # type: ignore[no-untyped-def]
    return Operator(name, after=after, time_s=seconds, queue=queue, **more)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_serial_queue_is_the_sum(policy: Policy) -> None:
    run = replay(chain([1.0, 2.0, 4.0]), options=ReplayOptions(policy))
    assert run.total_s == run.sum_s == 7.0
    assert run.start_s == (0.0, 1.0, 3.0)
    assert [step.reason for step in run.chain] == ["start", "data", "data"]
    assert run.idle_s == {("device", "compute"): 0.0}


@pytest.mark.parametrize("policy", POLICIES)
def test_gaps_lie_between_operators(policy: Policy) -> None:
    run = replay(chain([1.0, 2.0, 4.0]), options=ReplayOptions(policy, gap_s=0.5))
    assert run.total_s == 8.0


@pytest.mark.parametrize("policy", POLICIES)
def test_launches_bound_short_operators(policy: Policy) -> None:
    options = ReplayOptions(policy, launch_s=1.0)
    assert replay(chain([0.25] * 4), options=options).total_s == 4.25
    assert replay(chain([3.0] * 4), options=options).total_s == 13.0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_host_waits_for_a_blocking_operator(policy: Policy) -> None:
    graph = OperatorGraph(
        "blocking",
        (
            operator("0", 5.0, is_blocking=True),
            operator("1", 1.0, queue="copy"),
            operator("2", 1.0),
        ),
    )
    run = replay(graph, options=ReplayOptions(policy, launch_s=1.0))
    assert run.start_s == (1.0, 7.0, 8.0)
    assert run.total_s == 9.0
    free = replace(graph, operators=tuple(replace(o, is_blocking=False) for o in graph.operators))
    assert replay(free, options=ReplayOptions(policy, launch_s=1.0)).total_s == 7.0


@pytest.mark.parametrize("policy", POLICIES)
def test_queues_overlap_and_a_collective_waits_for_all_devices(policy: Policy) -> None:
    graph = OperatorGraph(
        "two",
        (
            operator("a", 2.0, device="gpu0"),
            operator("b", 3.0, device="gpu1"),
            operator("c", 1.0, "a", "b", queue="communication", device="gpu0",
                     devices=("gpu0", "gpu1"), collective="all-reduce"),
            operator("d", 1.0, "c", device="gpu0"),
        ),
    )  # fmt: skip
    run = replay(graph, options=ReplayOptions(policy))
    assert run.total_s == 5.0
    assert run.busy_s["gpu1", "communication"] == 1.0
    assert [graph.operators[step.index].id for step in run.chain] == ["b", "c", "d"]


def test_priorities_choose_among_what_is_ready() -> None:
    graph = OperatorGraph("p", (operator("a", 1.0), operator("b", 1.0, priority=-1)))
    for policy in POLICIES:
        assert replay(graph, options=ReplayOptions(policy)).start_s == (1.0, 0.0)


def test_ids_count_in_natural_order() -> None:
    graph = OperatorGraph("n", (operator("op10", 1.0), operator("op9", 1.0)))
    assert replay(graph).start_s == (1.0, 0.0)


def anomaly(first_s: float) -> OperatorGraph:
    """Where `earliest-ready` takes long work first when `a` is fast."""
    return OperatorGraph(
        "anomaly",
        (
            operator("a", first_s, queue="copy"),
            operator("x", 2.0, queue="aux"),
            operator("long", 10.0, "a"),
            operator("short", 1.0, "x"),
            operator("tail", 10.0, "short", queue="copy"),
        ),
    )


def test_only_issue_order_is_monotone() -> None:
    def total(seconds: float, policy: Policy) -> float:
        return replay(anomaly(seconds), options=ReplayOptions(policy)).total_s

    assert total(1.0, "earliest-ready") > total(3.0, "earliest-ready")
    assert total(1.0, "issue-order") <= total(3.0, "issue-order")


@settings(deadline=None, max_examples=150)
@given(graphs(), policies)
def test_bounds(graph: OperatorGraph, policy: Policy) -> None:
    run = replay(graph, options=ReplayOptions(policy))
    assert run.total_s >= run.longest_path_s - ROUNDING
    assert all(run.total_s >= busy - ROUNDING for busy in run.busy_s.values())
    assert run.total_s <= run.sum_s + ROUNDING
    by_place: dict[tuple[str, str], list[tuple[float, float]]] = {}
    starts = dict(zip((o.id for o in graph.operators), run.start_s, strict=True))
    ends = dict(zip((o.id for o in graph.operators), run.end_s, strict=True))
    for one in graph.operators:
        assert all(ends[name] <= starts[one.id] + ROUNDING for name in one.after)
        for place in one.places:
            by_place.setdefault(place, []).append((starts[one.id], ends[one.id]))
    for spans in by_place.values():
        ordered = sorted(spans)
        pairs = itertools.pairwise(ordered)
        assert all(left[1] <= right[0] + ROUNDING for left, right in pairs)


@settings(deadline=None, max_examples=150)
@given(graphs(), st.integers(0, 13), st.integers(1, 9))
def test_monotone_in_every_time(graph: OperatorGraph, place: int, more_ms: int) -> None:
    times = [one.time_s or 0.0 for one in graph.operators]
    slower = list(times)
    slower[place % len(times)] += 1e-3 * more_ms
    options = ReplayOptions(launch_s=2e-3, gap_s=1e-3)
    before, after = (replay(graph, t, options=options).total_s for t in (times, slower))
    assert after >= before - ROUNDING


@settings(deadline=None, max_examples=100)
@given(graphs(), st.randoms(use_true_random=False), policies)
def test_the_order_of_the_list_changes_nothing(
    graph: OperatorGraph, chance: random.Random, policy: Policy
) -> None:
    shuffled = list(graph.operators)
    chance.shuffle(shuffled)
    options = ReplayOptions(policy, launch_s=1e-3)
    first = replay(graph, options=options)
    second = replay(replace(graph, operators=tuple(shuffled)), options=options)
    assert second.total_s == first.total_s
    starts = dict(zip((o.id for o in graph.operators), first.start_s, strict=True))
    assert dict(zip((o.id for o in shuffled), second.start_s, strict=True)) == starts


@settings(deadline=None, max_examples=100)
@given(graphs(), policies)
def test_the_chain_explains_the_total(graph: OperatorGraph, policy: Policy) -> None:
    run = replay(graph, options=ReplayOptions(policy))
    assert run.chain[0].reason == "start"
    lengths = sum(run.times_s[step.index] for step in run.chain)
    assert lengths == pytest.approx(run.total_s, abs=ROUNDING)


@settings(deadline=None, max_examples=100)
@given(graphs(), st.integers(1, 40))
def test_no_launch_is_lost_under_either_policy(graph: OperatorGraph, launch_ms: int) -> None:
    options = ReplayOptions("earliest-ready", launch_s=1e-3 * launch_ms)
    run = replay(graph, options=options)
    assert run.total_s <= run.sum_s + 1e-3 * launch_ms * len(graph.operators) + ROUNDING
    assert all(end >= start for start, end in zip(run.start_s, run.end_s, strict=True))
    assert min(run.start_s) >= 1e-3 * launch_ms - ROUNDING


@pytest.mark.parametrize(
    ("operators", "text"),
    [
        ((), "no operators"),
        ((operator("a", 1.0, "b"), operator("b", 1.0, "c"), operator("c", 1.0, "b")),
         "wait for each other"),
        ((operator("a", 1.0, "nowhere"),), "comes after 'nowhere', which is not in the graph"),
        ((operator("a", 1.0), operator("a", 2.0)), "two operators have the id 'a'"),
        ((Operator("a"),), "'a' has the time None"),
        ((operator("a", float("nan")),), "'a' has the time nan"),
    ],
)  # fmt: skip
def test_bad_graphs(operators: tuple[Operator, ...], text: str) -> None:
    with pytest.raises(DataError, match=text) as caught:
        replay(OperatorGraph("bad", operators))
    assert "\n" not in str(caught.value)


def test_a_cycle_is_named_along_its_edges() -> None:
    graph = OperatorGraph(
        "cycle", (operator("a", 1.0, "c"), operator("b", 1.0, "a"), operator("c", 1.0, "b"))
    )
    with pytest.raises(DataError, match=r"a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c"):
        replay(graph)


def test_bad_options() -> None:
    with pytest.raises(UsageError, match="seconds from 0 up"):
        ReplayOptions(gap_s=-1.0)
    with pytest.raises(UsageError, match="policy 'best'"):
        ReplayOptions("best")  # type: ignore[arg-type]
