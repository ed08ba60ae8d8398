"""Minimum work of a program, counted on its loop tree: operations by type, bytes and kernels.

The count is a lower bound for any compiler: an operation counts once per iteration of the loops
that its operands depend on, and each element of a parameter counts once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cdmpp.programs.gpu_code.sizes import kernel_sizes
from cdmpp.programs.loops.expr import (
    Buffer,
    Expr,
    int_const,
    int_var,
    loads_in,
    substitute,
    variables_of,
    with_args,
)
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Condition,
    Loop,
    LoopTree,
    Node,
    Store,
    children,
)
from cdmpp.programs.loops.simplify import Linear, Simplifier

#: Classes of arithmetic with different rates on devices, narrowest first within a domain.
OperationClass = Literal[
    "int8_op",
    "int16_op",
    "int32_op",
    "fp4_flop",
    "fp8_flop",
    "narrow_flop",
    "wide_flop",
    "double_flop",
]
_ARITHMETIC = frozenset(
    ("add", "sub", "mul", "div", "mod", "floordiv", "floormod", "min", "max",
     "lt", "le", "gt", "ge")
)  # fmt: skip
_MATH = frozenset(
    f"tir.{name}"
    for name in (
        "exp", "exp2", "log", "log2", "tanh", "sqrt", "rsqrt", "erf", "sigmoid", "pow", "sin",
        "cos", "tan", "atan", "fma",
    )
)  # fmt: skip
_CHOICES = ("tir.if_then_else",)
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
#: Maximum number of grid points that are evaluated.
_MOST_POINTS = 1 << 18
_TYPE = re.compile(r"(u?int|bfloat|float|bool)(\d*)")

_Grid = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class ProgramWork:
    """Minimum work of a program on any device.

    Attributes:
        wide_flop: floating-point operations on values of 4 bytes or more.
        double_flop: floating-point operations on values of 8 bytes, included in `wide_flop`.
        narrow_flop: floating-point operations on values of 2 bytes (possibly on other pipes).
        fp8_flop: floating-point operations on values of 1 byte.
        fp4_flop: floating-point operations on values of less than 1 byte.
        int32_op: integer operations on values of 4 bytes or more, including comparisons.
        int16_op, int8_op: integer operations on narrower values, also with wide sums.
        bytes: bytes of the distinct elements of parameters that are read and written.
        kernels: kernels of a GPU program, at least 1.
        threads: threads of the largest kernel; 0 = not a GPU program.
        uncounted: intrinsics of unknown work, which the counts above do not include.
    """

    wide_flop: float = 0.0
    narrow_flop: float = 0.0
    int32_op: float = 0.0
    int16_op: float = 0.0
    int8_op: float = 0.0
    bytes: float = 0.0
    kernels: float = 1.0
    threads: float = 0.0
    double_flop: float = 0.0
    fp8_flop: float = 0.0
    fp4_flop: float = 0.0
    uncounted: tuple[str, ...] = ()

    @property
    def flop(self) -> float:
        """Floating-point operations of any width."""
        return self.wide_flop + self.narrow_flop + self.fp8_flop + self.fp4_flop

    @property
    def integer_op(self) -> float:
        """Integer operations of any width."""
        return self.int32_op + self.int16_op + self.int8_op


#: The numbers of a `ProgramWork`, in order.
WORK_COLUMNS: tuple[str, ...] = tuple(one.name for one in fields(ProgramWork))[:-1]


def as_floats(tree: LoopTree) -> LoopTree:
    """Replaces integer data of a program by float32, for models not trained on integer arithmetic.

    Data used in indices or conditions is unchanged.
    """
    kept: set[Buffer] = set()
    for place in _places(tree.body, (), (), {}):
        in_value = (index for load in loads_in(place.store.value) for index in load.args)
        for expr in (*place.store.indices, *place.guards, *in_value):
            kept.update(load.value for load in loads_in(expr))
    made: dict[Buffer, Buffer] = {}

    def buffer(one: Buffer) -> Buffer:
        if one in kept or not one.dtype.startswith(("int", "uint")):
            return one
        return made.setdefault(one, Buffer(one.name, "float32", one.shape, one.scope))

    def value(expr: Expr) -> Expr:
        if expr.op == "load":
            one = buffer(expr.value)
            return Expr("load", one.dtype, expr.args, one)
        args = tuple(map(value, expr.args))
        if expr.op == "const" or all(a is b for a, b in zip(args, expr.args, strict=True)):
            return expr
        if not expr.dtype.startswith(("int", "uint")):
            return Expr(expr.op, expr.dtype, args, expr.value)
        if expr.op == "cast":
            return args[0]
        op = "div" if expr.op in ("floordiv", "mod", "floormod") else expr.op
        return Expr(op, "float32", args, expr.value)

    def node(one: Node) -> Node:
        if isinstance(one, Store):
            return replace(one, buffer=buffer(one.buffer), value=value(one.value))
        body = list(map(node, one.body))
        if isinstance(one, Allocation):
            return replace(one, buffer=buffer(one.buffer), body=body)
        if isinstance(one, Condition):
            return replace(one, body=body, else_body=list(map(node, one.else_body)))
        return replace(one, body=body)

    return replace(
        tree, parameters=tuple(map(buffer, tree.parameters)), body=list(map(node, tree.body))
    )


def program_work(tree: LoopTree) -> ProgramWork:
    """Returns the minimum work of a program.

    Args:
        tree: the program, with the stores of cross-thread reductions (`loop_tree_from_tir`,
            `complete`).
    """
    return _Account(tree).total()


@dataclass
class _Place:
    """A store and its surroundings.

    Attributes:
        loops: loops around it, outermost first; a thread that is bound twice is one loop.
        guards: conditions under which it runs.
        renamed: variable of a thread that an outer loop already binds -> that loop's variable.
        body: identity of the innermost list of statements.
    """

    store: Store
    loops: tuple[Loop, ...]
    guards: tuple[Expr, ...]
    renamed: Mapping[str, Expr]
    body: int


@dataclass
class _Account:
    tree: LoopTree
    counts: dict[str, float] = field(default_factory=dict)

    def total(self) -> ProgramWork:
        places = list(_places(self.tree.body, (), (), {}))
        self._written = {id(node): Counter(_stored(node)) for node in _loops(self.tree.body)}
        parameters = set(self.tree.parameters)
        read = {one.value for place in places for expr in _exprs(place) for one in loads_in(expr)}
        seen: set[tuple[int, Expr]] = set()
        inputs: dict[Buffer, float] = {}
        outputs: dict[Buffer, float] = {}
        for place in places:
            store = place.store
            if store.buffer not in parameters and store.buffer not in read:
                continue  # the value is unused
            self._operations(place, seen)
            for load, guards in dict.fromkeys(_guarded_loads(place)):
                buffer = load.value
                if buffer in parameters and buffer not in outputs and self._is_input(place, load):
                    found = self._distinct(place, load.args, (*place.guards, *guards))
                    inputs[buffer] = max(inputs.get(buffer, 0.0), found)
            if store.buffer in parameters:
                found = self._distinct(place, store.indices, place.guards)
                outputs[store.buffer] = max(outputs.get(store.buffer, 0.0), found)
        moved = sum(
            _bits(buffer.dtype) / 8 * min(count, float(math.prod(buffer.shape)))
            for part in (inputs, outputs)
            for buffer, count in part.items()
        )
        sizes = kernel_sizes(self.tree)
        threads = max((float(one.blocks * one.threads) for one in sizes), default=0.0)
        return ProgramWork(
            **self.counts, bytes=moved, threads=threads,
            kernels=max(1.0, float(sum(one.launches for one in sizes))),
            uncounted=self.tree.uncounted,
        )  # fmt: skip

    def _is_input(self, place: _Place, load: Expr) -> bool:
        """Returns whether a read sees the value from before the program.

        Inside a loop that also writes the buffer, only a store's read of its own element does.
        """
        if place.store.buffer is load.value:
            own = tuple(_renamed(index, place) for index in place.store.indices)
            return own == load.args
        return not any(load.value in self._written[id(loop)] for loop in place.loops)

    # Operations.

    def _operations(self, place: _Place, seen: set[tuple[int, Expr]]) -> None:
        store = place.store

        def visit(expr: Expr) -> None:
            if expr.op == "load" or (place.body, expr) in seen:
                return
            seen.add((place.body, expr))
            if expr.op == "select" or expr.value in _CHOICES:
                visit(expr.args[0])  # the branches may not be computed
                return
            for argument in expr.args:
                visit(argument)
            kinds = _classes_of(expr)
            if kinds and _has_load(expr):
                times = self._times(place, self._depends(place, expr))
                for kind in kinds:
                    self.counts[kind] = self.counts.get(kind, 0.0) + times

        visit(_renamed(store.value, place))

    def _depends(self, place: _Place, expr: Expr) -> set[str]:
        """Returns the variables of loops that change the value of an expression.

        A sum of floats that a store adds to its own element changes in every iteration of a serial
        loop in which no other store sets the element. Compilers may sum integers at once, and
        a minimum or maximum may not change.
        """
        store, found = place.store, variables_of(expr)
        own = tuple(_renamed(index, place) for index in store.indices)
        is_sum = "float" in expr.dtype and expr.op not in ("min", "max")
        for load in loads_in(expr):
            written = [loop for loop in place.loops if load.value in self._written[id(loop)]]
            if load.value is store.buffer and load.args == own:
                written = [
                    loop
                    for loop in written
                    if is_sum
                    and loop.kind in ("serial", "unrolled")
                    and self._written[id(loop)][store.buffer] == 1
                ]
            found |= {loop.var for loop in written}
        return found

    def _times(self, place: _Place, variables: set[str]) -> float:
        """Returns the number of iterations of some loops in which the guards can hold."""
        loops = {loop.var: loop for loop in place.loops}
        count = 1.0
        left = variables & set(loops)
        for names, guards in _components([], place.guards, set(loops)):
            grid = _grid(names, loops)
            held = None if grid is None else _all_hold(guards, grid)
            if held is None:
                shares: dict[str, Fraction] = {}
                sure = _sure_part(guards, loops, shares)
                if sure is None:
                    return 0.0
                loops = sure
                count *= float(math.prod(shares[name] for name in shares if name in variables))
                continue
            away = tuple(axis for axis, name in enumerate(sorted(names)) if name not in variables)
            count *= float(held.any(axis=away).sum())
            left -= names
        for name in left:
            extent = loops[name].extent
            if not isinstance(extent, int):
                return 0.0
            count *= extent
        return count

    # Bytes.

    def _distinct(self, place: _Place, indices: Sequence[Expr], guards: Sequence[Expr]) -> float:
        """Returns a lower bound of the number of distinct elements of an access."""
        loops = {loop.var: loop for loop in place.loops}
        if any(not isinstance(loop.extent, int) for loop in loops.values()):
            return 0.0
        plain = [_renamed(index, place) for index in indices]
        plain = [one for one in plain if not _has_load(one)]  # a gather touches at least one
        split, loops = _split_loops([*plain, *guards], loops)
        plain, guards = split[: len(plain)], split[len(plain) :]
        count = 1.0
        for names, parts in _components(plain, guards, set(loops)):
            dims = [one for one in parts if one.dtype != "bool"]
            found = _distinct_values(dims, [p for p in parts if p.dtype == "bool"], names, loops)
            count *= found
        return count


def _split_loops(
    exprs: Sequence[Expr], loops: Mapping[str, Loop]
) -> tuple[list[Expr], dict[str, Loop]]:
    """Splits fused loop variables that occur only as quotient and remainder by one number.

    Returns the expressions with two variables instead, and the loops of all variables.
    """
    found, parts = list(exprs), dict(loops)
    for name, loop in loops.items():
        sizes = {size for one in found for size in _divisors(one, name)}
        size = sizes.pop() if len(sizes) == 1 else None
        if not size or loop.minimum != 0 or not isinstance(loop.extent, int) or loop.extent % size:
            continue
        pair = {"floordiv": f"{name} / {size}", "floormod": f"{name} % {size}"}
        del parts[name]
        for var, extent in zip(pair.values(), (loop.extent // size, size), strict=True):
            parts[var] = replace(loop, var=var, extent=extent)
        found = [_in_parts(one, name, pair) for one in found]
    return found, parts


def _divisors(expr: Expr, name: str) -> Iterator[int | None]:
    """Yields the divisor of each occurrence of a variable; None for one without division."""
    if expr.op == "var" and expr.value == name:
        yield None
    elif expr.op in ("floordiv", "floormod") and expr.args[0].value == name:
        yield expr.args[1].value if expr.args[1].op == "const" else None
    else:
        for argument in expr.args:
            yield from _divisors(argument, name)


def _in_parts(expr: Expr, name: str, pair: Mapping[str, str]) -> Expr:
    if expr.op in pair and expr.args[0].value == name:
        return Expr("var", expr.dtype, (), pair[expr.op])
    args = tuple(_in_parts(one, name, pair) for one in expr.args)
    return with_args(expr, args)


def _distinct_values(
    dims: Sequence[Expr], guards: Sequence[Expr], names: set[str], loops: Mapping[str, Loop]
) -> float:
    """Returns a lower bound of the number of distinct tuples of some expressions' values."""
    grid = _grid(names, loops)
    sure = _sure_part(guards, loops) if guards and grid is None else None
    if sure is not None:
        return _distinct_values(dims, (), names, sure)
    if not guards:
        counted = [_mixed_radix(one, loops) for one in dims]
        if len(dims) > 1:
            counted = [_mixed_radix(_one_number(dims, loops), loops), *counted]
        if counted and counted[0] is not None:
            return counted[0]
    if grid is None:
        grid = _grid(names, loops, is_part=True)
    held = None if grid is None else _all_hold(guards, grid)
    values = [] if grid is None else [_evaluate(one, grid) for one in dims]
    if held is None or any(one is None for one in values):
        return 0.0 if guards else 1.0
    key = np.zeros(held.shape, np.int64)
    for one in values:
        key = key * (int(np.max(one)) + 1 - min(0, int(np.min(one)))) + one
    ordered = np.sort(key[held])  # np.unique hashes, which takes a hundred times as long
    return float(np.count_nonzero(np.diff(ordered)) + min(1, len(ordered)))


def _sure_part(
    guards: Sequence[Expr], loops: Mapping[str, Loop], shares: dict[str, Fraction] | None = None
) -> dict[str, Loop] | None:
    """Returns restricted loops of which all iterations meet some conditions; None if not found.

    Args:
        shares: if given, a loop may instead be restricted to iterations in which a digit of its
            variable is small; variable -> share of these iterations is added.
    """
    found = dict(loops)
    if any(
        not isinstance(size, int) for one in loops.values() for size in (one.minimum, one.extent)
    ):
        return None
    for guard in guards:
        op, args = guard.op, guard.args
        if op == "not":
            op, args = _OPPOSITE.get(args[0].op, ""), args[0].args
        if op not in _OPPOSITE:
            return None
        known = _simplifier(found)
        left, right = map(known.linear, args if op in ("lt", "le") else reversed(args))
        form, most = known.add(left, right, -1), -1 if op in ("lt", "gt") else 0  # form <= most
        if known.bounds_of(form)[1] <= most:
            continue
        cuts = [
            cut
            for (base, lower, upper), slope in form.terms.items()
            if base.op == "var" and base.value in found and base.value not in (shares or ())
            if (lower, upper) == (1, 0) or (shares is not None and slope > 0 and upper)
            if (cut := _cut(form, most, Linear({(base, lower, upper): slope}), found, known))
        ]
        if not cuts:
            return None
        share, _, name, loop = max(cuts, key=lambda cut: cut[:3])
        if loop is None:
            assert shares is not None
            shares[name] = share
        else:
            found[name] = loop
    return found


def _cut(
    form: Linear, most: int, term: Linear, loops: Mapping[str, Loop], known: Simplifier
) -> tuple[Fraction, int, str, Loop | None] | None:
    """Restricts one term so that `form <= most` always holds; None if not possible.

    Returns the share of remaining iterations, the term's coefficient, the loop's variable, and the
    restricted loop, None if the remaining iterations are not contiguous.
    """
    (((base, lower, upper), slope),) = term.terms.items()
    name, rest = str(base.value), known.bounds_of(known.add(form, term, -1))[1]
    loop = loops[name]
    if math.isinf(rest):
        return None
    assert isinstance(loop.minimum, int)
    assert isinstance(loop.extent, int)
    low, top, reach = loop.minimum, loop.minimum + loop.extent - 1, most - int(rest)
    if upper:
        digits = upper // lower
        if low % upper or loop.extent % upper or upper % lower or reach < 0:
            return None
        return Fraction(min(reach // slope + 1, digits), digits), slope, name, None
    low, top = (low, min(top, reach // slope)) if slope > 0 else (
        max(low, -(reach // -slope)), top)  # fmt: skip
    if top < low:
        return None
    kept = replace(loop, minimum=low, extent=top - low + 1)
    return Fraction(top - low + 1, loop.extent), slope, name, kept


def _one_number(dims: Sequence[Expr], loops: Mapping[str, Loop]) -> Expr:
    """Returns one expression with at most as many values as tuples of the given ones."""
    whole, known = int_const(0), _simplifier(loops)
    for one in dims:
        most = known.expr_bounds(one)[1]
        high = 1 if math.isinf(most) else int(most) + 1
        whole = Expr("add", "int32", (Expr("mul", "int32", (whole, int_const(high))), one))
    return whole


def _mixed_radix(expr: Expr, loops: Mapping[str, Loop]) -> float | None:
    """Returns a lower bound of the number of values of a sum of digits; None for other sums."""
    known = _simplifier(loops)
    form = known.linear(expr)
    for (base, lower, upper), coefficient in list(form.terms.items()):
        if base.op != "var" and (lower, upper) == (1, 0):  # combines a quotient and its remainder
            rest = Linear({key: one for key, one in form.terms.items() if key[0] is not base})
            form = known.add(rest, known.linear(base), coefficient)
    terms = _digits(form, loops)
    if terms is None:
        return None
    count, reach, step = 1.0, 0, 0  # step > 0: the values are 0, step, 2 step, ..., reach
    for size, extent in sorted(terms):
        if reach == 0:
            step, count = size, float(extent)
        elif step and size % step == 0 and size <= reach + step:
            count = (reach + size * (extent - 1)) // step + 1.0
        elif size > reach:
            step, count = 0, count * extent
        else:
            step = 0  # values overlap: the count is at least that of before
        reach += size * (extent - 1)
    return count


def _digits(form: Linear, loops: Mapping[str, Loop]) -> list[tuple[int, int]] | None:
    """Returns (coefficient, number of values) of every term; None if terms are dependent."""
    found = []
    ranges: dict[str, list[tuple[int, float]]] = {}
    for (base, lower, upper), coefficient in form.terms.items():
        if base.op != "var" or base.value not in loops:
            return None
        loop = loops[base.value]
        extent = loop.extent
        if not isinstance(extent, int) or (loop.minimum != 0 and (lower, upper) != (1, 0)):
            return None
        top = min(upper, extent) if upper else extent
        if upper and extent > upper and extent % upper:
            return None
        for first, last in ranges.get(base.value, ()):
            if lower < last and first < (upper or math.inf):
                return None
        ranges.setdefault(base.value, []).append((lower, upper or math.inf))
        if top // lower > 1:
            found.append((abs(coefficient), top // lower))
    return found


def _simplifier(loops: Mapping[str, Loop]) -> Simplifier:
    bounds = {}
    for loop in loops.values():
        low = loop.minimum if isinstance(loop.minimum, int) else 0
        assert isinstance(loop.extent, int)
        bounds[loop.var] = (float(low), float(low + loop.extent - 1))
    return Simplifier(bounds)


# Grids of loop variables.


def _grid(names: set[str], loops: Mapping[str, Loop], *, is_part: bool = False) -> _Grid | None:
    """Returns a grid of loop variables, one axis each in the order of names; None if too large.

    Args:
        is_part: whether to use only the first values of each variable instead.
    """
    order = sorted(names)
    sizes = []
    for name in order:
        extent = loops[name].extent
        if not isinstance(extent, int) or not isinstance(loops[name].minimum, int):
            return None
        sizes.append(extent)
    if math.prod(sizes) > _MOST_POINTS:
        if not is_part:
            return None
        sizes = [min(size, int(_MOST_POINTS ** (1 / len(sizes)))) for size in sizes]
    grid = {}
    for axis, (name, size) in enumerate(zip(order, sizes, strict=True)):
        shape = [1] * len(order)
        shape[axis] = size
        low = loops[name].minimum
        grid[name] = (np.arange(size, dtype=np.int64) + low).reshape(shape)  # type: ignore[operator]
    return grid


def _all_hold(guards: Sequence[Expr], grid: _Grid) -> NDArray[np.bool_] | None:
    """Returns bool [grid], whether all conditions hold; None if unknown."""
    shape = np.broadcast_shapes(*(axis.shape for axis in grid.values())) if grid else ()
    held = np.ones(shape, bool)
    for guard in guards:
        value = _evaluate(guard, grid)
        if value is None:
            return None
        held = held & np.asarray(value, bool)
    return held


_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide,
    "floormod": np.mod, "min": np.minimum, "max": np.maximum, "eq": np.equal,
    "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "mod": np.fmod,
}  # fmt: skip


def _evaluate(expr: Expr, grid: _Grid) -> Any:
    """Returns the integer values of an expression on a grid; None if unknown."""
    if expr.op == "const":
        return expr.value
    if expr.op == "var":
        return grid.get(expr.value)
    if expr.op == "load":
        return None
    args = [_evaluate(argument, grid) for argument in expr.args]
    if any(one is None for one in args):
        return None
    if expr.op == "cast" or expr.value == "tir.likely":
        return args[0]
    if expr.op == "select" or expr.value in _CHOICES:
        return np.where(*args)
    if expr.op in ("floordiv", "floormod", "mod", "div") and not np.all(args[1]):
        return None
    if expr.op == "div":
        return np.trunc(np.true_divide(*args)).astype(np.int64)
    return _NUMPY[expr.op](*args) if expr.op in _NUMPY else None


def _components(
    dims: Sequence[Expr], guards: Sequence[Expr], names: set[str]
) -> Iterator[tuple[set[str], list[Expr]]]:
    """Yields (loop variables, expressions) of expressions connected by variables; splits `and`."""
    groups: list[tuple[set[str], list[Expr]]] = []
    for expr in (*dims, *(part for guard in guards for part in _conjuncts(guard))):
        own, parts = variables_of(expr) & names, [expr]
        for group in [one for one in groups if one[0] & own]:
            groups.remove(group)
            own, parts = own | group[0], group[1] + parts
        groups.append((own, parts))
    yield from groups


def _conjuncts(guard: Expr) -> Iterator[Expr]:
    if guard.op == "and":
        for part in guard.args:
            yield from _conjuncts(part)
    elif guard.value == "tir.likely":
        yield from _conjuncts(guard.args[0])
    else:
        yield guard if guard.dtype == "bool" else Expr(guard.op, "bool", guard.args, guard.value)


# The tree.


def _places(
    nodes: Sequence[Node],
    loops: tuple[Loop, ...],
    guards: tuple[Expr, ...],
    renamed: dict[str, Expr],
) -> Iterator[_Place]:
    for node in nodes:
        if isinstance(node, Store):
            yield _Place(node, loops, guards, renamed, id(nodes))
        elif isinstance(node, Condition):
            held = substitute(node.condition, renamed)
            yield from _places(node.body, loops, (*guards, held), renamed)
            failed = Expr("not", "bool", (held,))
            yield from _places(node.else_body, loops, (*guards, failed), renamed)
        elif isinstance(node, Loop):
            same = [one for one in loops if one.kind == node.kind and "threadIdx" in one.kind]
            if same and same[0].extent == node.extent:
                inner = {**renamed, node.var: int_var(same[0].var)}
                yield from _places(node.body, loops, guards, inner)
            else:
                yield from _places(node.body, (*loops, node), guards, renamed)
        else:
            yield from _places(node.body, loops, guards, renamed)


def _renamed(expr: Expr, place: _Place) -> Expr:
    return substitute(expr, dict(place.renamed)) if place.renamed else expr


def _loops(nodes: Sequence[Node]) -> Iterator[Loop]:
    for node in nodes:
        if isinstance(node, Loop):
            yield node
        yield from _loops(children(node))


def _stored(node: Node) -> Iterator[Buffer]:
    """Yields the buffer of each store."""
    if isinstance(node, Store):
        yield node.buffer
    for child in children(node):
        yield from _stored(child)


def _exprs(place: _Place) -> tuple[Expr, ...]:
    return (*place.store.indices, place.store.value, *place.guards)


def _guarded_loads(place: _Place) -> Iterator[tuple[Expr, tuple[Expr, ...]]]:
    """Yields every load of a store with the conditions under which it is needed."""

    def visit(expr: Expr, guards: tuple[Expr, ...]) -> Iterator[tuple[Expr, tuple[Expr, ...]]]:
        if expr.op == "load":
            yield expr, guards
        if expr.op == "select" or expr.value in _CHOICES:
            condition, held, failed = expr.args
            yield from visit(condition, guards)
            yield from visit(held, (*guards, condition))
            yield from visit(failed, (*guards, Expr("not", "bool", (condition,))))
            return
        for argument in expr.args:
            yield from visit(argument, guards)

    for expr in _exprs(place):
        yield from visit(_renamed(expr, place), ())


def _has_load(expr: Expr) -> bool:
    return next(loads_in(expr), None) is not None


# Types.


def _bits(dtype: str) -> int:
    found = _TYPE.match(dtype)
    return int(found[2]) if found and found[2] else 8


def _classes_of(expr: Expr) -> tuple[OperationClass, ...]:
    """Returns the classes of arithmetic of an operation; empty if it is not arithmetic on data."""
    if expr.op not in _ARITHMETIC and not (expr.op == "call" and expr.value in _MATH):
        return ()
    types = [one for one in map(_narrowest, expr.args) if one is not None]
    if not types:
        return ()
    is_float, bits = min(types)
    if is_float:
        wide: tuple[OperationClass, ...] = ("wide_flop", "double_flop")
        if bits >= 32:
            return wide if bits >= 64 else wide[:1]
        return ("narrow_flop" if bits >= 16 else "fp8_flop" if bits >= 8 else "fp4_flop",)
    return ("int32_op" if bits >= 32 else "int16_op" if bits >= 16 else "int8_op",)


def _narrowest(expr: Expr) -> tuple[bool, int] | None:
    """Returns (is a float, bits) of the data in a value; None if it has no data.

    Integers count as their narrowest operand: compilers turn a product of widened bytes into a
    product of bytes.
    """
    if expr.op in ("const", "var") or expr.dtype == "bool":
        return None
    own = not expr.dtype.startswith(("int", "uint")), _bits(expr.dtype)
    if own[0] or expr.op == "load" or expr.op == "call":
        return own
    inner = [one for one in map(_narrowest, expr.args) if one is not None and one[0] == own[0]]
    return min([own, *inner]) if inner else own
