"""Needed regions of the tensors of a computation, by interval arithmetic on the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from cdmpp.programs.ansor.dag import DagOp
from cdmpp.programs.loops.expr import Buffer, Expr

#: Smallest and largest value of an integer expression.
Interval: TypeAlias = tuple[int, int]


def needed_regions(
    ops: Sequence[DagOp], inlined: Mapping[Buffer, DagOp]
) -> dict[Buffer, tuple[Interval, ...]]:
    """Returns the needed indices of each tensor that is read, one interval per dimension.

    Args:
        ops: operations, producers first; each runs over its whole needed region.
        inlined: operations (among `ops`) that are evaluated in their readers.
    """
    needed: dict[Buffer, tuple[Interval, ...]] = {}
    for op in reversed(ops):
        if op.kind == "placeholder" or op.outputs[0] in inlined:
            continue
        whole = tuple((axis.minimum, axis.minimum + axis.extent - 1) for axis in op.axes)
        regions = [needed[buffer] for buffer in op.outputs if buffer in needed]
        region = whole if len(regions) < len(op.outputs) else _union(regions)
        values = dict(zip((axis.name for axis in op.axes), region, strict=True))
        for axis in op.reduce_axes:
            values[axis.name] = (axis.minimum, axis.minimum + axis.extent - 1)
        for body in op.body:
            _collect(body, values, inlined, needed)
    return needed


def interval_of(expr: Expr, values: Mapping[str, Interval]) -> Interval | None:
    """Returns bounds of an integer expression; None if they are unknown."""
    if expr.op == "const":
        return int(expr.value), int(expr.value)
    if expr.op == "var":
        return values.get(expr.value)
    if expr.op not in ("add", "sub", "mul", "min", "max", "floordiv", "floormod"):
        return None
    left, right = (interval_of(argument, values) for argument in expr.args)
    if left is None or right is None:
        return None
    if expr.op == "add":
        return left[0] + right[0], left[1] + right[1]
    if expr.op == "sub":
        return left[0] - right[1], left[1] - right[0]
    if expr.op == "mul":
        products = [a * b for a in left for b in right]
        return min(products), max(products)
    if expr.op == "min":
        return min(left[0], right[0]), min(left[1], right[1])
    if expr.op == "max":
        return max(left[0], right[0]), max(left[1], right[1])
    divisor = right[0]
    if right[0] != right[1] or divisor <= 0:
        return None
    if expr.op == "floordiv":
        return left[0] // divisor, left[1] // divisor
    if left[0] // divisor == left[1] // divisor:
        return left[0] % divisor, left[1] % divisor
    return 0, divisor - 1


def _union(regions: Sequence[tuple[Interval, ...]]) -> tuple[Interval, ...]:
    return tuple(
        (min(part[0] for part in parts), max(part[1] for part in parts))
        for parts in zip(*regions, strict=True)
    )


def _collect(
    expr: Expr,
    values: Mapping[str, Interval],
    inlined: Mapping[Buffer, DagOp],
    needed: dict[Buffer, tuple[Interval, ...]],
) -> None:
    for argument in expr.args:
        _collect(argument, values, inlined, needed)
    if expr.op != "load":
        return
    buffer: Buffer = expr.value
    region = []
    for index, extent in zip(expr.args, buffer.shape, strict=True):
        low, high = interval_of(index, values) or (0, extent - 1)
        low = min(max(low, 0), extent - 1)
        region.append((low, max(low, min(high, extent - 1))))
    if buffer in inlined:
        op = inlined[buffer]
        names = (axis.name for axis in op.axes)
        _collect(op.body[0], dict(zip(names, region, strict=True)), inlined, needed)
    elif buffer in needed:
        needed[buffer] = _union([needed[buffer], tuple(region)])
    else:
        needed[buffer] = tuple(region)
