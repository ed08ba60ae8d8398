"""Tasks, their operator names and flop counts."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from cdmpp.datasets.tenset import task_index
from cdmpp.datasets.tenset.flops import flop_count
from cdmpp.datasets.tenset.folder import TaskIndex, load_tasks
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.datasets.tenset.source import _describe
from cdmpp.errors import DataError
from cdmpp.files.restricted_pickle import ComputeDagStub, SearchTaskStub, TargetStub
from cdmpp.programs.ansor.json_graph import JsonGraph
from tests.paths import ROOT, SHARED_DATA

GOLDEN = SHARED_DATA / "golden"


@pytest.fixture(scope="module")
def tasks() -> TaskIndex:
    return load_tasks(ROOT / "data" / "tenset-cpu" / "network_info")


def test_the_shipped_tasks(tasks: TaskIndex) -> None:
    assert len(tasks.tasks) == 427
    assert len(tasks.network_tasks()) == 19
    assert {task.target_kind for task in tasks.tasks.values()} == {"llvm"}
    task = next(iter(tasks.tasks.values()))
    assert task.target == "llvm -keys=cpu -link-params=0"
    assert task.hardware_params == (8, 64, 64, 0, 0, 0, 0, 0)
    assert task.layout_rewrite_option == 2


def test_a_task_is_found_whatever_the_white_space_of_its_key(tasks: TaskIndex) -> None:
    key, kind = next(iter(tasks.tasks))
    tight = json.dumps(json.loads(key), separators=(",", ":"))
    assert tight != key
    assert tasks.find(tight, kind) is tasks.tasks[key, kind]
    assert tasks.networks_of(tight, kind)
    assert tasks.find(key, "cuda") is None
    assert tasks.find('["nothing"]', kind) is None


def test_a_gpu_kind_borrows_the_computation_of_another(tasks: TaskIndex) -> None:
    (key, kind), task = next(iter(tasks.tasks.items()))
    index = TaskIndex(tasks={(key, "cuda"): task})
    borrowed = index.find(key, "rocm")
    assert borrowed is not None
    assert borrowed.target_kind == "rocm"
    assert borrowed.dag_json == task.dag_json
    assert index.find(key, kind) is None


def test_plain_and_gzipped_task_files_are_read_alike(shipped: Path, tmp_path: Path) -> None:
    name = "((dcgan,[(1,3,64,64)]),llvm).task.pkl.gz"
    zipped = tmp_path / "zipped"
    plain = tmp_path / "plain"
    zipped.mkdir()
    plain.mkdir()
    data = (shipped / "network_info" / name).read_bytes()
    (zipped / name).write_bytes(data)
    (plain / name.removesuffix(".gz")).write_bytes(gzip.decompress(data))
    assert load_tasks(zipped) == load_tasks(plain)
    assert list(load_tasks(plain).network_tasks()) == ["dcgan,[(1,3,64,64)]"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("all_tasks.pkl", {"a": 1}, "expected a list of search tasks"),
        ("all_tasks.pkl", [1, 2], "expected a list of search tasks"),
        ("((net,[(1,)]),llvm).task.pkl", [1], "expected a pair"),
        ("((net,[(1,)]),llvm).task.pkl", ([], [1]), "expected 0 integer weights"),
    ],
)
def test_a_pickle_of_something_else(tmp_path: Path, name: str, value: object, message: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(value))
    with pytest.raises(DataError, match=message):
        load_tasks(tmp_path)


@pytest.mark.parametrize("value", [{"data": [9]}, {"data": [3]}])
def test_a_damaged_target_is_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: dict[str, Any]
) -> None:
    nodes = [
        {"type_key": ""}, {"type_key": "Target", "attrs": {"kind": "2", "keys": "5"}},
        {"type_key": "TargetKind", "attrs": {"name": "4"}},
        {"type_key": "String", "repr_b64": "bGx2b"}, {"type_key": "String", "repr_str": "llvm"},
        {"type_key": "Array", **value},
    ]  # fmt: skip
    target, dag, task = TargetStub(), ComputeDagStub(), SearchTaskStub()
    target.state = {"handle": json.dumps({"root": 1, "nodes": nodes})}
    dag.state = {"tensors": "{}"}
    task.state = {"compute_dag": dag, "workload_key": "[]", "target": target}
    monkeypatch.setattr(task_index, "load_restricted", lambda path: [task])
    (tmp_path / "all_tasks.pkl").write_bytes(b"")
    with pytest.raises(DataError, match=r"all_tasks.pkl: damaged search task"):
        load_tasks(tmp_path)


def test_a_task_whose_flop_count_is_no_node_is_unknown(tasks: TaskIndex) -> None:
    key = '["9847f8cc0b305137f49f2c5c0c8ab25d", 1, 512, 400, 512, 400, 1, 400]'
    graph = json.loads(tasks.tasks[key, "llvm"].dag_json)
    graph["nodes"].append({"type_key": "Map", "keys": ["FLOP"], "data": [10**6]})
    for node in graph["nodes"]:
        if node["type_key"] == "ComputeOp":
            node["attrs"]["attrs"] = str(len(graph["nodes"]) - 1)
    assert _describe(json.dumps(graph)) == ("unknown", None)


def test_an_empty_network_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "((resnext_50,[(1,3,224,224)]),cuda).task.pkl").write_bytes(pickle.dumps(([], [])))
    assert load_tasks(tmp_path) == TaskIndex()


def test_a_folder_without_task_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no task files"):
        load_tasks(tmp_path)
    with pytest.raises(DataError, match="--network-info"):
        load_tasks(tmp_path / "none")


def test_operator_names_of_the_shipped_tasks(tasks: TaskIndex) -> None:
    names = [operator_name(JsonGraph(task.dag_json)) for task in tasks.tasks.values()]
    expected = {
        "conv2d+add+relu": 149,
        "winograd_conv2d+add+relu": 14,
        "depthwise_conv2d+add+clip": 20,
        "group_conv2d+add+relu": 7,
        "conv2d_transpose+tanh": 2,
        "conv3d+multiply+add+relu": 16,
        "adaptive_avg_pool": 16,
        "max_pool": 11,
        "avg_pool": 9,
        "softmax": 4,
        "batch_matmul": 7,
        "dense+add": 9,
        "reduce_sum+divide": 4,
    }
    assert {name: names.count(name) for name in expected} == expected


def test_flop_count_of_a_dense_layer_by_hand(tasks: TaskIndex) -> None:
    key = '["9847f8cc0b305137f49f2c5c0c8ab25d", 1, 512, 400, 512, 400, 1, 400]'
    graph = JsonGraph(tasks.tasks[key, "llvm"].dag_json)
    assert operator_name(graph) == "dense+add"
    assert flop_count(graph) == 2 * 512 * 400 + 400


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nodes": 3, "root": 0}', "[" * 100_000])
def test_a_malformed_graph_is_a_data_error(text: str) -> None:
    with pytest.raises(DataError):
        JsonGraph(text)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_flop_counts_equal_the_original_compilers(tasks: TaskIndex) -> None:
    path = GOLDEN / "golden_llvm.jsonl.gz"
    if not path.is_file():
        pytest.skip("the golden files of the original compiler are not here")
    compared = 0
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        next(stream)
        for line in stream:
            head, separator, _ = line.partition(',"compute_dag"')
            value = json.loads(head + "}" if separator else line)
            task = tasks.find(value["workload_key"], value["target"].split()[0])
            assert task is not None
            count = flop_count(JsonGraph(task.dag_json))
            if value["flop_ct"] < 0:
                assert count is None
            else:
                assert count == pytest.approx(value["flop_ct"], rel=1e-9)
            compared += 1
    assert compared > 100
