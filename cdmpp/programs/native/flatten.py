"""Converts computations and loop trees to flat arrays, the input format of the native code."""

from __future__ import annotations

import struct
import types
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cdmpp.errors import DataError
from cdmpp.programs.ansor.dag import Axis, Dag, DagOp, Reduction, depth_first_order
from cdmpp.programs.loops.expr import Buffer, Expr
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    LoopTree,
    Node,
    Store,
)

#: Operations by number; the enumeration in `expr.hpp` has the same order.
OPERATIONS = (
    "const", "var", "load", "call", "cast", "select", "not",
    "add", "sub", "mul", "div", "mod", "floordiv", "floormod", "min", "max",
    "eq", "ne", "lt", "le", "gt", "ge", "and", "or",
)  # fmt: skip
_NUMBER_OF = {name: number for number, name in enumerate(OPERATIONS)}
_FLOAT_PREFIXES = ("float", "bfloat")
#: Nodes by number; the enumeration in `flat_tree.hpp` has the same order.
NODES = ("loop", "allocation", "condition", "unroll", "store")
_LOOP, _ALLOCATION, _CONDITION, _UNROLL, _STORE = range(len(NODES))
#: Loop kinds by number; the enumeration in `state.hpp` has the same order.
_KIND_NUMBERS: Mapping[str, int] = types.MappingProxyType({
    kind: number for number, kind in enumerate((
        "serial", "unrolled", "vectorized", "parallel", "vthread", "blockIdx.x", "threadIdx.x",
        "blockIdx.y", "threadIdx.y", "blockIdx.z", "threadIdx.z",
    ))
})  # fmt: skip
_UNROLL_KEY = "pragma_auto_unroll_max_step"


@dataclass(frozen=True)
class FlatDag:
    """A computation in the input format of `DagReader` in `dag.hpp`.

    Attributes:
        data: 64-bit integers. A list is its length followed by its items. Names, buffers and
            expressions are indices into the lists at the start.
        text: the concatenated names.
    """

    data: array[int]
    text: bytes


def flatten_dag(dag: Dag) -> FlatDag:
    """Returns the flat form of a computation.

    Raises:
        DataError: the flat form does not support a part of the computation.
    """
    try:
        return _DagWriter().flatten(dag)
    except (OverflowError, KeyError, UnicodeEncodeError, RecursionError) as error:
        raise DataError(
            f"Cannot represent a computation ({type(error).__name__}: {error}); expected 64-bit "
            "integers and known operations."
        ) from error


class FlatWriter:
    """Numbers names, buffers and expressions in order of first use."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._buffers: dict[Buffer, int] = {}
        self._buffer_data = array("q")
        self._exprs: dict[int, int] = {}
        self._kept: list[Expr] = []
        self._expr_data = array("q")

    def finished(self, rest: array[int]) -> tuple[array[int], bytes]:
        """Returns the data (names, buffers and expressions, then `rest`) and the text."""
        encoded = [name.encode() for name in self._names]
        data = array("q", [len(encoded), *map(len, encoded)])
        data.append(len(self._buffers))
        data.extend(self._buffer_data)
        data.append(len(self._kept))
        data.extend(self._expr_data)
        data.extend(rest)
        return data, b"".join(encoded)

    def name(self, name: str) -> int:
        """Returns the number of a name."""
        return self._names.setdefault(name, len(self._names))

    def buffer(self, buffer: Buffer) -> int:
        """Returns the number of a buffer."""
        if buffer not in self._buffers:
            self._buffers[buffer] = len(self._buffers)
            self._buffer_data.extend(
                (
                    self.name(buffer.name),
                    self.name(buffer.dtype),
                    self.name(buffer.scope),
                    len(buffer.shape),
                    *buffer.shape,
                )
            )
        return self._buffers[buffer]

    def expr(self, expr: Expr) -> int:
        """Returns the number of an expression; operands come first, shared expressions once."""
        if id(expr) not in self._exprs:
            operands = [self.expr(operand) for operand in expr.args]
            is_text = expr.op == "const" and isinstance(expr.value, str)
            op = "var" if is_text else expr.op
            self._expr_data.extend((_NUMBER_OF[op], self.name(expr.dtype)))
            if is_text:  # e.g. the name of a called function; quotes keep it apart from variables
                self._expr_data.append(self.name(f'"{expr.value}"'))
            elif expr.op == "const":
                self._expr_data.append(_constant(expr))
            elif expr.op in ("var", "call"):
                self._expr_data.append(self.name(expr.value))
            elif expr.op == "load":
                self._expr_data.append(self.buffer(expr.value))
            self._expr_data.extend((len(operands), *operands))
            self._exprs[id(expr)] = len(self._kept)
            self._kept.append(expr)
        return self._exprs[id(expr)]


class _DagWriter(FlatWriter):
    def flatten(self, dag: Dag) -> FlatDag:
        ops = array("q", [len(dag.ops)])
        for op in dag.ops:
            self._op(op, ops)
        for indices in (dag.outputs, depth_first_order(dag)):
            ops.extend((len(indices), *indices))
        return FlatDag(*self.finished(ops))

    def _exprs_to(self, exprs: Iterable[Expr], out: array[int]) -> None:
        numbers = [self.expr(expr) for expr in exprs]
        out.extend((len(numbers), *numbers))

    def _axes_to(self, axes: tuple[Axis, ...], out: array[int]) -> None:
        out.append(len(axes))
        for axis in axes:
            out.extend((self.name(axis.name), axis.extent, axis.minimum))

    def _op(self, op: DagOp, out: array[int]) -> None:
        is_const_matrix = bool(op.attrs.get("const_matrix"))
        out.extend((self.name(op.name), op.kind == "compute", is_const_matrix))
        self._axes_to(op.axes, out)
        self._axes_to(op.reduce_axes, out)
        self._exprs_to(op.body, out)
        for buffers in (op.outputs, op.inputs):
            out.append(len(buffers))
            out.extend(self.buffer(buffer) for buffer in buffers)
        out.append(op.reduce is not None)
        if op.reduce is not None:
            self._reduction(op.reduce, out)

    def _reduction(self, reduction: Reduction, out: array[int]) -> None:
        for names in (reduction.left, reduction.right):
            out.append(len(names))
            out.extend(self.name(name) for name in names)
        for exprs in (reduction.results, reduction.identities, reduction.init):
            self._exprs_to(exprs, out)
        out.append(reduction.condition is not None)
        if reduction.condition is not None:
            out.append(self.expr(reduction.condition))


def _constant(expr: Expr) -> int:
    """Returns an integer constant, or the bits of a float constant."""
    if expr.dtype.startswith(_FLOAT_PREFIXES):
        (bits,) = struct.unpack("q", struct.pack("d", float(expr.value)))
        return int(bits)
    return int(expr.value)


def flatten_tree(tree: LoopTree) -> tuple[array[int], bytes]:
    """Returns the flat form of a program: 64-bit integers, and the text of its names.

    Raises:
        DataError: the flat form does not support a part of the program.
    """
    try:
        return _TreeWriter().flatten(tree)
    except (OverflowError, KeyError, UnicodeEncodeError, RecursionError, ValueError) as error:
        raise DataError(
            f"Cannot represent a program ({type(error).__name__}: {error}); expected 64-bit "
            "integers and known operations."
        ) from error


class _TreeWriter(FlatWriter):
    def flatten(self, tree: LoopTree) -> tuple[array[int], bytes]:
        out = array("q")
        self._nodes(tree.body, out)
        return self.finished(out)

    def _nodes(self, nodes: Sequence[Node], out: array[int]) -> None:
        kept = _without_marks(nodes)
        out.append(len(kept))
        for node in kept:
            self._node(node, out)

    def _node(self, node: Node, out: array[int]) -> None:
        if isinstance(node, Store):
            out.extend((_STORE, self.buffer(node.buffer), len(node.indices)))
            out.extend([self.expr(index) for index in node.indices])
            out.extend((self.expr(node.value), node.is_across_threads))
            return
        if isinstance(node, Loop):
            out.extend((_LOOP, self.name(node.var), _KIND_NUMBERS[node.kind]))
            self._extent(node.minimum, out)
            self._extent(node.extent, out)
        elif isinstance(node, Allocation):
            out.extend((_ALLOCATION, self.buffer(node.buffer), len(node.extents)))
            for extent in node.extents:
                self._extent(extent, out)
        elif isinstance(node, Condition):
            otherwise = len(_without_marks(node.else_body))
            out.extend((_CONDITION, self.expr(node.condition), otherwise))
            self._nodes((*node.body, *node.else_body), out)
            return
        else:
            out.extend((_UNROLL, int(node.value)))
        self._nodes(node.body, out)

    def _extent(self, extent: int | Expr, out: array[int]) -> None:
        if isinstance(extent, Expr):
            out.extend((0, self.expr(extent)))
        else:
            out.extend((1, extent))


def _without_marks(nodes: Sequence[Node]) -> Sequence[Node]:
    """Replaces annotations that do not affect features by their bodies."""
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, Attribute) and node.key != _UNROLL_KEY:
            result += _without_marks(node.body)
        else:
            result.append(node)
    return result
