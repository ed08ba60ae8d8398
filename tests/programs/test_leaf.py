"""Leaf vectors of small programs, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cdmpp.programs.loops.expr import Buffer, Expr, int_const, int_var, load
from cdmpp.programs.loops.loop_tree import Attribute, Loop, LoopTree, Store
from cdmpp.programs.schema import LEAF_FEATURE_NAMES
from tests.programs.programs import binary, copy_of, gather, matmul
from tests.programs.reference.coefficients import CoefficientFinder
from tests.programs.reference.intervals import IntervalAnalysis
from tests.programs.reference.leaf import leaf_vectors, op_counts
from tests.programs.reference.signed_log import signed_log


def named(row: list[float]) -> dict[str, float]:
    return dict(zip(LEAF_FEATURE_NAMES, row, strict=True))


def slots(row: list[float]) -> list[dict[str, float]]:
    """Returns the used access slots with their logarithms undone."""
    values = named(row)
    found = []
    for slot in range(5):
        prefix = f"B{slot}."
        one = {
            name.removeprefix(prefix): v for name, v in values.items() if name.startswith(prefix)
        }
        if one["bytes"]:
            found.append({n: v if "type" in n else 2.0**v - 1 for n, v in one.items()})
    return found


def test_matmul_compute_columns() -> None:
    init, update = map(named, leaf_vectors(matmul()))
    iterations = 8 * 16 * 32
    assert init["float_mul"] == init["float_addsub"] == 0
    assert update["float_mul"] == update["float_addsub"] == signed_log(iterations)
    assert update["vec_num"] == 1.0
    assert update["vec_prod"] == update["vec_len"] == signed_log(32)
    assert (update["vec_type.kPosNone"], update["vec_type.kPosMixed"]) == (0, 1)
    assert (update["unroll_num"], update["unroll_type.kPosNone"]) == (0, 1)
    assert update["parallel_len"] == signed_log(8)
    assert update["is_gpu"] == 0
    assert (update["outer_prod"], update["num_loops"]) == (signed_log(iterations), signed_log(3))
    assert (init["outer_prod"], init["num_loops"]) == (signed_log(8 * 32), signed_log(2))


def test_matmul_allocation_columns() -> None:
    init, update = map(named, leaf_vectors(matmul()))
    for row in (init, update):
        assert row["alloc_size"] == signed_log(8 * 32 * 4)
        assert row["alloc_prod"] == signed_log(8 * 32)
        assert row["alloc_outer_prod"] == signed_log(1)
    assert update["alloc_inner_prod"] == signed_log(8 * 16 * 32)
    assert init["alloc_inner_prod"] == signed_log(8 * 32)


def test_matmul_accesses() -> None:
    _, update = leaf_vectors(matmul())
    left, product, right = slots(update)
    # A[i, k]: j repeats one element; innermost, so the distance is one iteration: three elements.
    assert left["acc_type.kRead"] == left["reuse_type.kLoopMultipleRead"] == 1
    assert left["reuse_ct"] == pytest.approx(32)
    assert left["reuse_dis_bytes"] == pytest.approx(12)
    assert left["unique_bytes"] == pytest.approx(8 * 16 * 4)
    assert left["stride"] == pytest.approx(0)
    # C[i, j]: written and read; k repeats what one run of j touches: A 1, B 32, C 32 elements.
    assert product["acc_type.kReadWrite"] == 1
    assert product["reuse_ct"] == pytest.approx(16)
    assert product["reuse_dis_iter"] == pytest.approx(32)
    assert product["reuse_dis_bytes"] == pytest.approx((1 + 32 + 32) * 4)
    # B[k, j]: i repeats it; in one run of k it touches all of B, one row of C and of A.
    assert right["reuse_ct"] == pytest.approx(8)
    assert right["reuse_dis_bytes"] == pytest.approx((16 * 32 + 32 + 16) * 4)
    assert right["bytes"] == pytest.approx(8 * 16 * 32 * 4)
    assert right["lines"] == pytest.approx(8 * 16 * 32 * 4 / 64)
    assert right["bytes_d_reuse_ct"] == pytest.approx(8 * 16 * 32 * 4 / 8)
    assert right["stride"] == pytest.approx(1)


def test_matmul_intensity_curve_ends_at_the_whole_program() -> None:
    init, update = map(named, leaf_vectors(matmul()))
    touched = (8 * 16 + 16 * 32 + 8 * 32) * 4
    expected = math.log2(2 * 8 * 16 * 32) / math.log2(touched)
    assert update["arith_intensity_curve_9"] == pytest.approx(expected)
    innermost = math.log2(2 * 32) / math.log2((1 + 32 + 32) * 4)
    assert update["arith_intensity_curve_0"] == pytest.approx(innermost)
    assert all(init[f"arith_intensity_curve_{point}"] == 0 for point in range(10))


def test_unit_loops_change_nothing() -> None:
    plain = leaf_vectors(copy_of([("x", 64, "serial")]))
    assert leaf_vectors(copy_of([("u", 1, "serial"), ("x", 64, "serial")])) == plain
    assert leaf_vectors(copy_of([("x", 64, "serial"), ("u", 1, "vectorized")])) == plain


def test_thread_bindings() -> None:
    loops = [("b", 4, "blockIdx.x"), ("v", 1, "vthread"), ("x", 64, "threadIdx.x")]
    (row,) = leaf_vectors(copy_of(loops, is_gpu=True))  # type: ignore[arg-type]
    values = named(row)
    assert values["is_gpu"] == 1
    assert values["blockIdx_x_len"] == signed_log(4)
    assert values["threadIdx_x_len"] == signed_log(64)
    assert values["threadIdx_y_len"] == values["vthread_len"] == signed_log(1)
    assert values["num_loops"] == signed_log(3)


def test_unroll_pragma_covers_its_body_only() -> None:
    inside, after = copy_of([("x", 64, "serial")]), copy_of([("y", 64, "serial")])
    pragma = Attribute("pragma_auto_unroll_max_step", 16, inside.body)
    loop = after.body[0]
    assert isinstance(loop, Loop)
    loop.body = [Store(Buffer("z", "int8", (64,)), (int_var("y"),), int_const(0))]
    tree = LoopTree((), [pragma, loop])
    steps = [named(row)["auto_unroll_max_step"] for row in leaf_vectors(tree)]
    assert steps == [signed_log(16), 0]


def test_stride_does_not_depend_on_the_order_of_terms() -> None:
    rows = []
    tile = binary("mul", int_var("o"), int_const(16))
    for index in (binary("add", tile, int_var("i")), binary("add", int_var("i"), tile)):
        out = Buffer("out", "float32", (64,))
        store = Store(out, (index,), Expr("const", "float32", (), 1.0))
        inner = Loop("i", 0, 16, "serial", [store])
        rows.append(leaf_vectors(LoopTree((out,), [Loop("o", 0, 4, "serial", [inner])])))
    assert rows[0] == rows[1]
    assert slots(rows[0][0])[0]["stride"] == pytest.approx(1)


def test_index_read_from_memory_touches_the_whole_dimension() -> None:
    (row,) = leaf_vectors(gather())
    assert np.isfinite(row).all()
    unique = sorted(slot["unique_bytes"] for slot in slots(row))
    assert unique == pytest.approx([64 * 4, 64 * 4, 100 * 4])


def test_store_outside_of_loops() -> None:
    out = Buffer("out", "float32", (1,))
    store = Store(out, (int_const(0),), load(out, (int_const(0),)))
    (row,) = leaf_vectors(LoopTree((out,), [store]))
    values = named(row)
    assert np.isfinite(row).all()
    assert values["num_loops"] == 0
    assert values["B0.bytes"] == signed_log(4)
    assert values["B0.reuse_type.kNoReuse"] == 1


def test_single_byte_keeps_the_curve_finite() -> None:
    out = Buffer("out", "int8", (4,))
    one = Expr("const", "float32", (), 1.0)
    store = Store(out, (int_const(0),), Expr("cast", "int8", (binary("add", one, one),)))
    (row,) = leaf_vectors(LoopTree((out,), [Loop("i", 0, 4, "serial", [store])]))
    assert np.isfinite(row).all()


def test_op_counts_by_kind() -> None:
    source = Buffer("in", "float32", (64,))
    index = binary("floormod", binary("add", int_var("x"), int_const(3)), int_const(64))
    read = load(source, (index,))
    zero = Expr("const", "float32", (), 0.0)
    condition = Expr(
        "and", "bool", (Expr("lt", "bool", (int_var("x"), int_const(4))), Expr("not", "bool", ()))
    )
    value = Expr("call", "float32", (condition, read, zero), "tir.if_then_else")
    value = binary("max", binary("div", value, zero), Expr("cast", "float32", (int_var("x"),)))
    value = Expr("select", "float32", (Expr("gt", "bool", (read, zero)), value, zero))
    assert op_counts(value) == {
        "select_op": 1,
        "float_cmp": 2,
        "float_divmod": 1,
        "float_math_func": 1,
        "bool_op": 2,
        "int_cmp": 1,
        "int_addsub": 2,
        "int_divmod": 2,
    }
    opaque = Expr("call", "int32", (), "tir.call_extern")
    assert op_counts(opaque) == {"int_other_func": 1}


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (int_var("i"), 1),
        (binary("mul", int_var("i"), int_const(8)), 8),
        (binary("add", binary("mul", int_var("i"), int_const(8)), int_var("o")), 8),
        (binary("add", binary("mul", int_var("o"), int_const(8)), int_var("i")), 1),
        (binary("floordiv", int_var("i"), int_const(4)), 1),
        (binary("mul", binary("floormod", int_var("i"), int_const(4)), int_const(16)), 16),
    ],
)
def test_coefficients(index: Expr, expected: int) -> None:
    analysis = IntervalAnalysis()
    analysis.declare("o", 0, 4)
    bit = analysis.declare("i", 0, 8)
    assert CoefficientFinder().coefficient(analysis.intern(index), bit) == expected
