"""Loop trees that were lowered elsewhere: the native leaf code gives what the reference gives."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.leaves.tree import compact_ast
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
from cdmpp.programs.native.flatten_tree import flatten_tree
from tvm_helper.legacy import tree_features
from tvm_helper.legacy.tir import loop_tree_from_json
from tvm_helper.legacy.tree_features import compact_asts

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
    library = native_library()
    if library is None:
        pytest.skip("no compiler, so no native code")
    return [int(status) for status in featurise_trees(trees, library).status]


A = Buffer("a", "float32", (8, 16))
SHARED = Buffer("s", "float32", (16,), "shared")
OUT = Buffer("out", "float32", (8, 16))
ROW, COLUMN = int_var("i"), int_var("j")
ONE = Expr("const", "float32", (), 1.0)


def copy_tree(*, minimum: int = 0, extent: int | Expr = 8, index: Expr = ROW) -> LoopTree:
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
    for ours, tree in zip(compact_asts(trees), trees, strict=True):
        assert_same(ours, compact_ast(tree))


def test_conditions_marks_and_thread_bindings() -> None:
    trees = [copy_tree(), kernel_tree(), copy_tree()]
    assert statuses(trees) == [Status.VALID] * 3
    ours = compact_asts(trees)
    for one, tree in zip(ours, trees, strict=True):
        assert_same(one, compact_ast(tree))
    assert isinstance(ours[1], CompactAst)
    assert len(ours[1].leaf_position) == 3
    assert compact_asts([]) == []


def test_an_extent_that_is_not_constant_rejects_the_program() -> None:
    tree = copy_tree(extent=Expr("add", "int32", (int_var("n"), int_const(1))))
    assert statuses([tree]) == [Status.REJECTED]
    (ours,) = compact_asts([tree])
    assert_same(ours, compact_ast(tree))
    assert isinstance(ours, CompactAst)
    assert ours.reject_reason == "extent is not constant: (n + 1)"


@pytest.mark.parametrize(
    "tree",
    [
        copy_tree(minimum=3),
        copy_tree(index=Expr("add", "int32", (ROW, int_const(1 << 70)))),
        LoopTree((), [Store(OUT, (ROW, COLUMN), Expr("const", "handle", (), "text"))]),
    ],
    ids=["a loop from 3", "a number above 64 bits", "a constant that is text"],
)
def test_what_has_no_flat_form_is_left_to_the_reference(tree: LoopTree) -> None:
    with pytest.raises(DataError, match="Cannot hand a program to the native code"):
        flatten_tree(tree)
    assert statuses([copy_tree(), tree]) == [Status.VALID, Status.DECLINED]
    usual, left = compact_asts([copy_tree(), tree])
    assert_same(usual, compact_ast(copy_tree()))
    assert_same(left, compact_ast(tree))


def test_without_a_compiler_the_reference_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_features, "native_library", lambda: None)
    (ours,) = compact_asts([kernel_tree()])
    assert_same(ours, compact_ast(kernel_tree()))
