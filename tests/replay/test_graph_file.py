"""Graph files, costs, copies, collectives and what-ifs."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdmpp.analytic.roofline.floor import LEAST_SHARE
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.replay.calibration import fitted_gap_s, gap_of, write_gap
from cdmpp.replay.costs import (
    NOMINAL_CALL_S,
    GivenTimes,
    LinkTimes,
    OperatorCost,
    bound,
    gather_costs,
)
from cdmpp.replay.engine import ReplayOptions, replay
from cdmpp.replay.file_kind import file_kind
from cdmpp.replay.graph import Operator, OperatorGraph
from cdmpp.replay.graph_file import FORMAT, graph_of, read_graph, write_graph
from cdmpp.replay.kernels import torch_kernel
from cdmpp.replay.summary import outcome_values, replay_costs
from cdmpp.replay.transfers import LinkOptions, Links, transfer_s
from cdmpp.replay.what_if import parse_scale, scaled_times
from tests.replay.graphs import chain

MINIMAL: dict[str, Any] = {
    "format": FORMAT, "version": 1, "operators": [{"id": "a", "time_s": 0.5}],
}  # fmt: skip


def with_operator(**values: Any) -> dict[str, Any]:
    return {**MINIMAL, "operators": [{"id": "a", **values}]}


def test_a_packed_graph_is_read(tmp_path: Path) -> None:
    path = tmp_path / "g.json.gz"
    path.write_bytes(gzip.compress(json.dumps(with_operator(time_s=1.0)).encode()))
    assert file_kind(path) == "graph"
    assert read_graph(path).graph.operators[0].time_s == 1.0


@pytest.mark.parametrize(
    ("kind", "shapes"), [("linear", ["?x64"]), ("relu", [""]), ("softmax", ["4x0"])]
)
def test_shapes_without_a_kernel(kind: str, shapes: list[str]) -> None:
    assert torch_kernel(kind, shapes) is None


def test_a_graph_survives_its_file(tmp_path: Path) -> None:
    graph = OperatorGraph(
        "net",
        (
            Operator("1", "first", "conv2d+relu", time_s=0.25, low_s=0.125, high_s=0.5, priority=-1,
                     flop=1e9, bytes=5.0, task="key", shapes=("1x3", "scalar"), device="gpu0"),
            Operator("2", kind="all-reduce", after=("1",), device="gpu0", queue="communication",
                     collective="all-reduce", devices=("gpu0", "gpu1"), bytes=64.0),
            Operator("3", after=("2",), device="gpu1", queue="aux", is_blocking=True),
        ),
        devices={"gpu0": "v100"},
    )  # fmt: skip
    links = Links(copy=LinkOptions(1e9, 1e-5), collective=LinkOptions(4e10))
    write_graph(tmp_path / "g.json", graph, links)
    found = read_graph(tmp_path / "g.json")
    assert replace(found.graph, source="") == graph
    assert found.links == links


def test_yaml_and_repeated_calls(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    operators = [
        {"id": "a", "time_s": 1.0}, {"id": "b", "after": ["a"], "time_s": 2.0, "calls": 3},
        {"id": "c", "after": ["b"], "time_s": 1.0},
    ]  # fmt: skip
    path.write_text(yaml.safe_dump({**MINIMAL, "operators": operators}))
    graph = read_graph(path).graph
    assert [one.id for one in graph.operators] == ["a", "b#1", "b#2", "b#3", "c"]
    assert graph.operators[-1].after == ("b#1", "b#2", "b#3")
    assert replay(graph).total_s == 8.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "format 'list'"),
        ({"format": "other"}, "format 'other'"),
        ({**MINIMAL, "version": 7}, "version 7, expected 1"),
        ({**MINIMAL, "operators": []}, "no operators"),
        ({**MINIMAL, "opertors": []}, "unknown name 'opertors', did you mean 'operators'"),
        ({**MINIMAL, "devices": ["v100"]}, "label -> name"),
        ({**MINIMAL, "links": {"copy": {"speed": 1}}}, "links"),
        ({**MINIMAL, "links": {"copy": {"bytes_per_s": 0.0}}}, "links: link: bytes_per_s is 0"),
        ({**MINIMAL, "operators": ["a"]}, "mapping with an id"),
        (with_operator(tme_s=1.0), "unknown name 'tme_s', did you mean 'time_s'"),
        (with_operator(time_s=-1.0), "time_s is -1.0"),
        (with_operator(time_s="fast"), "time_s is 'fast'"),
        (with_operator(time_s=float("inf")), "time_s is inf"),
        (with_operator(after="b"), "after is 'b', expected a list"),
        (with_operator(calls=0), "calls is 0"),
        (with_operator(calls=10**9), "more than 1,000,000 calls"),
        ({**MINIMAL, "has_edges": "false"}, "has_edges is 'false', expected true or false"),
        (with_operator(priority=1.5), "priority is 1.5"),
        (with_operator(is_blocking="yes"), "is_blocking is 'yes'"),
        (with_operator(collective="broadcast", devices=["x", "y"]), "expected one of all-reduce"),
        (with_operator(collective="all-reduce", devices=["x"]), "at least two"),
        (with_operator(time_s=1.0, low_s=2.0), "expected increasing values"),
    ],
)
def test_bad_files(value: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        graph_of(value, "g.json")
    assert str(caught.value).startswith("g.json")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_graph(tmp_path / "none.json")
    (tmp_path / "g.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        read_graph(tmp_path / "g.json")
    (tmp_path / "g.yaml").write_text("a: [")
    with pytest.raises(DataError, match="not YAML"):
        read_graph(tmp_path / "g.yaml")


def test_an_edge_between_devices_becomes_a_copy() -> None:
    value = {
        **MINIMAL, "copies": True, "links": {"copy": {"bytes_per_s": 1000.0, "latency_s": 0.5}},
        "operators": [
            {"id": "a", "device": "x", "time_s": 1.0, "output_bytes": 2000},
            {"id": "b", "device": "y", "after": ["a"], "time_s": 1.0},
            {"id": "c", "device": "y", "after": ["a"], "time_s": 1.0},
            {"id": "d", "device": "x", "after": ["a"], "time_s": 1.0},
        ],
    }  # fmt: skip
    found = graph_of(value, "g")
    (copy,) = [one for one in found.graph.operators if one.kind == "copy"]
    assert (copy.device, copy.queue, copy.bytes) == ("y", "copy", 2000.0)
    costs = gather_costs(found.graph, [GivenTimes(), LinkTimes(found.links)], {})
    run = replay(found.graph, costs.times_s)
    assert run.total_s == 1.0 + (0.5 + 2.0) + 2.0


def test_collectives_by_message_size() -> None:
    links = Links(collective=LinkOptions(100.0, 1.0))
    one = Operator("a", collective="all-reduce", devices=("w", "x", "y", "z"), bytes=200.0)
    assert transfer_s(one, links) == 1.0 + 200.0 * (2 * 3 / 4) / 100.0
    assert transfer_s(replace(one, collective="all-to-all"), links) == 1.0 + 200 * 0.75 / 100
    assert transfer_s(replace(one, bytes=None), links) is None
    assert transfer_s(one, Links()) is None
    curve = LinkOptions(816.95e9, 4.833e-6, 16, 30, 1.94723, 19.817, 0.55556, 0.95524)
    assert curve.time_s(2.0**20) == pytest.approx(11.022878189035e-6)
    with pytest.raises(UsageError, match="all of them or none"):
        LinkOptions(1.0, 1.0, 16).time_s(5.0)


def test_a_bound_is_never_nothing_and_widens_the_interval() -> None:
    device = get_device("v100")
    assert device.peak_fp32_flop_per_s is not None
    work = bound(Operator("a", flop=1e12, bytes=1.0), device, "no model")
    assert work.latency_s == 1e12 / device.peak_fp32_flop_per_s
    assert work.high_s == work.latency_s / LEAST_SHARE
    blind = bound(Operator("a"), device, "no model")
    assert blind.latency_s == device.launch_s > NOMINAL_CALL_S
    assert blind.low_s > 0
    assert "its operations and bytes are unknown" in blind.reason
    reshape = bound(Operator("a", bytes=7784.0), device, "no model")  # took 8.65 ns
    assert reshape.low_s == reshape.latency_s == device.launch_s
    assert "smallest kernel of v100" in reshape.reason
    graph = OperatorGraph("n", (Operator("a", time_s=1.0), Operator("b", bytes=9e11)))
    costs = gather_costs(graph, [GivenTimes()], {"device": device})
    assert [one.id for one, _ in costs.uncovered] == ["b"]
    outcome = replay_costs(costs, ReplayOptions())
    assert outcome.low_s == outcome.expected.total_s > 1.0
    assert outcome.high_s == pytest.approx(1.0 + (outcome.expected.total_s - 1.0) / LEAST_SHARE)
    values = outcome_values(outcome)
    assert values["uncovered"][0]["id"] == "b"
    assert values["uncovered"][0]["bound_s"] > 0


def test_a_sort_goes_over_its_tensors_again() -> None:
    device = get_device("v100")
    once = bound(Operator("a", kind="relax.nn.pad", bytes=9e9), device, "no model")
    shapes = ("64x65536", "64x10")
    sort = bound(Operator("a", kind="relax.topk", bytes=9e9, shapes=shapes), device, "no model")
    scan = bound(Operator("a", kind="relax.cumsum", bytes=9e9, shapes=shapes), device, "no model")
    assert sort.latency_s == pytest.approx(16 * once.latency_s)
    assert scan.latency_s == pytest.approx(2 * once.latency_s)
    assert sort.low_s == scan.low_s == once.low_s
    assert "of 16 passes over its tensors" in sort.reason
    strange = Operator("a", kind="relax.topk", bytes=9e9, shapes=("64x²",))
    assert bound(strange, device, "no model").latency_s == once.latency_s


def test_without_a_device_there_is_no_bound() -> None:
    with pytest.raises(DeviceError, match="--device LABEL"):
        gather_costs(OperatorGraph("n", (Operator("a", bytes=1.0),)), [], {})


def test_given_times_win_by_id_name_task_or_kind() -> None:
    graph = OperatorGraph(
        "n", (Operator("a", kind="conv", time_s=1.0), Operator("b", kind="conv"), Operator("c"))
    )
    found = GivenTimes({"a": 5.0, "conv": 7.0}).costs(graph)
    assert {name: cost.latency_s for name, cost in found.items()} == {"a": 5.0, "b": 7.0}
    with pytest.raises(UsageError, match="'pool', which is not an id"):
        GivenTimes({"pool": 1.0}).costs(graph)


def test_a_source_may_not_lie_about_order() -> None:
    class Broken(GivenTimes):
        def costs(self, graph: OperatorGraph) -> dict[str, OperatorCost]:
            return {"0": OperatorCost(1.0, 2.0, 3.0, "model")}

    with pytest.raises(DataError, match="expected seconds from 0 up in order"):
        gather_costs(chain([1.0]), [Broken()], {})


def test_every_draw_is_replayed() -> None:
    class Drawn(GivenTimes):
        def costs(self, graph: OperatorGraph) -> dict[str, OperatorCost]:
            return {one.id: OperatorCost(2.0, 1.0, 3.0, "model", "", (1.0, 2.0, 3.0))
                    for one in graph.operators}  # fmt: skip

    outcome = replay_costs(gather_costs(chain([1.0, 1.0]), [Drawn()], {}), ReplayOptions())
    assert outcome.draws_s == (2.0, 4.0, 6.0)
    draws = outcome_values(outcome)["draws"]
    assert (draws["n"], draws["median_s"], draws["max_s"]) == (3, 4.0, 6.0)


def test_what_if_scales_parts_of_fused_operators() -> None:
    graph = OperatorGraph(
        "n", (Operator("a", kind="conv2d+relu"), Operator("b", kind="relu"), Operator("c"))
    )
    assert scaled_times(graph, [1.0, 1.0, 1.0], {"conv2d": 0.5}) == [0.5, 1.0, 1.0]
    assert scaled_times(graph, [1.0, 1.0, 1.0], {"relu": 0.5, "a": 0.5}) == [0.25, 0.5, 1.0]
    with pytest.raises(UsageError, match="unknown operator 'pool'"):
        scaled_times(graph, [1.0, 1.0, 1.0], {"pool": 0.5})
    assert parse_scale("conv2d=0.5") == ("conv2d", 0.5)
    for text in ("conv2d", "=1", "a=-1", "a=x", "a=nan"):
        with pytest.raises(UsageError, match="expected NAME=FACTOR"):
            parse_scale(text)


def test_a_gap_is_calibrated_once_and_read_again(tmp_path: Path) -> None:
    run = replay(chain([1.0, 1.0, 1.0]))
    gap_s = fitted_gap_s(run, 3.5)
    assert gap_s == 0.25
    assert replay(chain([1.0] * 3), options=ReplayOptions(gap_s=gap_s)).total_s == 3.5
    assert fitted_gap_s(run, 2.5) == 0.0
    assert fitted_gap_s(replay(chain([1.0])), 9.0) == 0.0
    write_gap(tmp_path / "gap.json", gap_s, {"network": "n"})
    assert gap_of(str(tmp_path / "gap.json")) == 0.25
    assert gap_of("3") == pytest.approx(3e-6)
    for text, error in (("-1", UsageError), (str(tmp_path / "no.json"), UsageError)):
        with pytest.raises(error, match="--calibrate-gap"):
            gap_of(text)
    (tmp_path / "bad.json").write_text('{"format": "x", "gap_s": 1}')
    with pytest.raises(DataError, match="not a gap of a replay"):
        gap_of(str(tmp_path / "bad.json"))
