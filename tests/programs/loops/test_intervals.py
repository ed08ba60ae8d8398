"""Interval analysis: bounds hold for every point and are tight where they should be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.programs.loops.expr import Buffer, Expr, int_const, int_var, load
from tests.programs.reference.intervals import UNBOUNDED, IntervalAnalysis

RANGES = {"i": (0, 3), "j": (2, 4), "k": (-3, 5)}


def binary(op: str, left: Expr, right: Expr) -> Expr:
    return Expr(op, "int32", (left, right))


def value_of(expr: Expr, point: dict[str, int]) -> int:
    if expr.op == "const":
        return int(expr.value)
    if expr.op == "var":
        return point[expr.value]
    if expr.op == "select":
        condition, first, second = expr.args
        left, right = (value_of(side, point) for side in condition.args)
        return value_of(first if left < right else second, point)
    left, right = (value_of(argument, point) for argument in expr.args)
    match expr.op:
        case "add":
            return left + right
        case "sub":
            return left - right
        case "mul":
            return left * right
        case "floordiv":
            return left // right
        case "floormod":
            return left % right
        case "div":
            return int(left / right)
        case "mod":
            return left - right * int(left / right)
        case "min":
            return min(left, right)
        case "max":
            return max(left, right)
    raise AssertionError(expr.op)


def select(left: Expr, right: Expr, first: Expr, second: Expr) -> Expr:
    return Expr("select", "int32", (Expr("lt", "bool", (left, right)), first, second))


atoms = st.sampled_from(sorted(RANGES)).map(int_var) | st.integers(-20, 40).map(int_const)
divisors = st.integers(1, 12).map(int_const)


def grow(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return (
        st.builds(binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), children, children)
        | st.builds(
            binary, st.sampled_from(["floordiv", "floormod", "div", "mod"]), children, divisors
        )
        | st.builds(select, children, children, children, children)
    )


expressions = st.recursive(atoms, grow, max_leaves=8)


def declared() -> tuple[IntervalAnalysis, dict[str, int]]:
    analysis = IntervalAnalysis()
    bits = {name: analysis.declare(name, low, extent) for name, (low, extent) in RANGES.items()}
    return analysis, bits


@given(st.lists(expressions, min_size=1, max_size=3), st.permutations(sorted(RANGES)))
def test_every_value_is_inside(exprs: list[Expr], order: list[str]) -> None:
    analysis, bits = declared()
    nodes = [analysis.intern(expr) for expr in exprs]
    wide: list[str] = []
    for name in ["", *order]:
        if name:
            wide.append(name)
        values = [
            range(low, low + extent) if other in wide else range(low, low + 1)
            for other, (low, extent) in RANGES.items()
        ]
        mask = sum(bits[other] for other in wide)
        for expr, node in zip(exprs, nodes, strict=True):
            low, high = analysis.interval(node, mask)
            for point in itertools.product(*values):
                assert low <= value_of(expr, dict(zip(RANGES, point, strict=True))) <= high


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (binary("add", binary("mul", int_var("i"), int_const(8)), int_var("k")), (-3, 17)),
        (binary("floormod", int_var("i"), int_const(8)), (0, 2)),
        (binary("floormod", int_var("k"), int_const(8)), (0, 7)),
        (binary("floordiv", int_var("k"), int_const(2)), (-2, 0)),
        (binary("mod", int_var("k"), int_const(2)), (-1, 1)),
        (binary("max", int_var("k"), int_var("j")), (2, 5)),
        (load(Buffer("table", "int32", (9,)), (int_var("i"),)), UNBOUNDED),
        (Expr("cast", "int32", (Expr("const", "float32", (), 0.5),)), UNBOUNDED),
    ],
)
def test_bounds_of_wide_variables(expr: Expr, expected: tuple[int, int]) -> None:
    analysis, bits = declared()
    assert analysis.interval(analysis.intern(expr), sum(bits.values())) == expected


def test_bounds_depend_on_what_is_wide() -> None:
    analysis, bits = declared()
    node = analysis.intern(binary("add", binary("mul", int_var("i"), int_const(8)), int_var("j")))
    assert analysis.interval(node, 0) == (2, 2)
    assert analysis.interval(node, bits["j"]) == (2, 5)
    assert analysis.interval(node, bits["i"]) == (2, 18)
    assert analysis.interval(node, bits["i"] | bits["j"]) == (2, 21)


def test_extent_may_depend_on_an_outer_variable() -> None:
    analysis = IntervalAnalysis()
    outer = analysis.declare("outer", 0, 4)
    inner = analysis.declare(
        "inner", int_var("outer"), binary("add", int_var("outer"), int_const(1))
    )
    node = analysis.intern(int_var("inner"))
    assert analysis.interval(node, inner) == (0, 0)
    low, high = analysis.interval(node, outer | inner)
    reached = [start + step for start in range(4) for step in range(start + 1)]
    assert (low, high) == (min(reached), max(reached))


def test_equal_expressions_are_one_node() -> None:
    analysis, bits = declared()
    first = analysis.intern(binary("add", int_var("i"), int_const(1)))
    second = analysis.intern(binary("add", int_var("i"), int_const(1)))
    assert first is second
    assert first.mask == bits["i"]
