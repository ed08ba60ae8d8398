"""The reference walker: what of a TIR module becomes a node, and where allocations sit."""

from __future__ import annotations

from typing import Any

import pytest

from cdmpp.errors import DataError
from cdmpp.programs.loops.expr import Expr, expr_text
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
from tests.programs.ansor.small_dags import matmul_relu

pytestmark = pytest.mark.tvm


def kinds(nodes: list[Node]) -> list[Any]:
    """Returns the tree as nested lists: loops as extents, allocations and stores as names."""
    result: list[Any] = []
    for node in nodes:
        if isinstance(node, Store):
            result.append(node.buffer.name)
        elif isinstance(node, Allocation):
            result.append([f"alloc {node.buffer.name}", *kinds(node.body)])
        elif isinstance(node, Loop):
            result.append([node.extent, *kinds(node.body)])
        else:
            result += kinds(children(node))
    return result


def tree_of(steps: list[Any]) -> LoopTree:
    from tvm_helper.tir.loop_tree import loop_tree_from_tir
    from tvm_helper.tir.schedule_of_record import replay

    return loop_tree_from_tir(replay(matmul_relu(4, 6, 8), steps).mod)


def test_plain_program() -> None:
    tree = tree_of([])
    assert [buffer.name for buffer in tree.parameters] == ["A", "B", "D"]
    assert not tree.is_gpu
    matmul = [4, [6, "C", [8, "C"]]]
    assert kinds(tree.body) == [["alloc C", matmul, ["alloc D", [4, [6, "D"]]]]]


def test_attached_stage_is_allocated_below_the_loop_it_is_attached_to() -> None:
    tree = tree_of([["CA", 2, 3, 0]])
    assert kinds(tree.body) == [["alloc D", [4, ["alloc C", [6, "C", [8, "C"]], [6, "D"]]]]]
    found = [
        node for _, path in stores_with_path(tree) for node in path
        if isinstance(node, Allocation) and node.buffer.name == "C"
    ]  # fmt: skip
    assert {node.extents for node in found} == {(1, 6)}


def test_buffers_keep_their_full_indices() -> None:
    tree = tree_of([["CA", 2, 3, 0]])
    update = [store for store, _ in stores_with_path(tree)][1]
    assert update.buffer.shape == (4, 6)
    loops = {n.var for _, path in stores_with_path(tree) for n in path if isinstance(n, Loop)}
    assert {str(index.value) for index in update.indices} <= loops
    assert expr_text(update.value).count("[") == 3


def test_variable_names_are_unique() -> None:
    tree = tree_of([])
    names = [
        node.var
        for store, path in stores_with_path(tree)
        for node in path
        if isinstance(node, Loop) and isinstance(store, Store)
    ]
    assert len(set(names)) == 2 + 1 + 2


def test_annotations_and_pragmas() -> None:
    steps: list[Any] = [
        ["AN", 3, 0, 3], ["AN", 3, 1, 2], ["AN", 2, 1, 1], ["PR", 2, 0, "auto_unroll_max_step$16"],
    ]  # fmt: skip
    paths = [path for _, path in stores_with_path(tree_of(steps))]
    last = [node.kind for node in paths[-1] if isinstance(node, Loop)]
    assert last == ["parallel", "vectorized"]
    assert [n.kind for n in paths[0] if isinstance(n, Loop)] == ["serial", "unrolled"]
    attributes = {n.key: n.value for n in paths[0] if isinstance(n, Attribute)}
    assert attributes == {"pragma_auto_unroll_max_step": 16, "pragma_unroll_explicit": 1}
    assert not any(isinstance(node, Attribute) for node in paths[-1])


def test_split_with_remainder_makes_a_condition() -> None:
    tree = tree_of([["SP", 3, 1, 6, [4], 1]])
    _, path = list(stores_with_path(tree))[-1]
    assert [n.extent for n in path if isinstance(n, Loop)] == [4, 2, 4]
    conditions = [n.condition for n in path if isinstance(n, Condition)]
    assert len(conditions) == 1
    assert "< 6" in expr_text(conditions[0])


def test_unit_loops_are_gone() -> None:
    tree = tree_of([["SP", 3, 0, 4, [1, 1, 1], 1]])
    _, path = list(stores_with_path(tree))[-1]
    assert [n.extent for n in path if isinstance(n, Loop) and n.extent != 1] == [4, 6]


def test_calls_casts_and_selects_keep_the_originals_names() -> None:
    from tvm_helper.compat import te, tirx, tvm
    from tvm_helper.tir.loop_tree import loop_tree_from_tir

    source = te.placeholder((8,), "float32", name="source")

    def body(i: Any) -> Any:
        value = tirx.exp(source[i]) + tirx.Cast("float32", i)
        inside = tirx.if_then_else(i < 5, value, tirx.const(0.0, "float32"))
        return tirx.Select(tirx.Not(tirx.EQ(i % 2, 0)), inside, source[i])

    result = te.compute((8,), body, name="result")
    module = tvm.IRModule({"main": te.create_prim_func([source, result])})
    ((store, _),) = stores_with_path(loop_tree_from_tir(module))
    found: set[tuple[str, str | None]] = set()

    def visit(expr: Expr) -> None:
        found.add((expr.op, expr.value if expr.op == "call" else None))
        for argument in expr.args:
            visit(argument)

    visit(store.value)
    assert {("call", "tir.exp"), ("call", "tir.if_then_else"), ("cast", None)} <= found
    assert ("select", None) in found


def test_module_without_main_is_refused() -> None:
    from tvm_helper.compat import tvm
    from tvm_helper.tir.loop_tree import loop_tree_from_tir

    with pytest.raises(DataError, match="no function `main`"):
        loop_tree_from_tir(tvm.IRModule({}))


def tree_of_strided(first: tuple[int, ...], second: tuple[int, ...]) -> LoopTree:
    """Returns the tree of `B[i, j] = A[i, j]`, with strides of both."""
    from tvm_helper.compat import tvm
    from tvm_helper.tir.loop_tree import loop_tree_from_tir

    text = f"""
@T.prim_func(s_tir=True)
def main(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (16, 8), "float32", strides={first})
    B = T.match_buffer(b, (16, 8), "float32", strides={second})
    for i, j in T.grid(16, 8):
        with T.sblock("copy"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]
"""
    return loop_tree_from_tir(tvm.IRModule({"main": tvm.script.from_source(text)}))


def test_strides_of_arguments_count() -> None:
    tree = tree_of_strided((1, 16), (24, 2))
    assert [buffer.shape for buffer in tree.parameters] == [(8, 16), (16, 12, 2)]
    store, _ = next(iter(stores_with_path(tree)))
    assert [expr_text(index) for index in store.indices] == ["i", "j", "0"]
    assert [expr_text(index) for index in store.value.args] == ["j", "i"]
    assert tree_of_strided((8, 1), (8, 1)).parameters[0].shape == (16, 8)


@pytest.mark.parametrize("strides", [(0, 1), (4, 1), (9, 2)])
def test_strides_of_overlapping_elements_are_refused(strides: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"buffer A of \[16, 8\] has strides"):
        tree_of_strided(strides, (8, 1))
