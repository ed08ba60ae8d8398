"""Parsing ComputeDAGs: stages in the original's order, bodies, and errors for bad text."""

from __future__ import annotations

import gzip
import json

import pytest

from cdmpp.errors import DataError
from cdmpp.programs.ansor.dag import Dag, evaluate_int, loads_of, parse_dag
from cdmpp.programs.loops.expr import Expr, int_const, int_var, variables_of
from tests.paths import ROOT, SHARED_DATA
from tests.programs.ansor.fixture_records import NAMES, FixtureRecord, fixture_records, record_of

GOLDEN = SHARED_DATA / "golden"
SHIPPED = ROOT / "data" / "tenset-cpu" / "network_info"


@pytest.mark.parametrize("name", NAMES)
def test_dag_is_consistent(name: str) -> None:
    dag = record_of(name).dag
    made: set[object] = set()
    axis_names: list[str] = []
    for op in dag.ops:
        assert set(op.inputs) <= made, "producers come first and buffers are shared"
        made.update(op.outputs)
        axis_names += [axis.name for axis in (*op.axes, *op.reduce_axes)]
        own = {axis.name for axis in (*op.axes, *op.reduce_axes)}
        for body in op.body:
            assert variables_of(body) <= own
            assert set(loads_of(body)) == set(op.inputs)
        assert op.shape == tuple(axis.extent for axis in op.axes) or op.kind == "placeholder"
    assert len(axis_names) == len(set(axis_names))
    assert set(dag.parameters) <= made
    assert [dag.producers()[b] for b in dag.parameters[-len(dag.outputs) :]] == list(dag.outputs)


def test_workload_key_holds_the_shapes_of_the_parameters() -> None:
    for record in fixture_records():
        shapes = [extent for buffer in record.dag.parameters for extent in buffer.shape]
        assert json.loads(record.workload_key)[1:] == shapes


def test_reductions_are_recognised() -> None:
    kinds = {op.reduce.kind for r in fixture_records() for op in r.dag.ops if op.reduce}
    assert kinds == {"sum", "max"}


def test_adaptive_pooling_has_a_constant_window() -> None:
    pools = [
        op for r in fixture_records() for op in r.dag.ops if op.tag == "adaptive_pool_sum"
    ]  # fmt: skip
    assert pools
    source = pools[0].inputs[0].shape
    assert [axis.extent for axis in pools[0].reduce_axes][:2] == list(source[1:3])


def test_evaluate_int_is_python_arithmetic() -> None:
    i = int_var("i")
    expr = Expr("sub", "int32", (Expr("floormod", "int32", (i, int_const(5))), int_const(7)))
    assert [evaluate_int(expr, {"i": value}) for value in (-3, 0, 13)] == [-5, -7, -4]
    with pytest.raises(DataError, match="known variables"):
        evaluate_int(expr, {"j": 1})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ('{"nodes": [', "not JSON"),
        ("[1, 2]", "got TypeError"),
        ('{"nodes": 3, "root": 0}', "got TypeError"),
        ('{"nodes": []}', "got KeyError: 'root'"),
        ('{"nodes": [{"type_key": ""}], "root": 7}', "node 7 is not an array"),
        ('{"nodes": [{}, {"type_key": "Array", "data": [0]}], "root": 1}', "got KeyError"),
        ("[" * 100000, "not JSON"),
    ],
)
def test_bad_graph_is_one_clear_error(text: str, reason: str) -> None:
    with pytest.raises(DataError, match="Cannot read the computation graph") as error:
        parse_dag(text)
    assert reason in str(error.value)
    assert "network_info" in str(error.value)


def _changed(record: FixtureRecord, old: str, new: str) -> str:
    assert old in record.dag_json
    return record.dag_json.replace(old, new)


def test_unknown_operation_is_refused() -> None:
    with pytest.raises(DataError, match="ScanOp"):
        parse_dag(_changed(fixture_records()[0], '"ComputeOp"', '"ScanOp"'))


def test_unknown_expression_is_refused() -> None:
    record = next(r for r in fixture_records() if '"tir.Mul"' in r.dag_json)
    with pytest.raises(DataError, match=r"tir\.Ramp"):
        parse_dag(_changed(record, '"tir.Mul"', '"tir.Ramp"'))


def test_extent_that_divides_by_zero_is_refused() -> None:
    record = next(r for r in fixture_records() if '"adaptive_pool_sum"' in r.dag_json)
    with pytest.raises(DataError, match="Cannot read the computation graph of a task: ZeroDiv"):
        parse_dag(_changed(record, '"tir.Sub"', '"tir.FloorDiv"'))


def test_graph_with_a_cycle_is_refused() -> None:
    graph = json.loads(fixture_records()[0].dag_json)
    nodes = graph["nodes"]
    compute = next(i for i, node in enumerate(nodes) if node["type_key"] == "ComputeOp")
    load = next(node for node in nodes if node["type_key"] == "tir.ProducerLoad")
    nodes[int(load["attrs"]["producer"])]["attrs"]["op"] = str(compute)
    with pytest.raises(DataError, match="Cannot read"):
        parse_dag(json.dumps(graph))


def _golden_stage_names(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return [line.split(" = PLACEHOLDER")[0].split("(")[0] for line in lines]


@pytest.mark.skipif(not GOLDEN.exists(), reason="needs the golden files in ../shared/data")
@pytest.mark.parametrize("kind", ["llvm"])
def test_every_golden_task_has_the_originals_stages(kind: str) -> None:
    from cdmpp.datasets.tenset.folder import load_tasks

    tasks = load_tasks(SHIPPED)
    checked = 0
    with gzip.open(GOLDEN / f"golden_{kind}.jsonl.gz", "rt") as file:
        for line in file:
            data = json.loads(line)
            if "compute_dag" not in data:
                continue
            dag: Dag = parse_dag(tasks.find(data["workload_key"], kind).dag_json)
            assert [op.name for op in dag.ops] == _golden_stage_names(data["compute_dag"])
            checked += 1
    assert checked == 118
