"""Loop trees that were lowered elsewhere: the native leaf code gives what the reference gives."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import compact_asts
from cdmpp.programs.gpu_limits import GpuLimits
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
)
from cdmpp.programs.native import Status, featurise_trees, native_library
from cdmpp.programs.native.flatten import flatten_tree
from tests.programs.reference.rejection import gpu_violation
from tests.programs.reference.tree import compact_ast
from tvm_helper.legacy.tir import loop_tree_from_json

FIXTURE = Path(__file__).parent / "data" / "legacy_programs.jsonl.gz"


def fixture_trees() -> list[LoopTree]:
    lines = gzip.decompress(FIXTURE.read_bytes()).decode().splitlines()
    return [loop_tree_from_json(json.dumps(json.loads(line)["tir"])) for line in lines]


def assert_same(ours: object, reference: CompactAst) -> None:
    assert isinstance(ours, CompactAst)
    for name in ("leaf_features", "leaf_extra", "leaf_position", "tree"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(reference, name), err_msg=name)
    assert (ours.valid, ours.reject_reason) == (reference.valid, reference.reject_reason)


def statuses(trees: list[LoopTree]) -> list[int]:
    batch = featurise_trees(trees, [None] * len(trees), native_library())
    return [int(status) for status in batch.status]


def features(trees: list[LoopTree]) -> list[CompactAst | ReplayError]:
    return compact_asts(trees, [None] * len(trees))


A = Buffer("a", "float32", (8, 16))
SHARED = Buffer("s", "float32", (16,), "shared")
OUT = Buffer("out", "float32", (8, 16))
ROW, COLUMN = int_var("i"), int_var("j")
ONE = Expr("const", "float32", (), 1.0)


def copy_tree(*, minimum: int | Expr = 0, extent: int | Expr = 8, index: Expr = ROW) -> LoopTree:
    store: Node = Store(
        OUT, (index, COLUMN), Expr("add", "float32", (load(A, (index, COLUMN)), ONE))
    )
    inner: Node = Loop("j", 0, 16, "vectorized", [store])
    return LoopTree((A, OUT), [Loop("i", minimum, extent, "parallel", [inner])])


def kernel_tree() -> LoopTree:
    """A kernel with shared memory, both branches of a condition, marks, and a thread loop of 1."""
    fill: Node = Store(SHARED, (COLUMN,), load(A, (ROW, COLUMN)))
    guard = Expr("lt", "bool", (COLUMN, int_const(9)))
    use: Node = Condition(
        guard,
        [Store(OUT, (ROW, COLUMN), load(SHARED, (COLUMN,)))],
        [Store(OUT, (ROW, COLUMN), ONE)],
    )
    marked: Node = Attribute("double_buffer_scope", 1, [fill])
    unrolled: Node = Attribute(
        "pragma_auto_unroll_max_step", 64, [Loop("k", 0, 4, "serial", [use])]
    )
    inside: Node = Allocation(SHARED, (16,), [marked, unrolled])
    threads: Node = Loop("j", 0, 16, "threadIdx.x", [Loop("t", 0, 1, "threadIdx.y", [inside])])
    return LoopTree((A, OUT), [Loop("i", 0, 8, "blockIdx.x", [threads])], True)


def test_programs_of_the_old_tvm_have_the_same_compact_ast_both_ways() -> None:
    trees = fixture_trees()
    trees += [simplified(tree) for tree in fixture_trees()]
    assert len(trees) >= 8
    assert statuses(trees) == [Status.VALID] * len(trees)
    for ours, tree in zip(features(trees), trees, strict=True):
        assert_same(ours, compact_ast(tree))


def test_conditions_marks_and_thread_bindings() -> None:
    trees = [copy_tree(), kernel_tree(), copy_tree()]
    assert statuses(trees) == [Status.VALID] * 3
    ours = features(trees)
    for one, tree in zip(ours, trees, strict=True):
        assert_same(one, compact_ast(tree))
    assert isinstance(ours[1], CompactAst)
    assert len(ours[1].leaf_position) == 3
    assert features([]) == []


def test_an_extent_that_is_not_constant_rejects_the_program() -> None:
    tree = copy_tree(extent=Expr("add", "int32", (int_var("n"), int_const(1))))
    assert statuses([tree]) == [Status.REJECTED]
    (ours,) = features([tree])
    assert_same(ours, compact_ast(tree))
    assert isinstance(ours, CompactAst)
    assert ours.reject_reason == "extent is not constant: (n + 1)"


def shifted_tree() -> LoopTree:
    """Loops that start elsewhere, one of them where an outer loop is."""
    inner = Loop("j", Expr("mul", "int32", (ROW, int_const(2))), 4, "serial", [
        Store(OUT, (ROW, COLUMN), load(A, (ROW, Expr("floordiv", "int32", (COLUMN, int_const(3))))))
    ])  # fmt: skip
    return LoopTree((A, OUT), [Loop("i", 3, 5, "parallel", [inner])])


TEXT = Expr("call", "float32", (Expr("const", "handle", (), "i"), load(A, (ROW, COLUMN))), "tir.f")


@pytest.mark.parametrize(
    "tree",
    [
        copy_tree(minimum=3),
        copy_tree(minimum=-3),
        shifted_tree(),
        LoopTree((A, OUT), [Loop("i", 0, 8, "serial", [Store(OUT, (ROW, COLUMN), TEXT)])]),
    ],
    ids=["a loop from 3", "a loop from -3", "a loop from a variable", "a constant that is text"],
)
def test_loops_from_elsewhere_and_texts(tree: LoopTree) -> None:
    assert statuses([tree]) == [Status.VALID]
    assert_same(features([tree])[0], compact_ast(tree))


def test_what_has_no_flat_form_is_a_reason_in_its_place() -> None:
    tree = copy_tree(index=Expr("add", "int32", (ROW, int_const(1 << 70))))
    with pytest.raises(DataError, match="Cannot represent a program"):
        flatten_tree(tree)
    assert statuses([copy_tree(), tree]) == [Status.VALID, Status.DECLINED]
    before = ReplayError("no loop tree")
    first, usual, left = compact_asts([before, copy_tree(), tree], [None] * 3)
    assert first is before
    assert_same(usual, compact_ast(copy_tree()))
    assert isinstance(left, ReplayError)
    assert left.reason == "unsupported program"
    assert "64-bit integers" in str(left)


@pytest.mark.parametrize("limits", [(64, 16, 8), (63, 16, 8), (64, 15, 8)])
def test_limits_of_a_kernel(limits: tuple[int, int, int]) -> None:
    tree = kernel_tree()
    found, free = compact_asts([tree, copy_tree()], [GpuLimits(*limits)] * 2)
    assert isinstance(found, CompactAst)
    assert found.reject_reason == gpu_violation(tree, GpuLimits(*limits))
    assert found.valid == (limits == (64, 16, 8))
    assert isinstance(free, CompactAst)
    assert free.valid
