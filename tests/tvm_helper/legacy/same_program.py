"""Whether two loop trees do the same at random points."""

from __future__ import annotations

import operator
import random
import types
from collections.abc import Callable, Mapping
from typing import Any

from cdmpp.programs.loops.expr import Expr
from cdmpp.programs.loops.loop_tree import Condition, Loop, LoopTree, Node, Store, stores_with_path

_SAMPLES = 32
_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = types.MappingProxyType({
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "floordiv": operator.floordiv, "floormod": operator.mod, "min": min, "max": max,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
    "and": lambda a, b: bool(a) and bool(b), "or": lambda a, b: bool(a) or bool(b),
})  # fmt: skip


def program_difference(ours: LoopTree, theirs: LoopTree, *, seed: int = 0) -> str | None:
    """Returns what two programs differ in first, None when they do the same.

    Compared are the stores in order: enclosing loops (extent and kind, unit loops left out), the
    condition under which they run, indices, and the value with the indices of its reads, all
    evaluated at random points. Names are not compared.
    """
    pairs = list(stores_with_path(ours)), list(stores_with_path(theirs))
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[0])} and {len(pairs[1])} stores"
    rng = random.Random(seed)
    for number, (a, b) in enumerate(zip(*pairs, strict=True)):
        loops = [_loops(path) for _, path in (a, b)]
        kinds = [[(loop.extent, loop.kind) for loop in some if loop.extent != 1] for some in loops]
        if kinds[0] != kinds[1]:
            return f"loops of store {number}"
        for _ in range(_SAMPLES):
            values = _random_values(loops[0], loops[1], rng)
            if _signature(*a, values[0]) != _signature(*b, values[1]):
                return f"indices or value of store {number}"
    return None


def _loops(path: tuple[Node, ...]) -> list[Loop]:
    return [node for node in path if isinstance(node, Loop)]


def _random_values(
    ours: list[Loop], theirs: list[Loop], rng: random.Random
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns values of the loop variables, the same for loops that correspond."""
    values: tuple[dict[str, int], dict[str, int]] = ({}, {})
    offsets = [rng.randrange(loop.extent) for loop in ours
               if isinstance(loop.extent, int) and loop.extent != 1]  # fmt: skip
    for loops, of_tree in zip((ours, theirs), values, strict=True):
        remaining = iter(offsets)
        for loop in loops:
            is_unit = loop.extent == 1 or not isinstance(loop.extent, int)
            start = loop.minimum if isinstance(loop.minimum, int) else _value(loop.minimum, of_tree)
            of_tree[loop.var] = start + (0 if is_unit else next(remaining))
    return values


def _signature(store: Store, path: tuple[Node, ...], values: dict[str, int]) -> Any:
    """Returns what the store does at one point: nothing, or where it writes what."""
    for node in path:
        if isinstance(node, Condition) and not _value(node.condition, values):
            return None
    indices = tuple(_value(index, values) for index in store.indices)
    return indices, _value(store.value, values)


def _value(expr: Expr, values: dict[str, int]) -> Any:
    """Returns an integer or truth value as number, everything else as nested tuples of those."""
    if expr.op == "const":
        return expr.value
    if expr.op == "var":
        return values.get(expr.value, "register")
    if expr.op == "call" and expr.value == "tir.likely":
        return _value(expr.args[0], values)
    if expr.op == "select" or (expr.op == "call" and expr.value == "tir.if_then_else"):
        chosen = 1 if _value(expr.args[0], values) else 2
        return _value(expr.args[chosen], values)
    args = [_value(argument, values) for argument in expr.args]
    if expr.op == "not" and not isinstance(args[0], tuple | str):
        return not args[0]
    if expr.op in _OPERATIONS and all(isinstance(arg, int) for arg in args):
        return _OPERATIONS[expr.op](*args)
    if expr.op == "cast" and isinstance(args[0], int):
        return args[0]
    if expr.op == "mul" and 1.0 in args:  # a factor of one is dropped by every simplifier
        return args[1 - args.index(1.0)]
    name = expr.value if expr.op == "call" else None
    return (expr.op, name, *args)
