"""The old TVM: reading its programs (always), and asking it for some (where it is installed)."""

from __future__ import annotations

import gzip
import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.datasets.autotvm.logs import AutotvmTask
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.files.journal import folder_lock
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import compact_asts
from cdmpp.programs.loops.canonical import simplified
from cdmpp.programs.loops.expr import Buffer, Expr, int_const, int_var, load
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    LoopTree,
    Node,
    Store,
    children,
    stores_with_path,
)
from cdmpp.records import MeasureRecord
from tests.programs.reference.tree import compact_ast
from tests.tvm_helper.legacy.same_program import program_difference
from tvm_helper.legacy import setup
from tvm_helper.legacy.ansor import legacy_target
from tvm_helper.legacy.client import LegacyProcessError, LegacyTvm
from tvm_helper.legacy.environment import STAMP, LegacyEnvironment, find_environment
from tvm_helper.legacy.featurise import features_of
from tvm_helper.legacy.tir import loop_tree_from_json
from tvm_helper.legacy.validity import LIMITS, rejection, shared_bytes

#: Programs as the old TVM lowered them: template, arguments, target, entity, node graph.
FIXTURE = Path(__file__).parent / "data" / "legacy_programs.jsonl.gz"


def fixture_programs() -> dict[str, dict[str, Any]]:
    lines = gzip.decompress(FIXTURE.read_bytes()).decode().splitlines()
    values = [json.loads(line) for line in lines]
    return {value["template"]: value for value in values}


def fixture_tree(template: str) -> LoopTree:
    return loop_tree_from_json(json.dumps(fixture_programs()[template]["tir"]))


TEMPLATES = tuple(sorted(fixture_programs()))


def loops_of(path: tuple[Node, ...]) -> list[tuple[object, str]]:
    return [(node.extent, node.kind) for node in path if isinstance(node, Loop)]


def nodes_of(nodes: list[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from nodes_of(children(node))


# Reading a lowered program.


def test_a_matrix_product_on_a_gpu_has_its_stores_loops_and_allocations() -> None:
    tree = simplified(fixture_tree("batch_matmul.cuda"))
    assert tree.is_gpu
    stores = list(stores_with_path(tree))
    assert [store.buffer.name for store, _ in stores] == [
        "T_batch_matmul_NT.local", "placeholder.shared", "placeholder.d.shared",
        "placeholder.shared.local", "placeholder.d.shared.local", "T_batch_matmul_NT.local",
        "T_batch_matmul_NT",
    ]  # fmt: skip
    kernel = [(2, "blockIdx.z"), (4, "blockIdx.y"), (2, "blockIdx.x"), (2, "threadIdx.y"),
              (8, "threadIdx.x")]  # fmt: skip
    assert loops_of(stores[1][1]) == [*kernel, (4, "serial"), (4, "serial")]
    allocations = {
        node.buffer.name: (node.buffer.scope, node.extents)
        for node in nodes_of(tree.body)
        if isinstance(node, Allocation)
    }
    assert allocations["placeholder.shared"] == ("shared", (1, 8, 4))
    assert allocations["T_batch_matmul_NT.local"] == ("local", (1, 4, 2))
    assert allocations["T_batch_matmul_NT"] == ("global", (2, 32, 32))
    pragmas = {(n.key, n.value) for n in nodes_of(tree.body) if isinstance(n, Attribute)}
    assert pragmas == {("pragma_auto_unroll_max_step", 8), ("pragma_unroll_explicit", 0)}
    assert len(tree.parameters) == 3


def test_registers_of_a_reduction_across_threads_are_no_buffers() -> None:
    stores = list(stores_with_path(simplified(fixture_tree("dense_small_batch.gpu"))))
    names = [store.buffer.name for store, _ in stores]
    assert names == ["T_matmul_NT.rf", "T_matmul_NT.rf", "T_matmul_NT"]
    assert stores[2][0].value.op == "var"


def test_a_constant_matrix_leaves_no_chain_of_selections() -> None:
    tree = simplified(fixture_tree("conv2d_nchw_winograd.arm_cpu"))
    update = next(s for s, _ in stores_with_path(tree) if s.value.op == "add")
    assert update.buffer.name == "U"
    assert [argument.op for argument in update.value.args] == ["load", "load"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_simplification_changes_no_program(template: str) -> None:
    tree = fixture_tree(template)
    before = compact_ast(tree)
    after = compact_ast(simplified(tree))
    assert program_difference(tree, simplified(tree)) is None
    assert np.array_equal(before.tree, after.tree)
    assert after.valid
    assert np.isfinite(after.leaf_features).all()


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"root": 1, "nodes": []}', '{"root": 0, "nodes": [{"type_key": ""}]}',
        '{"root": 0, "nodes": [{"type_key": "tir.PrimFunc", "attrs": {}}]}',
    ],
)  # fmt: skip
def test_what_is_no_function_is_one_clear_error(text: str) -> None:
    with pytest.raises(DataError, match="Cannot turn a TIR node graph into a loop tree"):
        loop_tree_from_json(text)


def test_an_unknown_statement_is_named() -> None:
    graph = fixture_programs()["dense_nopack.x86"]["tir"]
    for node in graph["nodes"]:
        if node["type_key"] == "tir.For":
            node["type_key"] = "tir.While"
    with pytest.raises(DataError, match=r"tir\.While"):
        loop_tree_from_json(json.dumps(graph))


# Simplification, equivalence, validity.


def small_tree(index: Expr, *, extent: int = 8, condition: Expr | None = None) -> LoopTree:
    tree = simplified(fixture_tree("dense_nopack.x86"))
    buffer = tree.parameters[0]
    store = Store(buffer, (index, int_const(0)), Expr("const", "float32", (), 0.0))
    body: list[Node] = [store] if condition is None else [Condition(condition, [store])]
    return LoopTree((buffer,), [Loop("i", 0, extent, "serial", body)])


def binary(op: str, a: Expr, b: int) -> Expr:
    return Expr(op, "bool" if op in ("lt", "ge") else "int32", (a, int_const(b)))


def test_the_variable_of_a_unit_loop_becomes_its_value() -> None:
    tree = simplified(small_tree(binary("add", int_var("i"), 3), extent=1))
    ((store, _),) = stores_with_path(tree)
    assert store.indices[0] == int_const(3)


def test_decided_conditions_go_and_open_ones_stay() -> None:
    i = int_var("i")
    always = simplified(small_tree(i, condition=binary("lt", i, 8)))
    never = simplified(small_tree(i, condition=binary("lt", i, 0)))
    some = simplified(small_tree(i, condition=binary("lt", i, 5)))
    assert not any(isinstance(node, Condition) for node in nodes_of(always.body))
    assert never.body == []
    assert any(isinstance(node, Condition) for node in nodes_of(some.body))


def test_equivalence_looks_through_the_writing_of_an_index() -> None:
    i = int_var("i")
    split = Expr("add", "int32", (binary("mul", binary("floordiv", i, 4), 4),
                                  binary("floormod", i, 4)))  # fmt: skip
    assert program_difference(small_tree(i), small_tree(split)) is None
    assert program_difference(small_tree(i), small_tree(binary("add", i, 1))) is not None
    assert program_difference(small_tree(i), small_tree(i, extent=4)) == "loops of store 0"
    guarded = small_tree(i, condition=binary("lt", i, 5))
    assert program_difference(small_tree(i), guarded) is not None
    assert program_difference(small_tree(i, condition=binary("lt", i, 8)), small_tree(i)) is None
    with_two = replace(small_tree(i), body=small_tree(i).body * 2)
    assert program_difference(small_tree(i), with_two) == "1 and 2 stores"


def with_loops(tree: LoopTree, kind: str, extent: int, number: int) -> LoopTree:
    """Gives the `number`-th loop of a kind another extent."""
    loops = [n for n in nodes_of(tree.body) if isinstance(n, Loop) and n.kind == kind]
    loops[number].extent = extent
    return tree


def test_limits_that_autotvm_checks() -> None:
    template = "batch_matmul.cuda"
    assert rejection(simplified(fixture_tree(template)), "cuda") is None
    many = with_loops(simplified(fixture_tree(template)), "threadIdx.x", 1024, 0)
    (found,) = compact_asts([many], [LIMITS])
    assert isinstance(found, CompactAst)
    assert found.reject_reason == "threads per block (2048) are above the limit (1024)"
    large = simplified(fixture_tree(template))
    for node in nodes_of(large.body):
        if isinstance(node, Allocation) and node.buffer.scope == "shared":
            node.extents = (1, 3500, 4)
    assert rejection(large, "cuda") == "shared memory per block (112000) is above the limit (49152)"
    assert rejection(large, "rocm") is not None


def test_shared_memory_is_what_is_alive_at_once_and_double_buffers_count_twice() -> None:
    tree = simplified(fixture_tree("batch_matmul.cuda"))
    (kernel,) = children(tree.body[0])
    # Two tiles of 8 x 4 and 16 x 4 floats, both alive in the loop over k.
    assert shared_bytes(kernel) == 4 * (8 * 4 + 16 * 4)
    fill = next(
        path[-1]
        for store, path in stores_with_path(tree)
        if store.buffer.name == "placeholder.shared"
    )
    assert isinstance(fill, Condition)
    fill.body = [Attribute("double_buffer_scope", 1, fill.body)]
    assert shared_bytes(kernel) == 4 * (2 * 8 * 4 + 16 * 4)


def test_buffers_that_are_never_alive_together_share_memory() -> None:
    first, second = (Buffer(name, "float32", (64,), "shared") for name in "ab")
    out = Buffer("c", "float32", (64,))
    i = int_var("i")

    def through(buffer: Buffer) -> Node:
        fill: list[Node] = [Store(buffer, (i,), Expr("const", "float32", (), 1.0))]
        drain: list[Node] = [Store(out, (i,), load(buffer, (i,)))]
        loops: list[Node] = [Loop("i", 0, 64, "serial", body) for body in (fill, drain)]
        return Allocation(buffer, (64,), loops)

    one_after_the_other = Loop("t", 0, 2, "threadIdx.x", [through(first), through(second)])
    assert shared_bytes(one_after_the_other) == 64 * 4
    both = through(second)
    assert isinstance(both, Allocation)
    nested = Allocation(
        first, (64,), [*children(through(first))[:1], both, *children(through(first))[1:]]
    )
    assert shared_bytes(Loop("t", 0, 2, "threadIdx.x", [nested])) == 2 * 64 * 4


def test_a_thread_index_bound_to_two_extents_is_rejected() -> None:
    tree = simplified(fixture_tree("batch_matmul.cuda"))
    first = next(n for n in nodes_of(tree.body) if isinstance(n, Loop) and n.kind == "serial")
    first.kind = "threadIdx.x"
    assert first.extent == 4
    assert rejection(tree, "cuda") == "threadIdx.x is bound to different extents"
    # Two kernels one after the other may differ.
    one = simplified(fixture_tree("dense_small_batch.gpu"))
    other = with_loops(simplified(fixture_tree("dense_small_batch.gpu")), "threadIdx.x", 32, 0)
    assert rejection(LoopTree(one.parameters, one.body + other.body, True), "cuda") is None


# The environment and the process, without the old TVM.


def test_a_missing_environment_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDMPP_LEGACY_ENV", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match=r"python -m tvm_helper.legacy.setup"):
        find_environment()


def fake_environment(folder: Path, script: str) -> LegacyEnvironment:
    """An environment whose interpreter is a shell script."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    (folder / STAMP).write_text(json.dumps({"recipe": setup._recipe(), "tvm": "0"}))
    return LegacyEnvironment(folder)


def test_a_process_that_does_not_start_is_one_clear_error(tmp_path: Path) -> None:
    environment = fake_environment(tmp_path / "env", "echo no such library >&2; exit 3")
    with LegacyTvm(environment) as tvm, pytest.raises(UsageError, match="no such library"):
        next(tvm.ask({"kind": "autotvm"}))


ANSWERS = """echo '{"tvm": "0"}'; while read line; do
echo '{"flop_count": 5}'; echo '{"error": "first: failed"}'; exit 1; done"""


def task(template: str = "dense_nopack.x86") -> AutotvmTask:
    program = fixture_programs()["dense_nopack.x86"]
    arguments = program["arguments"]
    key = json.dumps([template, arguments])
    return AutotvmTask(key, template, arguments, program["target"], "llvm")


def record(*, tile: int = 3) -> MeasureRecord:
    program = fixture_programs()["dense_nopack.x86"]
    entity = [["tile_y", "sp", [-1, tile]], *program["entity"][1:]]
    return MeasureRecord(
        task().workload_key,
        program["target"],
        "llvm",
        "d",
        (),
        tuple(entity),
        (1.0,),
        0,
        0.0,
        0,
        "",
    )


def test_a_process_that_dies_costs_the_program_it_died_at(tmp_path: Path) -> None:
    environment = fake_environment(tmp_path / "env", ANSWERS)
    with LegacyTvm(environment) as tvm:
        answers = tvm.ask({"kind": "autotvm"})
        assert next(answers) == {"flop_count": 5}
        with pytest.raises(LegacyProcessError) as error:
            list(answers)
    assert error.value.answered == 2
    with LegacyTvm(environment) as tvm:
        features = features_of(tvm, task(), [record()] * 9)
    reasons = [result.reason for result in features.programs if isinstance(result, ReplayError)]
    # One failure and one death a start; after the third death the others are not tried.
    assert len(reasons) == 9
    assert [reason.startswith("AutoTVM, first, failed") for reason in reasons[:6]] == [
        True, False, True, False, True, False,
    ]  # fmt: skip
    assert all(reason.startswith("old TVM's process") for reason in reasons[5:])


def test_building_twice_does_nothing_the_second_time(tmp_path: Path) -> None:
    environment = fake_environment(tmp_path / "env", "exit 9")
    assert "exists already" in setup.build(environment.folder)
    (environment.folder / STAMP).write_text("{}")
    with pytest.raises(UsageError, match="install the wheels with the old TVM"):
        setup.build(environment.folder)


def test_two_builds_in_one_folder_are_refused(tmp_path: Path) -> None:
    environment = fake_environment(tmp_path / "env", "exit 9")
    (environment.folder / STAMP).unlink()
    with folder_lock(environment.folder), pytest.raises(UsageError, match="by another process"):
        setup.build(environment.folder)


def test_building_from_nothing_keeps_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/sh\nexit 9\n")
    (folder / "leftover").write_text("")
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "run", lambda *words: said.append("ran") or "")
        with pytest.raises(UsageError, match=r"got no .*libtvm\.so"):
            setup.build(folder, force=True, say=said.append)
    assert [path.name for path in folder.iterdir()] == [".lock"]
    assert [text for text in said if text != "ran"] == [
        "side environment 1 of 4: a Python environment",
        "side environment 2 of 4: downloading and installing the wheels with the old TVM",
        "side environment 3 of 4: what the old TVM imports",
        "side environment 4 of 4: compiling its bindings",
    ]


def test_a_missing_environment_is_built_after_saying_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = tmp_path / "env", list[str]()
    monkeypatch.setenv("CDMPP_LEGACY_ENV", str(folder))
    monkeypatch.setattr(setup, "build", lambda folder, *, say: said.append(f"built {folder}"))
    with pytest.raises(UsageError, match="and --no-install"):
        setup.ready_environment(may_install=False, say=said.append)
    assert said == []
    assert setup.ready_environment(may_install=True, say=said.append).folder == folder
    assert f"building it in {folder} (460 MB of downloads, 1.2 GB on disk" in said[0]
    assert said[1:] == [f"built {folder}"]
    there = fake_environment(tmp_path / "there", "exit 0")
    monkeypatch.setenv("CDMPP_LEGACY_ENV", str(there.folder))
    assert setup.ready_environment(may_install=False, say=said.append).folder == there.folder
    assert len(said) == 2


def test_targets_lose_what_the_old_tvm_does_not_know() -> None:
    assert legacy_target("llvm -keys=cpu -link-params=0 -mcpu=x") == "llvm -keys=cpu -mcpu=x"


# With the old TVM.


@pytest.fixture(scope="module")
def old_tvm() -> Iterator[LegacyTvm]:
    try:
        environment = find_environment()
    except UsageError:
        pytest.skip("no side environment with the old TVM; build it: make legacy-env")
    with LegacyTvm(environment) as tvm:
        yield tvm


@pytest.mark.ansor
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_lowered_as_when_the_fixture_was_made(
    old_tvm: LegacyTvm, template: str
) -> None:
    program = fixture_programs()[template]
    request = {"kind": "autotvm", "entities": [program["entity"]]}
    request |= {name: program[name] for name in ("template", "arguments", "target")}
    head, answer = old_tvm.ask(request)
    assert head["flop_count"] > 0
    tree = loop_tree_from_json(answer["tir"])
    assert program_difference(tree, fixture_tree(template)) is None


@pytest.mark.ansor
def test_one_bad_configuration_costs_one_program(old_tvm: LegacyTvm) -> None:
    no_knob = replace(record(), steps=())
    features = features_of(old_tvm, task(), [record(), no_knob, record(tile=7)])
    first, second, third = features.programs
    assert isinstance(first, CompactAst)
    assert isinstance(third, CompactAst)
    assert isinstance(second, ReplayError)
    assert second.reason.startswith("AutoTVM, KeyError, 'tile_")
    assert features.flop_count == 1323.0
    unknown = features_of(old_tvm, task("no_such.template"), [record(), record(tile=7)])
    reasons = {r.reason for r in unknown.programs if isinstance(r, ReplayError)}
    assert len(reasons) == 1
    assert "no_such.template" in reasons.pop()
