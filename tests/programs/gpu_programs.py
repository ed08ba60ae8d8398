"""Small GPU programs written by hand."""

from __future__ import annotations

from cdmpp.programs.loops.expr import Buffer, Expr, int_const, int_var, load
from cdmpp.programs.loops.loop_tree import Allocation, LoopTree, Store
from tests.programs.programs import binary, nest


def tiled_copy(*, pad: int) -> LoopTree:
    """Returns a transposing copy of a 32 x 32 matrix through shared memory.

    Args:
        pad: columns by which the rows of the tile are longer than 32.
    """
    source, target = Buffer("in", "float32", (32, 32)), Buffer("out", "float32", (32, 32))
    tile = Buffer("tile", "float32", (32, 32 + pad), "shared")
    fill = Store(tile, (int_var("i"), int_var("t")), load(source, (int_var("i"), int_var("t"))))
    drain = Store(target, (int_var("j"), int_var("u")), load(tile, (int_var("u"), int_var("j"))))
    inner = [
        *nest([("i", 32, "serial"), ("t", 32, "threadIdx.x")], [fill]),
        *nest([("j", 32, "serial"), ("u", 32, "threadIdx.x")], [drain]),
    ]
    allocation = Allocation(tile, (32, 32 + pad), inner)
    body = nest([("b", 4, "blockIdx.x")], [allocation])
    return LoopTree((source, target), body, is_gpu=True)


def flat_block() -> LoopTree:
    """Returns a copy by blocks of 8 x 4 threads, from dense rows to rows of 100."""
    source, target = Buffer("in", "float32", (4, 8)), Buffer("out", "float32", (4, 100))
    place = (int_var("y"), int_var("x"))
    store = Store(target, place, load(source, place))
    body = nest([("b", 1, "blockIdx.x"), ("y", 4, "threadIdx.y"), ("x", 8, "threadIdx.x")], [store])
    return LoopTree((source, target), body, is_gpu=True)


def two_kernels() -> LoopTree:
    """Returns one kernel with shared and local memory, and one of blocks only.

    The first one's fused fetch divides the thread index, as cooperative fetches do.
    """
    source, target = Buffer("in", "float32", (7, 100)), Buffer("out", "float32", (7, 2, 48))
    tile = Buffer("tile", "float32", (7, 96))
    register = Buffer("register", "float32", (7, 2, 48))
    other = Buffer("other", "float32", (5,))
    b, v, t, f = (int_var(name) for name in "bvtf")
    fused = binary("add", binary("mul", v, int_const(48)), f)
    row, column = (binary(op, fused, int_const(12)) for op in ("floordiv", "floormod"))
    place = binary("add", binary("mul", row, int_const(12)), column)
    fetch = Store(tile, (b, place), load(source, (b, place)))
    value = binary("add", load(tile, (b, binary("floordiv", t, int_const(2)))), load(tile, (b, t)))
    compute = Store(register, (b, v, t), value)
    local = Allocation(register, (1, 1, 1), [compute])
    threads = nest(
        [("v", 2, "vthread")],
        [*nest([("f", 48, "threadIdx.x")], [fetch]), *nest([("t", 48, "threadIdx.x")], [local])],
    )
    shared = Allocation(tile, (1, 96), threads)
    first = nest([("b", 7, "blockIdx.x")], [shared])
    one = Expr("const", "float32", (), 1.0)
    second = nest([("c", 5, "blockIdx.x")], [Store(other, (int_var("c"),), one)])
    return LoopTree((source, target, other), [*first, *second], is_gpu=True)
