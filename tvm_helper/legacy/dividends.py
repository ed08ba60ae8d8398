"""Restores dividends of remainders that the old TVM reduces.

A schedule splits a fused loop into `L // n` and `L % n`. In some of these remainders the old TVM
reduces the factors of `L` modulo `n` (`(256 a + b) % 49` to `(11 a + b) % 49`). Then accesses to
one element look different and its buffer too large. The current TVM reduces none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from cdmpp.programs.loops.expr import Expr, with_args
from cdmpp.programs.loops.loop_tree import Condition, LoopTree, Node, Store, children
from cdmpp.programs.loops.simplify import Linear, Simplifier

#: Key of equal remainders: terms with their factors, and the constant, modulo the divisor.
_Residue: TypeAlias = tuple[frozenset[tuple[object, int]], int]


def restore_dividends(tree: LoopTree) -> None:
    """Replaces reduced dividends of remainders by equivalent dividends of quotients, in place.

    `(11 a + b) % 49` becomes `(256 a + b) % 49` if the program also divides `256 a + b`; the
    value is the same.
    """
    _Restorer(tree).visit(tree.body)


def _expressions(nodes: list[Node]) -> Iterator[Expr]:
    for node in nodes:
        if isinstance(node, Store):
            yield from (*node.indices, node.value)
        elif isinstance(node, Condition):
            yield node.condition
        yield from _expressions(children(node))


class _Restorer:
    def __init__(self, tree: LoopTree) -> None:
        self._simplifier = Simplifier()
        self._dividends: dict[Expr, Linear] = {}
        self._by_residue: dict[int, dict[_Residue, list[Linear]]] = {}
        self._restored: dict[Expr, Expr] = {}
        seen: set[Expr] = set()
        for expr in _expressions(tree.body):
            self._collect(expr, seen)

    def _collect(self, expr: Expr, seen: set[Expr]) -> None:
        if not expr.args or expr in seen:
            return
        seen.add(expr)
        if expr.op == "floordiv":
            self._dividends[expr.args[0]] = self._simplifier.linear(expr.args[0])
        for argument in expr.args:
            self._collect(argument, seen)

    def visit(self, nodes: list[Node]) -> None:
        for node in nodes:
            if isinstance(node, Store):
                node.indices = tuple(map(self._expr, node.indices))
                node.value = self._expr(node.value)
            elif isinstance(node, Condition):
                node.condition = self._expr(node.condition)
            self.visit(children(node))

    def _expr(self, expr: Expr) -> Expr:
        if not expr.args:
            return expr
        made = self._restored.get(expr)
        if made is None:
            args = tuple(map(self._expr, expr.args))
            if expr.op == "floormod" and args[1].op == "const":
                args = (self._dividend(args[0], int(args[1].value)), args[1])
            made = self._restored[expr] = with_args(expr, args)
        return made

    def _dividend(self, expr: Expr, divisor: int) -> Expr:
        form = self._simplifier.linear(expr)
        found = self._candidates(divisor).get(_residue(form, divisor), [])
        is_reduced = all(0 < factor < divisor for factor in form.terms.values())
        if not is_reduced or not found or form in found:
            return expr
        return self._simplifier.to_expr(found[0])

    def _candidates(self, divisor: int) -> dict[_Residue, list[Linear]]:
        """Returns residue -> the program's dividends, without terms that the divisor divides."""
        if divisor not in self._by_residue:
            groups: dict[_Residue, list[Linear]] = {}
            for form in self._dividends.values():
                terms = {term: factor for term, factor in form.terms.items() if factor % divisor}
                left = Linear(terms, form.constant)
                groups.setdefault(_residue(left, divisor), []).append(left)
            self._by_residue[divisor] = groups
        return self._by_residue[divisor]


def _residue(form: Linear, divisor: int) -> _Residue:
    factors = ((term, factor % divisor) for term, factor in form.terms.items())
    return frozenset(pair for pair in factors if pair[1]), form.constant % divisor
