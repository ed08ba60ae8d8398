"""Small loop trees written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.programs.loops.expr import Buffer, Expr, int_const, int_var, load
from cdmpp.programs.loops.loop_tree import Allocation, Loop, LoopKind, LoopTree, Node, Store


def binary(op: str, left: Expr, right: Expr) -> Expr:
    return Expr(op, left.dtype, (left, right))


def nest(loops: Sequence[tuple[str, int, LoopKind]], body: list[Node]) -> list[Node]:
    """Returns `body` inside loops, given outermost first."""
    for name, extent, kind in reversed(loops):
        body = [Loop(name, 0, extent, kind, body)]
    return body


def matmul(
    kinds: tuple[LoopKind, LoopKind, LoopKind] = ("parallel", "serial", "vectorized"),
) -> LoopTree:
    """Returns C[8, 32] = A[8, 16] @ B[16, 32]: an init and an update store, C allocated on top."""
    left, right = Buffer("A", "float32", (8, 16)), Buffer("B", "float32", (16, 32))
    product = Buffer("C", "float32", (8, 32))
    i, j, k = (int_var(name) for name in "ijk")
    zero = Expr("const", "float32", (), 0.0)
    term = binary("mul", load(left, (i, k)), load(right, (k, j)))
    update = Store(product, (i, j), binary("add", load(product, (i, j)), term))
    init = Store(product, (i, int_var("j_init")), zero)
    body = nest([("j_init", 32, kinds[2])], [init]) + nest(
        [("k", 16, kinds[1]), ("j", 32, kinds[2])], [update]
    )
    allocation = Allocation(product, (8, 32), nest([("i", 8, kinds[0])], body))
    return LoopTree((left, right, product), [allocation])


def copy_of(loops: Sequence[tuple[str, int, LoopKind]], *, is_gpu: bool = False) -> LoopTree:
    """Returns out[64] = in[64] at index x, inside loops one of which is `x`."""
    source, target = Buffer("in", "float32", (64,)), Buffer("out", "float32", (64,))
    index = (int_var("x"),)
    store = Store(target, index, load(source, index))
    return LoopTree((source, target), nest(loops, [store]), is_gpu)


def gather() -> LoopTree:
    """Returns out[x] = table[rows[x], 0]: an index that is read from memory."""
    rows, table = Buffer("rows", "int32", (64,)), Buffer("table", "float32", (100, 8))
    target = Buffer("out", "float32", (64,))
    row = load(rows, (int_var("x"),))
    store = Store(target, (int_var("x"),), load(table, (row, int_const(0))))
    return LoopTree((rows, table, target), nest([("x", 64, "serial")], [store]))
