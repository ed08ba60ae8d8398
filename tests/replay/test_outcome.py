"""Replays of graphs with times of their own, of a table, and of another device."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.replay.costs import GraphCosts, OperatorCost
from cdmpp.replay.engine import ReplayOptions
from cdmpp.replay.graph import Operator, OperatorGraph
from cdmpp.replay.outcome import read_times, replay_graph
from cdmpp.replay.summary import replay_costs
from cdmpp.replay.transfers import Links

GRAPH = OperatorGraph(
    "small",
    (
        Operator("a", kind="conv2d", device="gpu0", time_s=1e-3),
        Operator("b", kind="mystery", device="gpu0", bytes=1e6, after=("a",)),
    ),
    devices={"gpu0": "v100"},
)


def test_a_bound_stands_in_for_what_nothing_covers() -> None:
    outcome = replay_graph(GRAPH, Links(), ReplayOptions())
    assert [cost.source for cost in outcome.costs.costs] == ["given", "bound"]
    assert outcome.device == ""
    assert 1e-3 < outcome.expected.total_s < outcome.high_s
    other = replay_graph(GRAPH, Links(), ReplayOptions(), device="t4")
    assert other.device == "t4"
    assert other.expected.total_s > outcome.expected.total_s


def test_given_times_and_factors_win() -> None:
    outcome = replay_graph(
        GRAPH, Links(), ReplayOptions(), times={"mystery": 2e-3}, scales={"conv2d": 0.5},
        graph_source="analytic",
    )  # fmt: skip
    assert [cost.source for cost in outcome.costs.costs] == ["analytic", "given"]
    assert outcome.expected.total_s == pytest.approx(3e-3)
    assert outcome.what_if is not None
    assert outcome.what_if.total_s == pytest.approx(2.5e-3)


def test_what_fits_nothing_is_named() -> None:
    with pytest.raises(UsageError, match="'conv9'"):
        replay_graph(GRAPH, Links(), ReplayOptions(), times={"conv9": 1.0})
    with pytest.raises(DeviceError, match="v1000"):
        replay_graph(GRAPH, Links(), ReplayOptions(), device="v1000")


@pytest.mark.parametrize("text", ["", "[1]", '{"a": true}', '{"a": -1}', '{"a": Infinity}'])
def test_times_are_seconds_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(text)
    with pytest.raises(DataError, match="expected JSON such as"):
        read_times(path)
    path.write_text('{"conv2d": 1, "dense": 0.5}')
    assert read_times(path) == {"conv2d": 1.0, "dense": 0.5}


def test_what_is_an_operators_own_is_not_in_the_totals_ends() -> None:
    width, own = 0.5, 0.4
    cost = OperatorCost(1e-3, 1e-3 * math.exp(-width), 1e-3 * math.exp(width), "model", "", (), own)
    assert math.log(cost.shared_high_s / 1e-3) == pytest.approx(0.3)
    assert math.log(cost.shared_low_s / 1e-3) == pytest.approx(-0.3)
    costs = GraphCosts(OperatorGraph("two", ()), (cost, replace(cost, own_width=0.0)))
    assert costs.low_s == [cost.shared_low_s, cost.low_s]
    assert costs.high_s == [cost.shared_high_s, cost.high_s]
    floored = replace(cost, low_s=1e-3 * math.exp(-0.2))
    assert floored.shared_low_s == floored.low_s, "its lower end is the floor"


@pytest.mark.parametrize(
    ("tasks", "width"),
    [(["a"], 0.5), (["a"] * 9, 0.5), (["a", "b", "c", "d"], math.hypot(0.3, 0.4 / 2))],
)
def test_what_is_a_kernels_own_averages_out_over_kernels(tasks: list[str], width: float) -> None:
    low_s, high_s = 1e-3 * math.exp(-0.5), 1e-3 * math.exp(0.5)
    cost = OperatorCost(1e-3, low_s, high_s, "model", own_width=0.4)
    calls = tuple(Operator(str(place), task=task) for place, task in enumerate(tasks))
    costs = GraphCosts(OperatorGraph("network", calls), (cost,) * len(tasks))
    outcome = replay_costs(costs, ReplayOptions())
    assert outcome.low_s is not None
    assert outcome.high_s is not None
    assert math.log(outcome.high_s / outcome.expected.total_s) == pytest.approx(width)
    assert math.log(outcome.low_s / outcome.expected.total_s) == pytest.approx(-width)


def test_no_end_of_a_total_is_beyond_those_of_its_kernels() -> None:
    cost = OperatorCost(1e-3, 0.9e-3, 1e-3 * math.exp(0.5), "model", own_width=0.6)
    outcome = replay_costs(GraphCosts(OperatorGraph("one", (Operator("a"),)), (cost,)),
                           ReplayOptions())  # fmt: skip
    assert outcome.low_s == pytest.approx(cost.low_s)
    assert outcome.high_s == pytest.approx(cost.high_s)
