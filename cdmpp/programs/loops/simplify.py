"""Integer simplification of index expressions to the form of TVM's canonical simplifier.

An integer expression becomes a sum of terms `coefficient * ((base mod upper) div lower)` and a
constant. The rules follow the original, including its gaps: the compact AST counts the remaining
operations and rejects loops with a symbolic extent, so simplifying more would change features.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from cdmpp.programs.loops.expr import Expr, int_const

Bounds: TypeAlias = tuple[float, float]
#: (base, lower, upper): (base mod upper) div lower; upper 0 means no mod.
Term: TypeAlias = tuple[Expr, int, int]

INFINITY = float("inf")
_EVERYTHING: Bounds = (-INFINITY, INFINITY)
_TRUE = Expr("const", "bool", (), True)
_FALSE = Expr("const", "bool", (), False)
_MIRRORED = {"gt": "lt", "ge": "le"}
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_INT_ARITHMETIC = frozenset(
    ("add", "sub", "mul", "floordiv", "floormod", "div", "mod", "min", "max")
)


@dataclass(frozen=True)
class Linear:
    """A canonical integer expression: `constant + sum(coefficient * term)`; no coefficient is 0."""

    terms: dict[Term, int]
    constant: int = 0

    @property
    def is_constant(self) -> bool:
        """Whether the expression has no terms."""
        return not self.terms

    def __hash__(self) -> int:
        return hash((frozenset(self.terms.items()), self.constant))


def constant(value: int) -> Linear:
    """Returns the canonical form of a number."""
    return Linear({}, value)


ZERO = constant(0)
ONE = constant(1)


class Simplifier:
    """Simplifies expressions over variables with known bounds.

    Args:
        bounds: inclusive bounds of variables; unknown variables are unbounded.
    """

    def __init__(self, bounds: dict[str, Bounds] | None = None) -> None:
        self._bounds: dict[str, Bounds] = dict(bounds or {})
        self._linear: dict[Expr, Linear] = {}
        self._expr_bounds: dict[Expr, Bounds] = {}
        self._simple: dict[Expr, Expr] = {}
        self._known: dict[frozenset[tuple[Term, int]], Bounds] = {}

    def bind(self, name: str, low: float, high: float) -> None:
        """Sets the inclusive bounds of a variable."""
        if self._bounds.get(name) != (low, high):
            self._bounds[name] = (low, high)
            self._forget()

    @contextmanager
    def assume(self, condition: Expr) -> Iterator[None]:
        """Assumes `condition` (comparisons with a constant, joined by and) in a `with` block."""
        before = dict(self._known)
        self._learn(condition)
        self._forget()
        try:
            yield
        finally:
            self._known = before
            self._forget()

    def _forget(self) -> None:
        self._linear.clear()
        self._expr_bounds.clear()
        self._simple.clear()

    def _learn(self, condition: Expr) -> None:
        if condition.op == "and":
            self._learn(condition.args[0])
            self._learn(condition.args[1])
        elif condition.op == "call" and condition.value == "tir.likely":
            self._learn(condition.args[0])
        elif condition.op in ("lt", "le", "gt", "ge") and _is_int(condition.args[0].dtype):
            op, (a, b) = condition.op, condition.args
            if op in _MIRRORED:
                op, a, b = _MIRRORED[op], b, a
            difference = self.add(self.linear(a), self.linear(b), -1)
            limit = -difference.constant - (1 if op == "lt" else 0)
            if difference.terms:
                self._narrow(difference.terms, -INFINITY, limit)
                negated = {t: -c for t, c in difference.terms.items()}
                self._narrow(negated, -limit, INFINITY)

    def _narrow(self, terms: dict[Term, int], low: float, high: float) -> None:
        key = frozenset(terms.items())
        old = self._known.get(key, _EVERYTHING)
        self._known[key] = (max(low, old[0]), min(high, old[1]))

    # Arithmetic on canonical forms.

    def add(self, left: Linear, right: Linear, scale: int = 1) -> Linear:
        """Returns `left + scale * right`."""
        if scale == 0 or (not right.terms and right.constant == 0):
            return left
        terms = dict(left.terms)
        merge = False
        for term, coefficient in right.terms.items():
            merge = merge or term[1] != 1 or term[2] != 0
            total = terms.get(term, 0) + scale * coefficient
            if total:
                terms[term] = total
            else:
                del terms[term]
        value = left.constant + scale * right.constant
        if merge or any(term[1] != 1 or term[2] != 0 for term in left.terms):
            _merge_divided(terms)
        return Linear(terms, value)

    def scale(self, form: Linear, factor: int) -> Linear:
        """Returns `form * factor`."""
        if factor == 0:
            return ZERO
        return Linear({t: c * factor for t, c in form.terms.items()}, form.constant * factor)

    def _divisible_parts(self, form: Linear, divisor: int) -> tuple[Linear, Linear]:
        """Returns the quotient of the terms divisible by `divisor`, and the other terms."""
        quotient = {t: c // divisor for t, c in form.terms.items() if c % divisor == 0}
        rest = {t: c for t, c in form.terms.items() if c % divisor}
        if form.constant % divisor == 0:
            return Linear(quotient, form.constant // divisor), Linear(rest, 0)
        return Linear(quotient, 0), Linear(rest, form.constant)

    def floordiv(self, form: Linear, divisor: int) -> Linear:
        """Returns `floor(form / divisor)` for a positive divisor."""
        if divisor == 1:
            return form
        quotient, rest = self._divisible_parts(form, divisor)
        if rest.is_constant:
            return self.add(quotient, constant(rest.constant // divisor))
        low, high = self.bounds_of(rest)
        if low > -INFINITY and high < INFINITY and low // divisor == high // divisor:
            return self.add(quotient, constant(int(low // divisor)))
        term, coefficient = self._single(rest)
        term, coefficient = _divide_term(term, coefficient, divisor, self._opaque)
        return self.add(quotient, _of_term(term, coefficient))

    def floormod(self, form: Linear, divisor: int) -> Linear:
        """Returns `form - divisor * floor(form / divisor)` for a positive divisor."""
        if divisor == 1:
            return ZERO
        _, rest = self._divisible_parts(form, divisor)
        if rest.is_constant:
            return constant(rest.constant % divisor)
        low, high = self.bounds_of(rest)
        if low >= 0 and high < divisor:
            return rest
        if low > -INFINITY and high < INFINITY and low // divisor == high // divisor:
            return self.add(rest, constant(-int(low // divisor) * divisor))
        return self._mod_term(*self._single(rest), divisor)

    def _mod_term(self, term: Term, coefficient: int, divisor: int) -> Linear:
        base, lower, upper = term
        if coefficient % divisor == 0:
            return ZERO
        if coefficient > 0 and divisor % coefficient == 0:
            new_upper = lower * (divisor // coefficient)
            if upper == 0 or upper % new_upper == 0:
                if upper == 0 or new_upper >= upper:
                    return _of_term((base, lower, new_upper), coefficient)
                inner = self.floormod(self.linear(base), new_upper)
                return self.scale(self.floordiv(inner, lower), coefficient)
            if new_upper % upper == 0:
                return _of_term(term, coefficient)
        index = self.to_expr(_of_term(term, coefficient))
        return _of_term((index, 1, divisor), 1)

    def _single(self, form: Linear) -> tuple[Term, int]:
        """Returns a one-term form of `form`; a sum becomes one opaque base."""
        if len(form.terms) == 1 and form.constant == 0:
            return next(iter(form.terms.items()))
        return (self.to_expr(form), 1, 0), 1

    def _opaque(self, term: Term, coefficient: int) -> Term:
        return self.to_expr(_of_term(term, coefficient)), 1, 0

    # Bounds.

    def _term_bounds(self, term: Term) -> Bounds:
        base, lower, upper = term
        low, high = self.expr_bounds(base)
        if upper:
            if low > -INFINITY and high < INFINITY and low // upper == high // upper:
                low, high = low % upper, high % upper
            else:
                low, high = 0, upper - 1
        if lower != 1:
            low = low // lower if low > -INFINITY else low
            high = high // lower if high < INFINITY else high
        return low, high

    def bounds_of(self, form: Linear) -> Bounds:
        """Returns inclusive bounds of a canonical form."""
        low = high = 0.0
        for term, coefficient in form.terms.items():
            term_low, term_high = self._term_bounds(term)
            ends = (coefficient * term_low, coefficient * term_high)
            low, high = low + min(ends), high + max(ends)
        if self._known:
            known = self._known.get(frozenset(form.terms.items()))
            if known is not None:
                low, high = max(low, known[0]), min(high, known[1])
        return low + form.constant, high + form.constant

    def expr_bounds(self, expr: Expr) -> Bounds:
        """Returns inclusive bounds of any integer expression."""
        if expr.op == "const":
            return float(expr.value), float(expr.value)
        if expr.op == "var":
            low, high = self._bounds.get(expr.value, _EVERYTHING)
            if self._known:
                known = self._known.get(frozenset({((expr, 1, 0), 1)}), _EVERYTHING)
                return max(low, known[0]), min(high, known[1])
            return low, high
        found = self._expr_bounds.get(expr)
        if found is None:
            self._expr_bounds[expr] = found = self._composite_bounds(expr)
        return found

    def _composite_bounds(self, expr: Expr) -> Bounds:
        if expr.op in ("min", "max"):
            left, right = map(self.expr_bounds, expr.args)
            pick = min if expr.op == "min" else max
            return pick(left[0], right[0]), pick(left[1], right[1])
        if expr.op == "select":
            left, right = map(self.expr_bounds, expr.args[1:])
            return min(left[0], right[0]), max(left[1], right[1])
        if expr.op == "cast" and expr.dtype.startswith("int"):
            return self.expr_bounds(expr.args[0])
        if expr.op in ("add", "sub", "mul", "floordiv", "floormod"):
            form = self.linear(expr)
            if form.terms and _of_term((expr, 1, 0), 1) == form:
                return _EVERYTHING
            return self.bounds_of(form)
        return _EVERYTHING

    # Expressions.

    def linear(self, expr: Expr) -> Linear:
        """Returns the canonical form of an integer expression."""
        if expr.op == "const":
            return constant(int(expr.value))
        if expr.op == "var":
            return _of_term((expr, 1, 0), 1)
        found = self._linear.get(expr)
        if found is None:
            self._linear[expr] = found = self._to_linear(expr)
        return found

    def _to_linear(self, expr: Expr) -> Linear:
        if expr.op not in _INT_ARITHMETIC:
            simple = self._simplified(expr)
            if simple.op in _INT_ARITHMETIC or simple.op in ("const", "var"):
                return self.linear(simple)
            return _of_term((simple, 1, 0), 1)
        left, right = self.linear(expr.args[0]), self.linear(expr.args[1])
        if expr.op in ("add", "sub"):
            return self.add(left, right, 1 if expr.op == "add" else -1)
        if expr.op == "mul" and (left.is_constant or right.is_constant):
            if left.is_constant:
                left, right = right, left
            return self.scale(left, right.constant)
        if right.is_constant and right.constant > 0:
            if expr.op == "floordiv" or (expr.op == "div" and self.bounds_of(left)[0] >= 0):
                return self.floordiv(left, right.constant)
            if expr.op == "floormod" or (expr.op == "mod" and self.bounds_of(left)[0] >= 0):
                return self.floormod(left, right.constant)
        if expr.op in ("min", "max"):
            low, high = self.bounds_of(self.add(left, right, -1))
            if low >= 0 or high <= 0:
                return left if (low >= 0) == (expr.op == "max") else right
        args = (self.to_expr(left), self.to_expr(right))
        return _of_term((Expr(expr.op, expr.dtype, args), 1, 0), 1)

    def to_expr(self, form: Linear) -> Expr:
        """Returns the expression of a canonical form: positive terms, then negative ones.

        The constant comes after the positive terms, or last if it is negative.
        """
        result: Expr | None = None
        negative: list[tuple[Term, int]] = []
        for term, coefficient in form.terms.items():
            if coefficient < 0:
                negative.append((term, coefficient))
            else:
                result = _plus(result, _term_expr(term, coefficient))
        if form.constant > 0:
            result = _plus(result, int_const(form.constant))
        for term, coefficient in negative:
            result = _minus(result, _term_expr(term, -coefficient))
        if form.constant < 0:
            result = _minus(result, int_const(-form.constant))
        return int_const(0) if result is None else result

    def simplify(self, expr: Expr) -> Expr:
        """Returns the expression with canonical integer parts and without decided conditions."""
        if not expr.args:
            return expr
        found = self._simple.get(expr)
        if found is None:
            self._simple[expr] = found = self._simplified(expr)
        return found

    def _simplified(self, expr: Expr) -> Expr:
        if expr.dtype.startswith("int") and expr.op in _INT_ARITHMETIC:
            return self.to_expr(self.linear(expr))
        if expr.op in _COMPARISONS and expr.args[0].dtype.startswith("int"):
            return self._comparison(expr)
        if expr.op in ("and", "or"):
            left, right = self.simplify(expr.args[0]), self.simplify(expr.args[1])
            ends, passes = (_FALSE, _TRUE) if expr.op == "and" else (_TRUE, _FALSE)
            if ends in (left, right):
                return ends
            if left in (passes, right):
                return right
            return left if right == passes else Expr(expr.op, "bool", (left, right))
        if expr.op == "not":
            inner = self.simplify(expr.args[0])
            if inner.op == "const":
                return _FALSE if inner.value else _TRUE
            return Expr("not", "bool", (inner,))
        if expr.op == "select" or (expr.op == "call" and expr.value == "tir.if_then_else"):
            condition = self.simplify(expr.args[0])
            if condition.op == "const":
                return self.simplify(expr.args[1 if condition.value else 2])
            args = (condition, self.simplify(expr.args[1]), self.simplify(expr.args[2]))
            if expr.op == "select" and args[1] == args[2]:
                return args[1]
            return Expr(expr.op, expr.dtype, args, expr.value)
        if expr.op == "call" and expr.value == "tir.likely":
            inner = self.simplify(expr.args[0])
            return inner if inner.op == "const" else Expr("call", "bool", (inner,), expr.value)
        return _fold_constants(self._with_simple_args(expr))

    def _with_simple_args(self, expr: Expr) -> Expr:
        if not expr.args:
            return expr
        args = tuple(self.simplify(argument) for argument in expr.args)
        return Expr(expr.op, expr.dtype, args, expr.value)

    def _comparison(self, expr: Expr) -> Expr:
        op, (a, b) = expr.op, expr.args
        if op in _MIRRORED:
            op, a, b = _MIRRORED[op], b, a
        left, right = self.linear(a), self.linear(b)
        difference = self.add(left, right, -1)
        low, high = self.bounds_of(difference)
        if op in ("lt", "le"):
            edge = -1 if op == "lt" else 0
            if high <= edge:
                return _TRUE
            if low > edge:
                return _FALSE
        elif low > 0 or high < 0 or low == high == 0:
            return _TRUE if (low == high == 0) == (op == "eq") else _FALSE
        return self._balanced_comparison(op, difference, left, right)

    def _balanced_comparison(
        self, op: str, difference: Linear, left: Linear, right: Linear
    ) -> Expr:
        """Returns the comparison with its constant terms combined on the side that was constant."""
        if op in ("lt", "le") and (left.is_constant or right.is_constant):
            moved = difference.constant
            variable = Linear(difference.terms)
            if right.is_constant:
                # terms + moved < 0  ->  terms < -moved, divided by a common factor
                limit = -moved - (0 if op == "le" else 1)
                variable, limit = _divide_limit(variable, limit)
                last = limit + (0 if op == "le" else 1)
                return Expr(op, "bool", (self.to_expr(variable), int_const(last)))
            variable = self.scale(variable, -1)
            # moved - terms <= 0  ->  moved <= terms
            limit = -moved - (0 if op == "le" else 1)
            variable, limit = _divide_limit(self.scale(variable, -1), limit)
            first = -limit - (0 if op == "le" else 1)
            positive = self.to_expr(self.scale(variable, -1))
            return Expr(op, "bool", (int_const(first), positive))
        return Expr(op, "bool", (self.to_expr(left), self.to_expr(right)))


def _of_term(term: Term, coefficient: int) -> Linear:
    return Linear({term: coefficient}) if coefficient else ZERO


def _divide_limit(variable: Linear, limit: int) -> tuple[Linear, int]:
    """Removes the coefficient and the division of a single term from `variable <= limit`."""
    if len(variable.terms) == 1:
        ((base, lower, upper), coefficient) = next(iter(variable.terms.items()))
        limit = limit // abs(coefficient)
        if coefficient > 0:
            return _of_term((base, 1, upper), 1), (limit + 1) * lower - 1
        return _of_term((base, 1, upper), -1), limit * lower
    return variable, limit


def _divide_term(term: Term, coefficient: int, divisor: int, opaque: object) -> tuple[Term, int]:
    base, lower, upper = term
    if coefficient % divisor == 0:
        return term, coefficient // divisor
    if coefficient > 0 and divisor % coefficient == 0:
        factor = divisor // coefficient
        if upper == 0 or upper % (lower * factor) == 0:
            return (base, lower * factor, upper), 1
        if upper <= lower * factor:
            return term, 0
        modulo = Expr("floormod", "int32", (base, int_const(upper)))
        return (modulo, lower * factor, 0), 1
    assert callable(opaque)
    base, lower, upper = opaque(term, coefficient)
    return (base, lower * divisor, upper), 1


def _merge_divided(terms: dict[Term, int]) -> None:
    """Merges adjacent div and mod parts, (x div c)*c + x mod c = x, in place."""
    changed = True
    while changed:
        changed = False
        by_base: dict[Expr, list[Term]] = {}
        for term in terms:
            by_base.setdefault(term[0], []).append(term)
        for base, group in by_base.items():
            for low_part, high_part in _neighbours(group):
                ratio = low_part[2] // low_part[1]
                if terms[high_part] != terms[low_part] * ratio:
                    continue
                coefficient = terms.pop(low_part)
                del terms[high_part]
                joined = (base, low_part[1], high_part[2])
                total = terms.pop(joined, 0) + coefficient
                if total:
                    terms[joined] = total
                changed = True
                break
            if changed:
                break


def _neighbours(group: Iterable[Term]) -> list[tuple[Term, Term]]:
    terms = list(group)
    return [(a, b) for a in terms for b in terms if a is not b and a[2] and a[2] == b[1] and b != a]


def _term_expr(term: Term, coefficient: int) -> Expr:
    expr, lower, upper = term
    if upper:
        expr = Expr("floormod", "int32", (expr, int_const(upper)))
    if lower != 1:
        expr = Expr("floordiv", "int32", (expr, int_const(lower)))
    if coefficient != 1:
        expr = Expr("mul", "int32", (expr, int_const(coefficient)))
    return expr


def _plus(left: Expr | None, right: Expr) -> Expr:
    return right if left is None else Expr("add", "int32", (left, right))


def _minus(left: Expr | None, right: Expr) -> Expr:
    return Expr("sub", "int32", (int_const(0) if left is None else left, right))


def _fold_constants(expr: Expr) -> Expr:
    """Folds constant, neutral and zero operands of a cast or float operation."""
    if expr.op == "cast" and expr.args[0].op == "const":
        value = expr.args[0].value
        return Expr("const", expr.dtype, (), int(value) if _is_int(expr.dtype) else float(value))
    if expr.op not in ("add", "sub", "mul", "div") or not expr.dtype.startswith("float"):
        return expr
    left, right = expr.args
    a, b = (argument.value if argument.op == "const" else None for argument in (left, right))
    if a is not None and b is not None and not (expr.op == "div" and b == 0):
        return Expr("const", expr.dtype, (), _FLOAT_FOLD[expr.op](a, b))
    if expr.op in ("add", "sub") and b == 0:
        return left
    if expr.op == "add" and a == 0:
        return right
    if expr.op == "mul" and 0 in (a, b):
        return Expr("const", expr.dtype, (), 0.0)
    if expr.op in ("mul", "div") and b == 1:
        return left
    if expr.op == "mul" and a == 1:
        return right
    if expr.op == "div" and b:
        return Expr("mul", expr.dtype, (left, Expr("const", expr.dtype, (), 1.0 / b)))
    return expr


_FLOAT_FOLD: dict[str, Callable[[float, float], float]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
}  # fmt: skip


def _is_int(dtype: str) -> bool:
    return dtype.startswith(("int", "uint")) or dtype == "bool"
