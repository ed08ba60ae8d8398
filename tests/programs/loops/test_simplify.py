"""Index simplification keeps values, and its bounds hold, on random expressions and points."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.programs.loops.expr import Expr, expr_text, int_const, int_var
from cdmpp.programs.loops.simplify import Simplifier

EXTENTS = {"a": 3, "b": 8, "c": 12, "d": 1}
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "floormod": operator.mod, "min": min, "max": max, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def evaluate(expr: Expr, point: dict[str, int]) -> int:
    if expr.op == "var":
        return point[expr.value]
    if expr.op == "const":
        return int(expr.value)
    args = [evaluate(argument, point) for argument in expr.args]
    if expr.op == "select":
        return args[1] if args[0] else args[2]
    if expr.op in ("and", "or", "not"):
        return int({"and": all(args), "or": any(args), "not": not args[0]}[expr.op])
    return int(OPERATIONS[expr.op](*args))


def binary(op: str, left: Expr, right: Expr) -> Expr:
    return Expr(op, "int32", (left, right))


leaves = st.sampled_from(sorted(EXTENTS)).map(int_var) | st.integers(-9, 40).map(int_const)
positive = st.integers(1, 24).map(int_const)


def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return (
        st.builds(binary, st.sampled_from(["add", "sub", "min", "max"]), inner, inner)
        | st.builds(binary, st.just("mul"), inner, st.integers(-6, 16).map(int_const))
        | st.builds(binary, st.sampled_from(["floordiv", "floormod"]), inner, positive)
    )


indices = st.recursive(leaves, grow, max_leaves=12)
comparisons = st.builds(
    lambda op, a, b: Expr(op, "bool", (a, b)),
    st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), indices, indices,
)  # fmt: skip
points = st.fixed_dictionaries({n: st.integers(0, e - 1) for n, e in EXTENTS.items()})


def simplifier() -> Simplifier:
    return Simplifier({name: (0, extent - 1) for name, extent in EXTENTS.items()})


@settings(max_examples=150, deadline=None)
@given(indices, st.lists(points, min_size=1, max_size=6))
def test_index_keeps_its_value_and_bounds_hold(expr: Expr, values: list[dict[str, int]]) -> None:
    rules = simplifier()
    simple = rules.simplify(expr)
    low, high = rules.bounds_of(rules.linear(expr))
    for point in values:
        expected = evaluate(expr, point)
        assert evaluate(simple, point) == expected
        assert low <= expected <= high


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(comparisons, comparisons, st.lists(points, min_size=1, max_size=6))
def test_condition_keeps_its_value(first: Expr, second: Expr, values: list[dict[str, int]]) -> None:
    for op in ("and", "or"):
        both = Expr(op, "bool", (first, second))
        simple = simplifier().simplify(both)
        for point in values:
            assert bool(evaluate(simple, point)) == bool(evaluate(both, point))


@settings(max_examples=120, deadline=None)
@given(comparisons, indices, st.lists(points, min_size=1, max_size=10))
def test_assumed_condition_only_changes_points_where_it_fails(
    condition: Expr, expr: Expr, values: list[dict[str, int]]
) -> None:
    rules = simplifier()
    with rules.assume(rules.simplify(condition)):
        simple = rules.simplify(expr)
    after = rules.simplify(expr)
    for point in values:
        if evaluate(condition, point):
            assert evaluate(simple, point) == evaluate(expr, point)
        assert evaluate(after, point) == evaluate(expr, point)


A, B, C = (int_var(name) for name in "abc")
SUM = binary("add", binary("mul", B, int_const(4)), A)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (binary("floordiv", SUM, int_const(4)), "b"),
        (binary("floormod", SUM, int_const(4)), "a"),
        (binary("floordiv", binary("floordiv", C, int_const(2)), int_const(3)), "floordiv(c, 6)"),
        (binary("floormod", B, int_const(8)), "b"),
        (
            binary(
                "add",
                binary("mul", binary("floordiv", C, int_const(5)), int_const(5)),
                binary("floormod", C, int_const(5)),
            ),
            "c",
        ),
    ],
)
def test_canonical_forms(expr: Expr, text: str) -> None:
    assert expr_text(simplifier().simplify(expr)) == text
