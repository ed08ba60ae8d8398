"""Compact AST: nodes, serialised tree, leaf positions, rejection."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNT, LEAF_FEATURE_COUNT
from cdmpp.programs.loops.expr import Expr, int_const, int_var
from cdmpp.programs.loops.loop_tree import Attribute, Condition, Loop, LoopKind, LoopTree
from cdmpp.programs.schema import LEAF_FEATURE_NAMES
from tests.programs.programs import copy_of, matmul
from tests.programs.reference.tree import compact_ast


def test_matmul() -> None:
    ast = compact_ast(matmul())
    # root 0, allocation 1, i 2, j_init 3, init 4, k 5, j 6, update 7
    assert ast.tree.tolist() == [0, 1, 2, 3, 4, -1, -1, 5, 6, 7, -1, -1, -1, -1, -1, -1]
    assert ast.leaf_position.tolist() == [4, 9]
    assert [int(ast.tree[position]) for position in ast.leaf_position] == [4, 7]
    assert ast.leaf_features.shape == (2, LEAF_FEATURE_COUNT)
    assert ast.leaf_extra.shape == (2, LEAF_EXTRA_COUNT)
    assert ast.leaf_features.dtype == np.float32
    assert ast.tree.dtype == ast.leaf_position.dtype == np.int32
    assert ast.valid
    assert ast.reject_reason is None


@pytest.mark.parametrize("kind", ["serial", "vthread", "threadIdx.x", "vectorized"])
def test_unit_loops_make_no_node(kind: LoopKind) -> None:
    plain = compact_ast(copy_of([("x", 64, "serial")]))
    unit = compact_ast(copy_of([("u", 1, kind), ("x", 64, "serial")]))
    assert unit.tree.tolist() == plain.tree.tolist() == [0, 1, 2, -1, -1, -1]


def test_conditions_and_attributes_make_no_node() -> None:
    tree = copy_of([("x", 64, "serial")])
    loop = tree.body[0]
    assert isinstance(loop, Loop)
    condition = Expr("lt", "bool", (int_var("x"), int_const(60)))
    loop.body = [Condition(condition, loop.body, list(loop.body))]
    ast = compact_ast(LoopTree(tree.parameters, [Attribute("note", "text", tree.body)]))
    assert ast.tree.tolist() == [0, 1, 2, -1, 3, -1, -1, -1]
    assert ast.leaf_position.tolist() == [2, 4]


def test_symbolic_extent_is_rejected_but_kept() -> None:
    extent = Expr("add", "int32", (int_var("o"), int_const(1)))
    tree = copy_of([("x", 64, "serial")])
    loop = tree.body[0]
    assert isinstance(loop, Loop)
    loop.extent = extent
    ast = compact_ast(LoopTree(tree.parameters, [Loop("o", 0, 8, "serial", [loop])]))
    assert not ast.valid
    assert ast.reject_reason == "extent is not constant: (o + 1)"
    assert ast.tree.tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    assert np.isfinite(ast.leaf_features).all()


def test_empty_extent_is_rejected() -> None:
    ast = compact_ast(copy_of([("x", 0, "serial")]))
    assert ast.reject_reason == "extent is not positive: 0"
    assert np.isfinite(ast.leaf_features).all()


def test_program_without_stores() -> None:
    ast = compact_ast(LoopTree((), []))
    assert ast.leaf_features.shape == (0, LEAF_FEATURE_COUNT)
    assert ast.tree.tolist() == [0, -1]


def test_every_column_has_a_name() -> None:
    assert len(set(LEAF_FEATURE_NAMES)) == len(LEAF_FEATURE_NAMES) == LEAF_FEATURE_COUNT
