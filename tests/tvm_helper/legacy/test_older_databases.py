"""MetaSchedule databases of older TVMs: reading lowered programs (always), replaying some (where
the side environment is).
"""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    TuningRecord,
    Workload,
    read_module_json,
    read_tuning_records,
    read_workloads,
)
from cdmpp.datasets.metaschedule.older import upgraded_module, upgraded_trace
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.programs.added_columns import ACROSS_THREADS_COLUMN
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.loops.expr import Buffer, Expr, int_const, int_var
from cdmpp.programs.loops.loop_tree import Allocation, Loop, LoopTree, Node, Store, children
from tests.paths import ROOT
from tests.programs.reference.tree import compact_ast
from tvm_helper.legacy.block_tir import loop_tree_of_blocks
from tvm_helper.legacy.client import LegacyTvm, shared_process
from tvm_helper.legacy.dividends import restore_dividends
from tvm_helper.legacy.environment import FOLDER_VARIABLE, LegacyEnvironment, find_environment
from tvm_helper.legacy.metaschedule import features_of
from tvm_helper.tasks.block_names import operator_of_blocks

#: Programs as the side environment lowered them: program id, node graph.
FIXTURE = Path(__file__).parent / "data" / "scheduled_programs.jsonl.gz"
DATABASE = ROOT / "data" / "metaschedule-a100"


def fixture_programs() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(FIXTURE.read_bytes()).splitlines()]


def nodes_of(nodes: list[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from nodes_of(children(node))


def arrays(ast: CompactAst) -> list[Any]:
    return [ast.leaf_features, ast.leaf_extra, ast.leaf_position, ast.tree]


def same(one: CompactAst, other: CompactAst) -> bool:
    pairs = zip(arrays(one), arrays(other), strict=True)
    return all(a.shape == b.shape and np.array_equal(a, b) for a, b in pairs)


# Reading a lowered program.


@pytest.mark.exhaustive
def test_the_shipped_features_are_those_of_the_programs() -> None:
    columns = ["program_id", "leaf_features", "leaf_extra", "leaf_position", "tree"]
    expected = {program["program_id"]: program["tir"] for program in fixture_programs()}
    found = 0
    for table in read_table(DATABASE, "programs", columns):
        for row in table.to_pylist():
            graph = expected.get(row["program_id"])
            if graph is None:
                continue
            found += 1
            ast = compact_ast(loop_tree_of_blocks(json.dumps(graph)))
            for array, column in zip(arrays(ast), columns[1:], strict=True):
                assert np.array_equal(array.ravel(), np.asarray(row[column], array.dtype)), column
    assert found == len(expected)


def test_what_threads_reduce_together_is_read() -> None:
    softmax = fixture_programs()[1]["tir"]
    tree = loop_tree_of_blocks(json.dumps(softmax))
    assert tree.is_gpu
    stores = [node for node in nodes_of(tree.body) if isinstance(node, Store)]
    combined = [node for node in stores if node.is_across_threads]
    assert [node.buffer.name for node in combined] == [
        "cross_thread_T_softmax_maxelem_shared", "cross_thread_T_softmax_expsum_shared",
    ]  # fmt: skip
    assert [node.value.op for node in combined] == ["max", "add"]
    ast = compact_ast(tree)
    assert ast.leaf_extra[:, ACROSS_THREADS_COLUMN].sum() == 2
    assert len(ast.leaf_extra) == len(stores)


def test_a_store_to_what_nothing_allocates_is_an_error() -> None:
    graph = fixture_programs()[2]["tir"]
    for node in graph["nodes"]:
        if node["type_key"] == "tir.DeclBuffer":
            node["type_key"] = "tir.Allocate"
    with pytest.raises(DataError, match="that nothing allocates"):
        loop_tree_of_blocks(json.dumps(graph))


def binary(op: str, left: Expr, right: Expr | int) -> Expr:
    return Expr(op, "int32", (left, int_const(right) if isinstance(right, int) else right))


def remainder_program(factor: int) -> LoopTree:
    """A kernel that reads element `(256 a + b) // 49, (factor a + b) % 49` of a local buffer."""
    a, b = int_var("a"), int_var("b")
    whole = binary("add", binary("mul", a, 256), b)
    other = binary("add", binary("mul", a, factor), b)
    local = Buffer("local", "float32", (256, 49), "local")
    out = Buffer("out", "float32", (256, 49))
    place = (binary("floordiv", whole, 49), binary("floormod", other, 49))
    value = Expr("load", "float32", place, local)
    store: list[Node] = [Store(out, (place[0], binary("floormod", whole, 49)), value)]
    threads = Loop("b", 0, 256, "threadIdx.x", store)
    return LoopTree((out,), [Loop("a", 0, 49, "blockIdx.x", [threads])], True)


def test_reduced_factors_of_a_remainder_are_restored() -> None:
    tree = remainder_program(11)  # 256 % 49
    restore_dividends(tree)
    assert compact_ast(tree).leaf_features.tolist() == (
        compact_ast(remainder_program(256)).leaf_features.tolist()
    )
    (store,) = [node for node in nodes_of(tree.body) if isinstance(node, Store)]
    assert store.value.args[1] == store.indices[1]
    other = remainder_program(12)  # another element: left alone
    restore_dividends(other)
    (store,) = [node for node in nodes_of(other.body) if isinstance(node, Store)]
    assert store.value.args[1] != store.indices[1]


def test_local_buffers_of_a_winograd_convolution_hold_one_tile() -> None:
    winograd = loop_tree_of_blocks(json.dumps(fixture_programs()[0]["tir"]))
    extents = {
        node.buffer.name: node.extents
        for node in nodes_of(winograd.body)
        if isinstance(node, Allocation) and node.buffer.scope == "local"
    }
    assert extents["input_tile_local"] == (1, 1, 4, 4)
    assert extents["data_pack_local"] == (4, 4, 1, 1)


def test_operators_are_named_in_the_words_of_the_datasets() -> None:
    winograd = ["data_pad", "input_tile", "B", "data_pack", "bgemm", "A", "inverse",
                "conv2d_winograd", "T_add", "T_add_1", "T_relu"]  # fmt: skip
    blocks = [(name, 4 if name == "bgemm" else 0) for name in winograd]
    assert operator_of_blocks(blocks) == "winograd_conv2d+add+relu"
    assert operator_of_blocks([("T_matmul_NT", 2), ("T_add", 2)]) == "dense+add"
    assert operator_of_blocks([("T_batch_matmul_NT", 3)]) == "batch_matmul"
    assert operator_of_blocks([("T_matmul", 3)]) == "batch_matmul"
    assert operator_of_blocks([("pad_temp", 0)]) == "copy"


def test_no_side_environment_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "none"))
    command = ["dataset", "extract", "--dataset", str(DATABASE), "--device", "a100",
               "--no-install"]  # fmt: skip
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "python -m tvm_helper.legacy.setup" in capsys.readouterr().err


# With the old TVM.


@pytest.fixture(scope="module")
def environment() -> LegacyEnvironment:
    try:
        return find_environment()
    except UsageError:
        pytest.skip("no side environment with the old TVM; build it: make legacy-env")


@pytest.fixture(scope="module")
def old_tvm(environment: LegacyEnvironment) -> Iterator[LegacyTvm]:
    with LegacyTvm(environment) as tvm:
        yield tvm


def sample(per_workload: int) -> tuple[list[Workload], dict[int, list[TuningRecord]]]:
    """Returns the workloads and the first records of each, spread over the file."""
    workloads = read_workloads(DATABASE)
    found: dict[int, list[TuningRecord]] = {}
    records = read_tuning_records(DATABASE, workloads, ReadReport(), device="a100")
    for one in records:
        if one.record.line % 7 == 0 and len(found.setdefault(one.workload, [])) < per_workload:
            found[one.workload].append(one)
    return workloads, found


def small_database(folder: Path, count: int) -> Path:
    """Copies the workloads and a few records, not compressed."""
    folder.mkdir()
    for name in (WORKLOAD_FILE, RECORD_FILE):
        lines = lzma.decompress((DATABASE / f"{name}.xz").read_bytes()).decode().splitlines()
        chosen = lines if name == WORKLOAD_FILE else lines[-count:]
        (folder / name).write_text("".join(f"{line}\n" for line in chosen))
    return folder


_PRINT_SCRIPTS = """
import json, sys, tvm
print(json.dumps([tvm.ir.load_json(text).script() for text in json.load(sys.stdin)]))
"""
#: What TVMScript of TVM 0.17 is called today.
_RENAMED = {
    "T.block(": "T.sblock(", "T.block_attr(": "T.sblock_attr(",
    "T.alloc_buffer(": "T.sblock_alloc_buffer(", "@T.prim_func": "@T.prim_func(s_tir=True)",
    "# from tvm.script import tir as T": "# from tvm.script import tirx as T",
}  # fmt: skip


@pytest.mark.ansor
@pytest.mark.tvm
@pytest.mark.slow
def test_both_tvms_give_the_same_features(
    environment: LegacyEnvironment, old_tvm: LegacyTvm
) -> None:
    """The same traces on the same modules, which today's TVM reads as TVMScript."""
    from tvm_helper.compat import tvm
    from tvm_helper.tasks.metaschedule import featurise_trace

    workloads, records = sample(3)
    modules = {number: read_module_json(DATABASE, workloads[number]) for number in records}
    done = subprocess.run(
        [str(environment.python), "-c", _PRINT_SCRIPTS], check=True, text=True,
        input=json.dumps([upgraded_module(text) for text in modules.values()]),
        capture_output=True, env=environment.variables(),
    )  # fmt: skip
    compared = 0
    for number, script in zip(modules, json.loads(done.stdout), strict=True):
        for old, new in _RENAMED.items():
            script = script.replace(old, new)
        module = tvm.script.from_source(script)
        chosen = [found.record for found in records[number]]
        features = features_of(old_tvm, modules[number], chosen)
        for record, result in zip(chosen, features.programs, strict=True):
            assert isinstance(result, CompactAst), result
            instructions, decisions = upgraded_trace(list(record.steps))
            present = [
                ["GetSBlock" if step[0] == "GetBlock" else step[0], *step[1:]]
                for step in instructions
            ]
            expected = featurise_trace(module, _with_steps(record, (present, decisions)))
            assert same(result, expected), (number, record.line)
            assert (result.valid, result.reject_reason) == (expected.valid, expected.reject_reason)
            compared += 1
    assert compared == 38  # one workload has but two such records


def _with_steps(record: Any, steps: tuple[Any, ...]) -> Any:
    return replace(record, steps=steps, steps_text=None)


@pytest.mark.ansor
def test_a_program_that_cannot_be_replayed_costs_one_program(old_tvm: LegacyTvm) -> None:
    workloads, records = sample(1)
    softmax, pool = records[19][0].record, records[4][0].record
    instructions, decisions = softmax.steps
    unknown = _with_steps(softmax, ([["NoSuchInstruction", [], [], []], *instructions], decisions))
    module = read_module_json(DATABASE, workloads[19])
    features = features_of(old_tvm, module, [softmax, unknown, pool, softmax])
    first, second, third, fourth = features.programs
    assert isinstance(first, CompactAst)
    assert isinstance(fourth, CompactAst)
    assert same(first, fourth)
    assert (features.operator, features.flop_count) == ("softmax", 4000.0)
    for result, word in ((second, "NoSuchInstruction"), (third, "")):
        assert isinstance(result, ReplayError)
        assert result.reason.startswith("trace cannot be applied: ")
        assert word in result.reason


@pytest.mark.ansor
def test_a_module_that_is_none_is_one_error(old_tvm: LegacyTvm) -> None:
    _, records = sample(1)
    graph = {"root": 1, "nodes": [{"type_key": ""}, {"type_key": "no.such.Node"}],
             "attrs": {"tvm_version": "0.20.0"}}  # fmt: skip
    with pytest.raises(DataError, match=r"cannot load this module of TVM 0\.20\.0 "):
        features_of(old_tvm, json.dumps(graph), [records[19][0].record])


@pytest.mark.ansor
def test_the_command_extracts_an_older_database(
    environment: LegacyEnvironment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = small_database(tmp_path / "database", 6)
    command = ["dataset", "extract", "--dataset", str(database), "--device", "a100", "--jobs", "1"]
    assert main([*command, "--out", str(tmp_path / "out"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["featurised"] == report["programs"] == 6
    # The records of another network: no trace fits.
    lines = (database / WORKLOAD_FILE).read_text().splitlines()
    (database / WORKLOAD_FILE).write_text("".join(f"{lines[17]}\n" for _ in lines))
    assert main([*command, "--out", str(tmp_path / "other")]) == 3
    assert "none of its 6 programs is usable" in capsys.readouterr().err
    shared_process().close()
