"""The additional leaf columns of small programs, against values worked out by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cdmpp.datasets.extraction.extracted import read_manifest
from cdmpp.datasets.extraction.schema import schema_versions
from cdmpp.errors import DataError
from cdmpp.programs.added_columns import EXTRA_BLOCKS, LEAF_EXTRA_COUNT, LEAF_EXTRA_NAMES
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import compact_asts
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
from tests.paths import ROOT
from tests.programs.gpu_programs import flat_block, tiled_copy, two_kernels
from tests.programs.programs import binary, copy_of, matmul, nest
from tests.programs.reference.intervals import IntervalAnalysis
from tests.programs.reference.lane_accesses import LaneAccess, LaneEvaluator, LaneSet
from tests.programs.reference.leaf import leaf_vectors
from tests.programs.reference.signed_log import signed_log
from tests.programs.reference.tree import compact_ast

ONE = Expr("const", "float32", (), 1.0)


def named(row: NDArray[np.float32]) -> dict[str, float]:
    return dict(zip(LEAF_EXTRA_NAMES, row.tolist(), strict=True))


def rows_of(tree: LoopTree) -> list[dict[str, float]]:
    return [named(row) for row in compact_ast(tree).leaf_extra]


def log(value: float) -> float:
    return float(np.float32(signed_log(value)))


def test_blocks_cover_the_columns() -> None:
    covered = [name for block in EXTRA_BLOCKS.values() for name in LEAF_EXTRA_NAMES[block]]
    assert tuple(covered) == LEAF_EXTRA_NAMES
    assert len(set(covered)) == LEAF_EXTRA_COUNT
    for block, columns in EXTRA_BLOCKS.items():
        assert all(name.startswith(f"{block}.") for name in LEAF_EXTRA_NAMES[columns])


def test_every_column_has_a_line_in_the_documentation() -> None:
    text = (ROOT / "docs" / "reference" / "features.md").read_text()
    for name in LEAF_EXTRA_NAMES:
        block, _, column = name.partition(".")
        slot, _, last = column.rpartition(".")
        generic = {"store": "S.", "": ""}.get(slot, "S." if slot.startswith("B") else "Nk.")
        assert f"`{block}.{generic}{last}`" in text or f"`{name}`" in text, name


def test_matmul() -> None:
    init, update = rows_of(matmul())
    # Slots as in the leaf vector: A[i, k], C[i, j] (the written one), B[k, j]; lanes are j.
    assert [update[f"thread_stride.{slot}.is_broadcast"] for slot in ("B0", "B1", "B2")] == [
        1,
        0,
        0,
    ]
    assert [update[f"thread_stride.{slot}.stride"] for slot in ("B1", "B2", "store")] == [1, 1, 1]
    assert update["thread_stride.lanes"] == log(16)
    assert update["thread_stride.B0.sectors"] == update["thread_stride.B2.sectors"] == log(1)
    assert update["thread_stride.B3.is_broadcast"] == update["scope.B3.global"] == 0
    assert update["alloc.store.bytes"] == update["alloc.B1.bytes"] == log(8 * 32 * 4)
    assert [update[f"alloc.{slot}.is_parameter"] for slot in ("B0", "B1", "B2")] == [1, 0, 1]
    assert update["dtype.store.bytes"] == log(4)
    assert update["dtype.store.is_float"] == 1
    assert update["occupancy.parallel_iterations"] == log(8)
    assert update["occupancy.float_ops"] == update["program.float_ops"] == log(2 * 8 * 16 * 32)
    assert update["occupancy.threads"] == update["occupancy.warp_fill"] == 0
    assert (update["program.leaves"], update["program.kernels"]) == (log(2), log(1))
    assert (update["program.depth"], init["program.depth"]) == (log(3), log(3))
    assert update["program.input_bytes"] == log((8 * 16 + 16 * 32) * 4)
    assert init["scope.B0.global"] == 1


def nest_tokens(row: dict[str, float]) -> list[tuple[float, str, bool]]:
    tokens = []
    for level in range(8):
        prefix = f"loop_nest.N{level}."
        kinds = [
            name.removeprefix(f"{prefix}is_")
            for name, value in row.items()
            if name.startswith(f"{prefix}is_") and value and not name.endswith("reduction")
        ]
        if kinds:
            (kind,) = kinds
            tokens.append((row[f"{prefix}extent"], kind, bool(row[f"{prefix}is_reduction"])))
        else:
            assert row[f"{prefix}extent"] == row[f"{prefix}is_reduction"] == 0
    return tokens


def test_loops_are_listed_innermost_first() -> None:
    _, update = rows_of(matmul())
    assert nest_tokens(update) == [
        (log(32), "vectorized", False),
        (log(16), "serial", True),
        (log(8), "parallel", False),
    ]


def test_only_eight_loops_are_listed_and_unit_loops_are_not() -> None:
    loops = [(f"o{number}", 2, "serial") for number in range(9)]
    (row,) = rows_of(copy_of([*loops, ("u", 1, "unrolled"), ("x", 64, "serial")]))  # type: ignore[list-item]
    tokens = nest_tokens(row)
    assert len(tokens) == 8
    assert tokens[0] == (log(64), "serial", False)
    assert tokens[7] == (log(2), "serial", True)
    assert row["program.depth"] == log(10)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, ["vectorized", "serial", "serial"]),
        (3, ["vectorized", "serial", "serial"]),
        (4, ["vectorized", "unrolled", "serial"]),
        (12, ["vectorized", "unrolled", "unrolled"]),
    ],
)
def test_pragma_unrolls_what_its_limit_covers(step: int, expected: list[str]) -> None:
    tree = copy_of([("a", 3, "serial"), ("b", 4, "serial"), ("x", 64, "vectorized")])
    (row,) = rows_of(LoopTree((), [Attribute("pragma_auto_unroll_max_step", step, tree.body)]))
    assert [kind for _, kind, _ in nest_tokens(row)] == expected


def test_nothing_around_a_binding_is_unrolled() -> None:
    tree = copy_of([("a", 2, "serial"), ("x", 64, "threadIdx.x")], is_gpu=True)
    pragma = Attribute("pragma_auto_unroll_max_step", 512, tree.body)
    (row,) = rows_of(LoopTree((), [pragma], is_gpu=True))
    assert [kind for _, kind, _ in nest_tokens(row)] == ["thread", "serial"]


def test_conditions_and_guards() -> None:
    source, target = Buffer("in", "float32", (64,)), Buffer("out", "float32", (64,))
    x = int_var("x")
    inside = binary("lt", x, int_const(60))
    read = load(source, (x,))
    guarded = Expr("call", "float32", (inside, read, ONE), "tir.if_then_else")
    chosen = Expr("select", "float32", (inside, guarded, guarded))
    likely = Expr("call", "bool", (Expr("and", "bool", (inside, inside)),), "tir.likely")
    store = Store(target, (x,), chosen)
    body: list[Node] = [Condition(likely, [Condition(inside, [store], [store])]), store]
    rows = rows_of(LoopTree((source, target), nest([("x", 64, "serial")], body)))
    assert [row["condition.depth"] for row in rows] == [log(2), log(2), 0]
    assert [row["condition.terms"] for row in rows] == [log(3), log(3), 0]
    assert {row["condition.selects"] for row in rows} == {log(1)}
    assert {row["condition.guards"] for row in rows} == {log(2)}


def test_coalescing_and_bank_conflicts() -> None:
    """A 32 x 32 tile is read row by row and stored column by column."""
    fill, drain = rows_of(tiled_copy(pad=0))
    assert fill["thread_stride.lanes"] == log(32)
    # Rows of 32 floats: 128 bytes, four sectors; without conflicts in shared memory.
    assert (fill["scope.store.shared"], fill["scope.B0.shared"] + fill["scope.B1.shared"]) == (1, 1)
    source = next(slot for slot in ("B0", "B1") if fill[f"scope.{slot}.global"])
    assert fill[f"thread_stride.{source}.is_contiguous"] == 1
    assert fill[f"thread_stride.{source}.sectors"] == log(4)
    assert fill[f"thread_stride.{source}.bank_conflicts"] == 0
    assert fill["thread_stride.store.bank_conflicts"] == log(1)
    assert fill["thread_stride.store.sectors"] == 0
    # Columns of the tile: every lane in the same bank, unless rows are padded to 33.
    tile = next(slot for slot in ("B0", "B1") if drain[f"scope.{slot}.shared"])
    assert drain[f"thread_stride.{tile}.stride"] == log(32)
    assert drain[f"thread_stride.{tile}.is_strided"] == 1
    assert drain[f"thread_stride.{tile}.bank_conflicts"] == log(32)
    _, padded = rows_of(tiled_copy(pad=1))
    assert padded[f"thread_stride.{tile}.stride"] == log(33)
    assert padded[f"thread_stride.{tile}.bank_conflicts"] == log(1)
    assert padded["occupancy.shared_bytes"] == log(32 * 33 * 4)


def test_threads_of_a_two_dimensional_block_fill_a_warp() -> None:
    (row,) = rows_of(flat_block())
    assert row["thread_stride.lanes"] == log(32)
    # The rows of `in` lie one after another, those of `out` (400 bytes each) do not.
    kinds = {row[f"thread_stride.{slot}.is_contiguous"] for slot in ("B0", "B1")}
    assert kinds == {0, 1}
    assert row["thread_stride.store.is_irregular"] == 1
    touched = {(400 * y + 4 * x) // 32 for y in range(4) for x in range(8)}
    assert row["thread_stride.store.sectors"] == log(len(touched))
    assert row["occupancy.threads"] == log(32)


def test_a_kernel_has_totals_and_another_one_others() -> None:
    first, second, third = rows_of(two_kernels())
    occupancy = LEAF_EXTRA_NAMES[EXTRA_BLOCKS["occupancy"]]
    assert [first[name] for name in occupancy] == [second[name] for name in occupancy]
    assert first["occupancy.threads"] == log(48)
    assert first["occupancy.warps"] == log(2)
    assert first["occupancy.warp_fill"] == pytest.approx(48 / 64)
    assert first["occupancy.blocks"] == log(7)
    assert first["occupancy.all_threads"] == log(7 * 48)
    assert first["occupancy.vthreads"] == log(2)
    assert first["occupancy.shared_bytes"] == log(96 * 4)
    # One register a virtual thread: the buffer has no scope but is allocated for a thread.
    assert first["occupancy.local_bytes"] == log(2 * 4)
    assert first["scope.store.shared"] == second["scope.store.local"] == 1
    assert first["occupancy.float_ops"] == log(7 * 2 * 48)
    assert first["occupancy.float_ops_per_thread"] == log(2)
    assert first["occupancy.leaves"] == log(2)
    assert third["occupancy.threads"] == third["occupancy.warps"] == log(1)
    assert third["occupancy.blocks"] == log(5)
    assert third["thread_stride.lanes"] == 0
    assert {row["program.kernels"] for row in (first, second, third)} == {log(2)}
    assert {row["program.float_ops"] for row in (first, second, third)} == {log(7 * 2 * 48)}


def test_what_a_cpu_allocates_inside_a_loop_is_local() -> None:
    row_buffer, target = Buffer("row", "float32", (8, 64)), Buffer("out", "float32", (8, 64))
    i, x = int_var("i"), int_var("x")
    fill = Store(row_buffer, (i, x), ONE)
    drain = Store(target, (i, int_var("z")), load(row_buffer, (i, int_var("z"))))
    inner = [*nest([("x", 64, "serial")], [fill]), *nest([("z", 64, "vectorized")], [drain])]
    allocation = Allocation(row_buffer, (1, 64), inner)
    rows = rows_of(LoopTree((target,), [Loop("i", 0, 8, "parallel", [allocation])]))
    assert [row["scope.store.local"] for row in rows] == [1, 0]
    assert rows[0]["occupancy.local_bytes"] == log(64 * 4)
    assert rows[0]["alloc.store.bytes"] == log(64 * 4)


def test_index_read_from_memory_is_irregular() -> None:
    rows, table = Buffer("rows", "int32", (64,)), Buffer("table", "float16", (100, 8))
    target = Buffer("out", "float16", (64,))
    x = int_var("x")
    store = Store(target, (x,), load(table, (load(rows, (x,)), int_const(0))))
    (row,) = rows_of(LoopTree((rows, table, target), nest([("x", 64, "serial")], [store])))
    slots = [f"B{slot}" for slot in range(3)]
    assert sorted(row[f"thread_stride.{slot}.is_irregular"] for slot in slots) == [0, 0, 1]
    assert sorted(row[f"dtype.{slot}.bytes"] for slot in slots) == [log(2), log(2), log(4)]
    assert row["dtype.store.is_float"] == 1


def test_a_store_outside_of_loops_has_no_lanes() -> None:
    out = Buffer("out", "int8", (1,))
    store = Store(out, (int_const(0),), Expr("const", "int8", (), 1))
    for is_gpu in (False, True):
        (row,) = rows_of(LoopTree((out,), [store], is_gpu))
        block = LEAF_EXTRA_NAMES[EXTRA_BLOCKS["thread_stride"]]
        assert not any(row[name] for name in block)
        assert row["dtype.store.is_float"] == 0
        assert row["program.kernels"] == log(0 if is_gpu else 1)


@pytest.mark.parametrize("unit", [("u", 1, "serial"), ("u", 1, "vectorized")])
def test_unit_loops_change_nothing(unit: tuple[str, int, str]) -> None:
    plain = compact_ast(copy_of([("x", 64, "serial")]))
    for loops in ([unit, ("x", 64, "serial")], [("x", 64, "serial"), unit]):
        changed = compact_ast(copy_of(loops))  # type: ignore[arg-type]
        assert np.array_equal(changed.leaf_extra, plain.leaf_extra)


@pytest.mark.parametrize("extent", [0, Expr("add", "int32", (int_var("o"), int_const(1)))])
def test_rejected_programs_have_finite_columns(extent: int | Expr) -> None:
    tree = copy_of([("x", 64, "serial")])
    loop = tree.body[0]
    assert isinstance(loop, Loop)
    loop.extent = extent
    ast = compact_ast(LoopTree(tree.parameters, [Loop("o", 0, 8, "serial", [loop])]))
    assert not ast.valid
    assert np.isfinite(ast.leaf_extra).all()


def nests() -> list[Node]:
    """Returns three nests that have nothing to do with one another."""
    made: list[Node] = []
    for number, kind in enumerate(("serial", "parallel", "vectorized")):
        source = Buffer("in", "float32", (8, 30 + number))
        target = Buffer("out", "float32", (8, 30 + number))
        i, j = int_var(f"i{number}"), int_var(f"j{number}")
        value = binary("mul", load(source, (i, j)), ONE)
        loops = nest(
            [(f"i{number}", 8, "serial"), (f"j{number}", 30 + number, kind)],  # type: ignore[list-item]
            [Store(target, (i, j), value)],
        )
        made.append(Allocation(target, target.shape, loops))
    return made


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_independent_nests_in_another_order_are_the_same_rows(order: Sequence[int]) -> None:
    body = nests()
    plain = compact_ast(LoopTree((), body)).leaf_extra
    changed = compact_ast(LoopTree((), [body[number] for number in order])).leaf_extra
    assert np.array_equal(changed, plain[list(order)])
    assert len(np.unique(plain, axis=0)) == 3


def test_the_leaf_vectors_have_the_same_slots() -> None:
    """The slots of both blocks are the same accesses: their element sizes give the bytes."""
    (extra,) = rows_of(copy_of([("x", 64, "serial")]))
    (row,) = leaf_vectors(copy_of([("x", 64, "serial")]))
    assert len(row) == 164
    assert extra["dtype.B0.bytes"] == extra["dtype.B1.bytes"] == log(4)
    assert extra["alloc.B2.is_parameter"] == 0


def test_a_store_under_a_condition_counts_the_iterations_that_run() -> None:
    target = Buffer("out", "float32", (8,))
    i, j, k = (int_var(name) for name in "ijk")
    first = Expr("eq", "bool", (binary("add", binary("mul", j, int_const(4)), k), int_const(0)))
    inside = Expr("lt", "bool", (int_const(5), i))  # 6 and 7
    update = binary("add", load(target, (i,)), ONE)
    body: list[Node] = [
        Condition(first, [Store(target, (i,), ONE)]),
        Condition(inside, [Store(target, (i,), update)], [Store(target, (i,), ONE)]),
        Condition(Expr("lt", "bool", (load(target, (i,)), ONE)), [Store(target, (i,), ONE)]),
    ]
    loops = nest([("i", 8, "serial"), ("j", 3, "serial"), ("k", 4, "serial")], body)
    tree = LoopTree((target,), loops)
    counted = [row["execution.iterations"] for row in rows_of(tree)]
    assert counted == pytest.approx([log(8), log(2 * 12), log(6 * 12), log(96)], rel=1e-6)
    (native,) = compact_asts([tree], [None])
    assert isinstance(native, CompactAst)
    assert np.array_equal(native.leaf_extra, compact_ast(tree).leaf_extra)
    assert len(set(leaf_vectors(tree)[0][161:162] + leaf_vectors(tree)[1][161:162])) == 1


def test_integer_operations_count_by_their_narrowest_data() -> None:
    narrow, wide = Buffer("A", "int8", (64,)), Buffer("C", "int32", (64,))
    x = int_var("x")
    widened = Expr("cast", "int32", (load(narrow, (x,)),))
    product = binary("mul", widened, widened)
    value = binary("add", load(wide, (x,)), product)
    high = binary("max", value, Expr("cast", "int32", (binary("add", x, x),)))
    dot = Expr("call", "int32", (load(wide, (x,)),), "tir.call_llvm_pure_intrin")
    stores: list[Node] = [Store(wide, (x,), high), Store(wide, (x,), dot)]
    sums, dots = rows_of(LoopTree((narrow, wide), nest([("x", 64, "serial")], stores)))
    used = {name: value for name, value in sums.items() if name.startswith("integer.") and value}
    assert used == {
        "integer.int8.addsub": log(64), "integer.int8.mul": log(64), "integer.int8.other": log(64),
        "integer.program_ops": log(64 * 4),
    }  # fmt: skip
    assert dots["integer.intrinsics"] == log(64)


def test_data_of_another_version_is_refused(tmp_path: Path) -> None:
    manifest = {"schema": {**schema_versions(), "leaf_extra": 0}, "shards": []}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="extracted with schema versions"):
        read_manifest(tmp_path)


# Addresses of lanes, against values computed one by one.

_divisors = st.integers(1, 40).map(int_const)
_atoms = st.sampled_from(["t", "u"]).map(int_var) | st.integers(-9, 40).map(int_const)
_expressions = st.recursive(
    _atoms,
    lambda children: (
        st.builds(binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), children, children)
        | st.builds(
            binary, st.sampled_from(["floordiv", "floormod", "div", "mod"]), children, _divisors
        )
    ),
    max_leaves=7,
)


def value_at(expr: Expr, lane: int) -> int:
    if expr.op == "const":
        return int(expr.value)
    if expr.op == "var":
        return lane if expr.value == "t" else 3
    left, right = (value_at(argument, lane) for argument in expr.args)
    quotient = abs(left) // right * (1 if left >= 0 else -1) if right > 0 else 0
    results = {
        "add": left + right, "sub": left - right, "mul": left * right, "min": min(left, right),
        "max": max(left, right), "div": quotient, "mod": left - quotient * right,
    }  # fmt: skip
    if expr.op in results:
        return results[expr.op]
    return left // right if expr.op == "floordiv" else left % right


@given(st.lists(_expressions, min_size=1, max_size=3), st.integers(1, 32), st.sampled_from([1, 4]))
def test_lanes_are_evaluated_exactly(exprs: list[Expr], count: int, element_bytes: int) -> None:
    analysis = IntervalAnalysis()
    bit = analysis.declare("t", 0, count)
    analysis.declare("u", 3, 5)
    evaluator = LaneEvaluator(analysis)
    evaluator.choose(LaneSet(count, {"t": tuple(range(count))}, bit))
    indices = tuple(analysis.intern(expr) for expr in exprs)
    extents = (7, 5, 3)[: len(exprs)]
    found = evaluator.access([indices], extents, element_bytes, sector_bytes=32, in_banks=True)
    addresses = []
    for lane in range(count):
        address = 0
        for expr, extent in zip(exprs, extents, strict=True):
            address = address * extent + value_at(expr, lane)
        addresses.append(address)
    stride = addresses[1] - addresses[0] if count > 1 else 0
    words = {(address - min(addresses)) * element_bytes // 4 for address in addresses}
    assert found == LaneAccess(
        stride,
        addresses != [addresses[0] + lane * stride for lane in range(count)],
        len({address * element_bytes // 32 for address in addresses}),
        max(sum(word % 32 == bank for word in words) for bank in range(32)),
    )


def test_the_least_stride_and_the_worst_sectors_of_several_accesses() -> None:
    analysis = IntervalAnalysis()
    bit = analysis.declare("t", 0, 32)
    evaluator = LaneEvaluator(analysis)
    evaluator.choose(LaneSet(32, {"t": tuple(range(32))}, bit))
    lane = int_var("t")
    near = (analysis.intern(binary("mul", lane, int_const(-1))),)
    far = (analysis.intern(binary("mul", lane, int_const(64))),)
    for accesses in ([near, far], [far, near, near]):
        found = evaluator.access(accesses, (4096,), 4, sector_bytes=32, in_banks=False)
        assert found == LaneAccess(-1, False, 32, 0)
