"""Tensor expressions of a computation in the current TVM, and its schedulable function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cdmpp.errors import ReplayError
from cdmpp.programs.ansor.dag import Axis, Dag, DagOp
from cdmpp.programs.loops.expr import Buffer, Expr
from tvm_helper.compat import s_tir, te, tirx, tvm

#: Binary operation -> name of its class in `tirx`.
TIRX_CLASS_OF_OP: Mapping[str, str] = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "mod": "Mod", "floordiv": "FloorDiv",
    "floormod": "FloorMod", "min": "Min", "max": "Max", "eq": "EQ", "ne": "NE", "lt": "LT",
    "le": "LE", "gt": "GT", "ge": "GE", "and": "And", "or": "Or",
}  # fmt: skip

_FLOAT32_MAX = float(np.finfo(np.float32).max)

#: Function of (tensor, converted indices) that returns TVM's read.
LoadRule = Callable[[Buffer, tuple[Any, ...]], Any]


def to_tirx(expr: Expr, variables: Mapping[str, Any], load: LoadRule) -> Any:
    """Converts an expression to TVM's.

    Args:
        expr: the expression.
        variables: name of a variable -> TVM's variable or expression.
        load: called for each read.

    Raises:
        ReplayError: an unknown variable, or a call that TVM does not support.
    """
    if expr.op == "const":
        return _const(expr)
    if expr.op == "var":
        if expr.value not in variables:
            raise ReplayError("unbound variable", str(expr.value))
        return variables[expr.value]
    args = tuple(to_tirx(argument, variables, load) for argument in expr.args)
    if expr.op == "load":
        return load(expr.value, args)
    if expr.op in TIRX_CLASS_OF_OP:
        return getattr(tirx, TIRX_CLASS_OF_OP[expr.op])(*args)
    if expr.op == "cast":
        return tirx.Cast(expr.dtype, args[0])
    if expr.op == "select":
        return tirx.Select(*args)
    if expr.op == "not":
        return tirx.Not(args[0])
    name = str(expr.value).removeprefix("tir.")
    intrinsic = getattr(tirx, name, None)
    if expr.op != "call" or intrinsic is None:
        raise ReplayError("unsupported expression", f"{expr.op} {expr.value or ''}".strip())
    return intrinsic(*args)


def _const(expr: Expr) -> Any:
    value = expr.value
    if expr.dtype == "float32" and math.isfinite(value):
        # TVM 0.8 prints the lowest float32 with too many digits, just below the valid range.
        value = max(-_FLOAT32_MAX, min(_FLOAT32_MAX, value))
    return tirx.const(value, expr.dtype)


class TensorGraph:
    """Tensors of a graph of operations.

    Args:
        ops: operations, producers first.
        inlined: operations (among `ops`) that are inlined into their readers.

    Attributes:
        tensors: output -> TVM's tensor, except for inlined operations.
        block_names: operation -> name of its block, except for inlined operations.
    """

    def __init__(self, ops: Sequence[DagOp], inlined: Sequence[DagOp] = ()) -> None:
        self.tensors: dict[Buffer, Any] = {}
        self.block_names: dict[DagOp, str] = {}
        self._inlined = {op.outputs[0]: op for op in inlined}
        self._names: set[str] = set()
        for op in ops:
            if op.outputs[0] not in self._inlined:
                self._add(op)

    def _unique_name(self, name: str) -> str:
        base = re.sub(r"\W", "_", name) or "op"
        unique, count = base, 0
        while unique in self._names:
            count += 1
            unique = f"{base}_{count}"
        self._names.add(unique)
        return unique

    def _load(self, buffer: Buffer, indices: tuple[Any, ...]) -> Any:
        op = self._inlined.get(buffer)
        if op is not None:
            values = {axis.name: index for axis, index in zip(op.axes, indices, strict=True)}
            return to_tirx(op.body[0], values, self._load)
        if buffer not in self.tensors:
            raise ReplayError("stage reads a tensor that no earlier stage computes", buffer.name)
        return self.tensors[buffer](*indices)

    def _add(self, op: DagOp) -> None:
        name = self._unique_name(op.name)
        if op.kind == "placeholder":
            self.tensors[op.outputs[0]] = te.placeholder(op.shape, op.dtype, name=name)
            return
        if any(axis.minimum for axis in op.axes):
            raise ReplayError("axis does not start at 0", op.name)

        def body(*indices: Any) -> Any:
            spatial = dict(zip((axis.name for axis in op.axes), indices, strict=True))
            return self._body(op, spatial)

        result = te.compute(
            op.shape, body, name=name, tag=op.tag, varargs_names=_loop_names(op.axes)
        )
        results = [result] if len(op.outputs) == 1 else list(result)
        self.tensors.update(zip(op.outputs, results, strict=True))
        self.block_names[op] = name

    def _body(self, op: DagOp, spatial: dict[str, Any]) -> Any:
        names = _loop_names(op.reduce_axes)
        reduce_axes = [
            te.reduce_axis((axis.minimum, axis.minimum + axis.extent), name)
            for axis, name in zip(op.reduce_axes, names, strict=True)
        ]
        variables = dict(spatial)
        for axis, iterator in zip(op.reduce_axes, reduce_axes, strict=True):
            variables[axis.name] = iterator.var
        values = [to_tirx(expr, variables, self._load) for expr in op.body]
        if op.reduce is None:
            return values[0] if len(values) == 1 else tuple(values)
        reduction = op.reduce
        left = [tirx.Var(n, b.dtype) for n, b in zip(reduction.left, op.outputs, strict=True)]
        right = [tirx.Var(n, b.dtype) for n, b in zip(reduction.right, op.outputs, strict=True)]
        operands = {var.name: var for var in (*left, *right)}
        combiner = tirx.CommReducer(
            left,
            right,
            [to_tirx(expr, operands, self._load) for expr in reduction.results],
            [to_tirx(expr, {}, self._load) for expr in reduction.identities],
        )
        condition = (
            tirx.const(True, "bool")
            if reduction.condition is None
            else to_tirx(reduction.condition, variables, self._load)
        )
        init = [to_tirx(expr, spatial, self._load) for expr in reduction.init]
        reduced = tuple(
            tirx.Reduce(combiner, values, reduce_axes, condition, number, init)
            for number in range(len(values))
        )
        return reduced[0] if len(reduced) == 1 else reduced


def _loop_names(axes: tuple[Axis, ...]) -> list[str]:
    """Returns the axes' names as identifiers."""
    return [re.sub(r"\W", "_", axis.name) for axis in axes]


def build_te(dag: Dag) -> list[Any]:
    """Returns the tensors of the signature (inputs, then outputs) as `te.Tensor`.

    Raises:
        ReplayError: an expression that the current TVM does not support.
    """
    graph = TensorGraph(dag.ops)
    return [graph.tensors[buffer] for buffer in dag.parameters]


def narrow_blocks(function: Any, regions: Mapping[str, Sequence[tuple[int, int]]]) -> Any:
    """Returns the function with some blocks narrowed to a part of their axes.

    The bound inference of Ansor's TVM drops unread elements; `create_prim_func` keeps them.

    Args:
        function: result of `te.create_prim_func`: a sequence of loop nests with one block each.
        regions: name of a block -> first and last value of each of its leading axes.
    """
    root = function.body.block

    def narrowed(statement: Any) -> Any:
        if isinstance(statement, tirx.SeqStmt):
            return tirx.SeqStmt([narrowed(item) for item in statement.seq])
        loops, inner = [], statement
        while isinstance(inner, tirx.For):
            loops.append(inner)
            inner = inner.body
        if not isinstance(inner, s_tir.SBlockRealize) or inner.block.name_hint not in regions:
            return statement
        bounds = list(regions[inner.block.name_hint])
        result = _narrow_realize(inner, bounds)
        sizes = [high - low + 1 for low, high in bounds] + [None] * (len(loops) - len(bounds))
        for loop, size in reversed(list(zip(loops, sizes, strict=True))):
            extent = loop.extent if size is None else tirx.const(size, "int32")
            result = tirx.For(loop.loop_var, loop.min, extent, loop.kind, result)
        return result

    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, narrowed(root.body), root.init,
        root.alloc_buffers, root.match_buffers, root.annotations,
    )  # fmt: skip
    return function.with_body(s_tir.SBlockRealize([], True, block))


def _narrow_realize(realize: Any, bounds: Sequence[tuple[int, int]]) -> Any:
    block = realize.block
    iter_vars, iter_values = list(block.iter_vars), list(realize.iter_values)
    for number, (low, high) in enumerate(bounds):
        old = iter_vars[number]
        domain = tvm.ir.Range(low, high + 1)
        iter_vars[number] = tirx.IterVar(domain, old.var, old.iter_type, old.thread_tag)
        if low:
            iter_values[number] = iter_values[number] + low
    inner = s_tir.SBlock(
        iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip
    return s_tir.SBlockRealize(iter_values, realize.predicate, inner)
