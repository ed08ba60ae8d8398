"""How often a store runs, and its integer operations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cdmpp.programs.loops.expr import Expr, dtype_bytes
from tests.programs.reference.operations import GROUPS, OPAQUE_CALLS

#: Inclusive bounds.
Range = tuple[float, float]
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_WIDTHS = (8, 16, 32, 64)
_ORDER = ("addsub", "mul")
_NO_WORK = ("tir.likely", "tir.if_then_else", "tir.reinterpret")


def held_share(condition: Expr, ranges: dict[str, Range | None]) -> float:
    """Returns the share of iterations in which a condition holds, 1 where it is not known; values
    of an index count as evenly spread.

    Args:
        ranges: of the loop variables; None where it is not known.
    """
    op, args = condition.op, condition.args
    if op == "call" and condition.value == "tir.likely":
        return held_share(args[0], ranges)
    if op == "not":
        return otherwise(held_share(args[0], ranges))
    if op == "and":
        return held_share(args[0], ranges) * held_share(args[1], ranges)
    if op not in _MIRRORED:
        return 1.0
    left, right = (_range(one, ranges) for one in args)
    if left is not None and left[0] == left[1]:
        left, right, op = right, left, _MIRRORED[op]
    if left is None or right is None or right[0] != right[1]:
        return 1.0
    count, place = left[1] - left[0] + 1, right[0] - left[0]
    equal = 1 / count if 0 <= place < count else 0.0
    share = {
        "eq": equal, "ne": 1 - equal, "lt": place / count, "le": (place + 1) / count,
        "gt": (count - 1 - place) / count, "ge": (count - place) / count,
    }[op]  # fmt: skip
    return min(max(share, 0.0), 1.0)


def otherwise(share: float) -> float:
    """Returns the share of the branch that runs where a condition does not hold."""
    return 1 - share if share < 1 else 1.0


def _range(expr: Expr, ranges: dict[str, Range | None]) -> Range | None:
    op = expr.op
    if expr.dtype.startswith(("float", "bfloat")):
        return None
    if op == "const":
        return float(expr.value), float(expr.value)
    if op == "var":
        return ranges.get(expr.value)
    if op == "cast":
        return _range(expr.args[0], ranges)
    if op not in ("add", "sub", "mul", "floordiv", "floormod"):
        return None
    a, b = (_range(one, ranges) for one in expr.args)
    if a is None or b is None:
        return None
    if op == "add":
        return a[0] + b[0], a[1] + b[1]
    if op == "sub":
        return a[0] - b[1], a[1] - b[0]
    if op == "mul":
        ends = [one * other for one in a for other in b]
        return min(ends), max(ends)
    if b[0] != b[1] or b[0] < 1:
        return None
    low, high = (float(math.floor(one / b[0])) for one in a)
    if op == "floordiv":
        return low, high
    return (0.0, b[0] - 1) if low != high else (a[0] - b[0] * low, a[1] - b[0] * low)


@dataclass(frozen=True)
class _Data:
    """What a value is made of; 0 bits = no data."""

    has_load: bool = False
    is_float: bool = False
    bits: int = 0


def integer_ops(value: Expr) -> list[int]:
    """Returns the operations on integer data in one evaluation of a value, by the narrowest
    operand: of each width sums, products and others; then intrinsics. Index arithmetic is not among
    them.
    """
    counts = [0] * (3 * len(_WIDTHS) + 1)

    def place(bits: int) -> int:
        return 3 * sum(bits > width for width in _WIDTHS[:-1])

    def visit(expr: Expr) -> _Data:
        if expr.op in ("const", "var"):
            return _Data()
        is_float = not expr.dtype.startswith(("int", "uint", "bool"))
        bits = 0 if expr.dtype == "bool" else 8 * dtype_bytes(expr.dtype)
        if expr.op == "load":
            return _Data(True, is_float, bits)
        parts = [visit(one) for one in expr.args]
        data = [one for one in parts if one.bits]
        has_load = any(one.has_load for one in parts)
        least = min(((one.is_float, one.bits) for one in data), default=(True, 0))
        if has_load and expr.op == "call":
            if not is_float and bits and expr.value not in _NO_WORK:
                is_opaque = str(expr.value).startswith(OPAQUE_CALLS)
                counts[-1 if is_opaque else place(bits) + 2] += 1
        elif has_load and not least[0] and expr.op in GROUPS and expr.op not in ("eq", "ne"):
            group = GROUPS[expr.op]
            if group in ("addsub", "mul", "divmod", "cmp"):
                counts[place(least[1]) + (_ORDER.index(group) if group in _ORDER else 2)] += 1
        if not is_float and expr.op != "call":
            bits = min([bits, *(one.bits for one in data if not one.is_float)])
        return _Data(has_load, is_float, bits)

    visit(value)
    return counts
