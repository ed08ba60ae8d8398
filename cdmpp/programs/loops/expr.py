"""Scalar expressions of a tensor program, independent of any compiler version.

An `Expr` is immutable and hashable. Variables are identified by name, so names are unique in a
program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: Operations with two operands. `div` is float division or truncating integer division, `mod` the
#: truncating integer remainder.
BINARY_OPS = frozenset(
    (
        "add", "sub", "mul", "div", "mod", "floordiv", "floormod", "min", "max",
        "eq", "ne", "lt", "le", "gt", "ge", "and", "or",
    )
)  # fmt: skip
_BITS = re.compile(r"\d+")


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor in memory. Compared by identity: two buffers may share a name.

    Attributes:
        name: display name, not unique.
        dtype: element type such as `float32`.
        shape: full extents in elements.
        scope: memory scope (`global`, `shared`, `local`, ...).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scope: str = "global"

    @property
    def element_bytes(self) -> int:
        """Size of one element in bytes."""
        return dtype_bytes(self.dtype)


def dtype_bytes(dtype: str) -> int:
    """Returns the size in bytes of a scalar dtype such as `float32`, `float8_e4m3fn` or `bool`."""
    bits = _BITS.search(dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


class Expr:
    """One expression node.

    Attributes:
        op: `const`, `var`, `load`, `call`, `cast`, `select`, `not` or a member of `BINARY_OPS`.
        dtype: type of the result (`int32`, `float32`, `bool`, ...).
        args: operands; the indices of a `load`; (condition, true value, false value) of a `select`.
        value: the number of a `const`, the name of a `var`, the `Buffer` of a `load`, the
            intrinsic's name of a `call` (as printed by the original TVM, e.g. `tir.exp`,
            `tir.if_then_else`), else None.
    """

    __slots__ = ("args", "dtype", "hash", "op", "value")

    def __init__(self, op: str, dtype: str, args: tuple[Expr, ...] = (), value: Any = None) -> None:
        self.op = op
        self.dtype = dtype
        self.args = args
        self.value = value
        self.hash = hash((op, args, value))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Expr)
            and self.hash == other.hash
            and self.op == other.op
            and self.value == other.value
            and self.dtype == other.dtype
            and self.args == other.args
        )

    def __repr__(self) -> str:
        return expr_text(self)


_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "eq": "==", "ne": "!=",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&&", "or": "||",
}  # fmt: skip


def expr_text(expr: Expr) -> str:
    """Returns the expression as text in the style of the original TVM's printer."""
    texts = [expr_text(argument) for argument in expr.args]
    if expr.op in ("const", "var"):
        return str(expr.value)
    if expr.op in _SYMBOLS:
        return f"({texts[0]} {_SYMBOLS[expr.op]} {texts[1]})"
    if expr.op == "load":
        return f"{expr.value.name}[{', '.join(texts)}]"
    if expr.op == "call":
        return f"{expr.value}({', '.join(texts)})"
    if expr.op == "cast":
        return f"{expr.dtype}({texts[0]})"
    return f"{expr.op}({', '.join(texts)})"


def int_const(value: int) -> Expr:
    """Returns an int32 constant."""
    return Expr("const", "int32", (), int(value))


def int_var(name: str) -> Expr:
    """Returns an int32 variable with a (unique) name."""
    return Expr("var", "int32", (), name)


def load(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """Returns a read of one element of `buffer`."""
    return Expr("load", buffer.dtype, indices, buffer)


def with_args(expr: Expr, args: tuple[Expr, ...]) -> Expr:
    """Returns the operation with other operands; `expr` itself if they are unchanged."""
    if all(own is new for own, new in zip(expr.args, args, strict=True)):
        return expr
    return Expr(expr.op, expr.dtype, args, expr.value)


def loads_in(expr: Expr) -> Iterator[Expr]:
    """Yields every read of memory in an expression; an outer read comes before its indices."""
    left = [expr]
    while left:
        node = left.pop()
        if node.op == "load":
            yield node
        left.extend(reversed(node.args))


def variables_of(expr: Expr) -> set[str]:
    """Returns the names of the variables in an expression."""
    if expr.op == "var":
        return {expr.value}
    return set().union(*map(variables_of, expr.args))


def substitute(expr: Expr, values: dict[str, Expr]) -> Expr:
    """Returns `expr` with every variable named in `values` replaced (not recursively)."""
    memo: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node.op == "var":
            return values.get(node.value, node)
        if not node.args:
            return node
        done = memo.get(node)
        if done is None:
            done = memo[node] = with_args(node, tuple(map(visit, node.args)))
        return done

    return visit(expr)


def replace_buffers(expr: Expr, buffers: dict[Buffer, Buffer]) -> Expr:
    """Returns `expr` with reads of some buffers replaced by reads of others at the same indices."""
    args = tuple(replace_buffers(argument, buffers) for argument in expr.args)
    if expr.op == "load" and expr.value in buffers:
        return Expr(expr.op, expr.dtype, args, buffers[expr.value])
    return with_args(expr, args)
