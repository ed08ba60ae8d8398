"""Conversion of TIR to the loop tree: the reference implementation, in Python.

A short list of passes lowers a module to plain loops with multi-dimensional buffers, and the walker
converts every statement to a node; blocks, sequences and bindings have no node. Then
`cdmpp.programs.loops.canonical` brings indices and regions to canonical form, because TVM's own
passes for that are slow and change between versions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from cdmpp.errors import DataError
from cdmpp.programs.loops.canonical import canonical
from cdmpp.programs.loops.expr import BINARY_OPS, Buffer, Expr, int_const
from cdmpp.programs.loops.loop_tree import (
    Attribute,
    Condition,
    Loop,
    LoopKind,
    LoopTree,
    Node,
    Store,
)
from tvm_helper.compat import Call, Sequential, TensorLoad, block_passes, tirx, tvm
from tvm_helper.tir.packing import runnable
from tvm_helper.tir.prim_func import TIRX_CLASS_OF_OP

_ZERO = int_const(0)
_FOR_KINDS: tuple[LoopKind, ...] = ("serial", "parallel", "vectorized", "unrolled")
_THREAD_ATTRS = ("thread_extent", "virtual_thread")
#: Lanes at the end of a vector type such as `float32x4`.
_VECTOR = re.compile(r"x\d+$")
#: Calls that neither compute nor move data.
_IDLE_CALLS = frozenset(
    ("tvm_storage_sync", "assume", "evaluate", "tvm_static_handle", "likely", "undef")
)


def loop_tree_from_tir(module: Any, *, lowered: bool = False, complete: bool = True) -> LoopTree:
    """Returns the loop tree of a scheduled module, without blocks that pack weights.

    Args:
        module: an `IRModule` with one function `main`.
        lowered: whether its blocks are already lowered.
        complete: whether to include reductions across threads. Leaves of version 3 lack them, as
            in the original cdmpp.

    Raises:
        DataError: `main` is missing or has a statement without an equivalent in a loop tree.
    """
    if "main" not in [var.name_hint for var in module.get_global_vars()]:
        raise DataError("Cannot read a TIR module: got no function `main`; expected exactly one.")
    plain = module if lowered else _TO_LOOPS(runnable(module))
    return _Walker(plain["main"], complete).tree()


def lowering_passes() -> Any:
    """Returns the pass that lowers blocks to plain loops; a lowered module stays unchanged."""
    return Sequential(
        [
            block_passes.LowerCrossThreadReduction(),
            block_passes.LowerInitBlock(),
            block_passes.ConvertBlocksToOpaque(),
            block_passes.LowerMatchBuffer(),
            block_passes.LowerOpaqueBlock(),
        ]
    )


_TO_LOOPS = lowering_passes()


def child_statements(statement: Any) -> list[Any]:
    """Returns the statements directly below a statement; none for a block."""
    if isinstance(statement, tirx.SeqStmt):
        return list(statement.seq)
    if isinstance(statement, tirx.IfThenElse):
        both = (statement.then_case, statement.else_case)
        return [case for case in both if case is not None]
    body = getattr(statement, "body", None)
    return [] if body is None else [body]


def _reduction_registers(statement: Any) -> set[Any]:
    """Returns the one-element buffers in which threads combine their partial reductions.

    The original cdmpp treats them as registers, whose stores do not count.
    """
    found: set[Any] = set()
    call = statement.value if isinstance(statement, tirx.Evaluate) else None
    if isinstance(call, Call) and str(call.op.name).endswith("tvm_thread_allreduce"):
        for argument in call.args:
            if isinstance(argument, TensorLoad) and argument.source.scope() == "local":
                found.add(argument.source)
    for child in child_statements(statement):
        found |= _reduction_registers(child)
    return found


class _Walker:
    """Walker that converts one lowered function to a loop tree."""

    def __init__(self, function: Any, is_complete: bool) -> None:
        self._function = function
        self._is_complete = is_complete
        self._names: dict[Any, str] = {}
        self._used_names: set[str] = set()
        self._bound: dict[Any, Expr] = {}
        self._buffers: dict[Any, Buffer] = {}
        self._allocated: list[Buffer] = []
        self._views: dict[Any, Any] = {}
        self._lane: Expr | None = None
        self._reducer: Any = None
        self._registers = set() if is_complete else _reduction_registers(function.body)
        self._is_gpu = False
        self._uncounted: dict[str, None] = {}

    def tree(self) -> LoopTree:
        tensors = [one for one in self._function.params if isinstance(one.ty, tirx.BufferType)]
        parameters = tuple(map(self._buffer, tensors))
        body = self._statement(self._function.body)
        found = canonical(LoopTree(parameters, body, self._is_gpu), self._allocated)
        return replace(found, uncounted=tuple(self._uncounted))

    # Statements.

    def _statement(self, node: Any) -> list[Node]:
        if isinstance(node, tirx.SeqStmt):
            return [made for item in node.seq for made in self._statement(item)]
        if isinstance(node, tirx.BufferStore):
            return [] if node.buffer in self._registers else [self._store(node)]
        if isinstance(node, tirx.For):
            return [self._loop(node)]
        if isinstance(node, tirx.AttrStmt):
            return self._attribute(node)
        if isinstance(node, tirx.IfThenElse):
            otherwise = [] if node.else_case is None else self._statement(node.else_case)
            condition = self._expr(node.condition)
            return [Condition(condition, self._statement(node.then_case), otherwise)]
        if isinstance(node, tirx.AllocBuffer):
            if node.buffer not in self._registers:
                self._allocated.append(self._buffer(node.buffer))
            return []
        if isinstance(node, tirx.Bind):
            self._bound[node.var] = self._expr(node.value)
            return []
        if isinstance(node, tirx.DeclBuffer):
            self._views[node.buffer] = _viewed(node.data)
            return []
        if isinstance(node, tirx.Evaluate):
            return self._call(node.value)
        if isinstance(node, tirx.AssertStmt):
            return []
        raise DataError(
            f"Cannot turn TIR into a loop tree: got a statement of type {type(node).__name__}; "
            "expected loops, conditions, stores, attributes and allocations."
        )

    def _store(self, node: Any) -> Node:
        """Returns a store; a vector store becomes a loop over its lanes."""
        lanes = next((_lanes(index) for index in node.indices if _lanes(index) > 1), 1)
        if lanes > 1:
            name = self._unique("lane")
            self._lane = Expr("var", "int32", (), name)
        buffer, indices = self._access(node.buffer, node.indices)
        store = Store(buffer, indices, self._expr(node.value))
        self._lane = None
        return store if lanes == 1 else Loop(name, 0, lanes, "vectorized", [store])

    def _call(self, call: Any) -> list[Node]:
        """Returns the stores of a reduction across threads, if the tree includes them."""
        if not isinstance(call, Call):
            return []
        name = str(getattr(call.op, "name", call.op)).rpartition(".")[2]
        if name != "tvm_thread_allreduce":
            if name not in _IDLE_CALLS:
                texts = [one for one in call.args if isinstance(one, tvm.ir.StringImm)]
                is_external = texts and name.startswith("call_")
                self._uncounted[str(texts[0].value) if is_external else name] = None
            return []
        if not self._is_complete:
            return []
        count = int(call.args[0].value)
        results, registers = call.args[1 : 1 + count], call.args[2 + count : 2 + 2 * count]
        reducer = self._reducer
        if reducer is None or len(reducer.result) != count:
            self._uncounted[name] = None  # the combining function is unknown
        else:
            for place in range(count):
                self._bound[reducer.lhs[place]] = self._expr(registers[place])
                self._bound[reducer.rhs[place]] = self._expr(results[place])
            results = reducer.result
        return [
            Store(*self._access(one.source, one.indices), self._expr(result), True)
            for one, result in zip(registers, results, strict=True)
        ]

    def _loop(self, node: Any) -> Loop:
        binding = node.thread_binding
        if node.step is not None:
            raise DataError(f"Cannot turn TIR into a loop tree: {node.loop_var} has a step.")
        kind = (
            self._thread_kind(binding.thread_tag)
            if binding is not None
            else _FOR_KINDS[int(node.kind)]
        )
        name = self._var_name(node.loop_var)
        loop = Loop(name, self._int_or_expr(node.min), self._int_or_expr(node.extent), kind)
        loop.body = self._statement(node.body)
        return loop

    def _attribute(self, node: Any) -> list[Node]:
        if node.attr_key in _THREAD_ATTRS:
            kind = self._thread_kind(node.node.thread_tag)
            loop = Loop(self._var_name(node.node.var), 0, self._int_or_expr(node.value), kind)
            loop.body = self._statement(node.body)
            return [loop]
        if node.attr_key == "reduce_scope":
            self._reducer = node.node
        body = self._statement(node.body)
        if not node.attr_key.startswith("pragma_"):
            return body
        value = node.value.value if hasattr(node.value, "value") else str(node.value)
        return [Attribute(node.attr_key, value if isinstance(value, int) else str(value), body)]

    def _thread_kind(self, tag: str) -> LoopKind:
        self._is_gpu = True
        return cast(LoopKind, "vthread" if tag.startswith("vthread") else tag)

    # Expressions.

    def _expr(self, node: Any) -> Expr:
        dtype = str(node.ty)
        if self._lane is not None:
            dtype = _VECTOR.sub("", dtype)
            if isinstance(node, tirx.Ramp):
                base, stride = self._expr(node.base), self._expr(node.stride)
                step = Expr("mul", base.dtype, (stride, self._lane))
                return Expr("add", base.dtype, (base, step))
            if isinstance(node, tirx.Broadcast):
                return self._expr(node.value)
        if isinstance(node, tirx.IntImm):
            return Expr("const", dtype, (), int(node.value))
        if isinstance(node, tirx.FloatImm):
            return Expr("const", dtype, (), float(node.value))
        if isinstance(node, TensorLoad):
            if node.source in self._registers:
                return Expr("var", dtype, (), self._var_name(node.source))
            buffer, indices = self._access(node.source, node.indices)
            return Expr("load", buffer.dtype, indices, buffer)
        if isinstance(node, tirx.Var):
            if node in self._bound:
                return self._bound[node]
            return Expr("var", dtype, (), self._var_name(node))
        if isinstance(node, tirx.Select):
            parts = (node.condition, node.true_value, node.false_value)
            return Expr("select", dtype, tuple(self._expr(part) for part in parts))
        if isinstance(node, tirx.Cast):
            return Expr("cast", dtype, (self._expr(node.value),))
        if isinstance(node, tirx.Not):
            return Expr("not", "bool", (self._expr(node.a),))
        op = _OP_OF_CLASS_NAME.get(type(node).__name__)
        if op is not None:
            return Expr(op, dtype, (self._expr(node.a), self._expr(node.b)))
        intrinsic = _CALL_OF_CLASS_NAME.get(type(node).__name__)
        if intrinsic is not None:
            operands = (node.a,) if isinstance(node, tirx.BitwiseNot) else (node.a, node.b)
            return Expr("call", dtype, tuple(self._expr(one) for one in operands), intrinsic)
        if isinstance(node, Call):
            name = "tir." + str(node.op.name).rpartition(".")[2]
            texts = [item for item in node.args if isinstance(item, tvm.ir.StringImm)]
            if texts:  # call of an external function by its name
                self._uncounted[str(texts[0].value)] = None
            given = [item for item in node.args if not isinstance(item, tvm.ir.StringImm)]
            return Expr("call", dtype, tuple(map(self._expr, given)), name)
        if isinstance(node, tirx.Let):
            self._bound[node.var] = self._expr(node.value)
            return self._expr(node.body)
        raise DataError(
            f"Cannot turn TIR into a loop tree: got an expression of type {type(node).__name__}; "
            "expected scalar arithmetic, loads and calls."
        )

    def _int_or_expr(self, node: Any) -> int | Expr:
        expr = Expr("const", "int32", (), node) if isinstance(node, int) else self._expr(node)
        return int(expr.value) if expr.op == "const" else expr

    def _var_name(self, var: Any) -> str:
        if var not in self._names:
            self._names[var] = self._unique(str(var.name))
        return self._names[var]

    def _unique(self, base: str) -> str:
        name, count = base, 0
        while name in self._used_names:
            count += 1
            name = f"{base}_{count}"
        self._used_names.add(name)
        return name

    def _access(self, buffer: Any, indices: Any) -> tuple[Buffer, tuple[Expr, ...]]:
        """Returns buffer and indices of an access; for a view, those of the underlying buffer."""
        found = tuple(self._expr(index) for index in indices)
        if buffer not in self._views:
            order = _layout(buffer)[1]
            return self._buffer(buffer), tuple(_ZERO if n is None else found[n] for n in order)
        view, behind = self._buffer(buffer), self._behind(buffer)
        if behind.dtype != view.dtype or view.shape == behind.shape:
            return (behind, found) if behind.dtype == view.dtype else (view, found)
        start = buffer.ty.elem_offset
        offset = int_const(0) if start is None else self._expr(start)
        for index, step in zip(found, _steps(view.shape), strict=True):
            offset = _sum(offset, _product(index, step))
        parts = []
        for extent, step in zip(behind.shape, _steps(behind.shape), strict=True):
            part = Expr("floordiv", offset.dtype, (offset, int_const(step)))
            parts.append(Expr("floormod", offset.dtype, (part, int_const(extent))))
        return behind, tuple(parts)

    def _behind(self, view: Any) -> Buffer:
        while view in self._views:
            if view.ty.strides:
                raise DataError(f"Cannot turn TIR into a loop tree: the view {view} has strides.")
            view = self._views[view]
        return self._buffer(view)

    def _buffer(self, node: Any) -> Buffer:
        if node not in self._buffers:
            extents = getattr(getattr(node, "ty", None), "shape", None)
            if extents is None or not all(isinstance(e, tirx.IntImm) for e in extents):
                raise DataError(
                    f"Cannot turn TIR into a loop tree: got {node}; expected a buffer of constant "
                    "shape."
                )
            shape = _layout(node)[0]
            self._buffers[node] = Buffer(node.name, str(node.dtype), shape, str(node.scope()))
        return self._buffers[node]


def _layout(buffer: Any) -> tuple[tuple[int, ...], list[int | None]]:
    """Returns a buffer's shape as it is in memory, and which of its axes each of those is.

    They differ for buffers with strides: axes are sorted, and padding counts. None = an axis of the
    elements between two neighbours.

    Raises:
        DataError: elements overlap, or an axis ends within a row of another.
    """
    shape: list[int] = [int(extent) for extent in buffer.ty.shape]
    steps: list[int] = [getattr(step, "value", 0) for step in buffer.ty.strides]
    if not steps or steps == _steps(tuple(shape)):
        return tuple(shape), list(range(len(shape)))
    if min(steps) > 0:
        order = sorted(range(len(steps)), key=lambda axis: (-steps[axis], shape[axis]))
        rows = [divmod(steps[outer], steps[inner]) for outer, inner in pairwise(order)]
        extents = [shape[order[0]], *(count for count, _ in rows)]
        fits = all(shape[axis] <= extent for axis, extent in zip(order, extents, strict=True))
        if fits and not any(rest for _, rest in rows):
            step = steps[order[-1]]
            return (*extents, *[step][: step > 1]), [*order, *[None][: step > 1]]
    raise DataError(
        f"Cannot turn TIR into a loop tree: buffer {buffer.name} of {shape} has strides "
        f"{list(buffer.ty.strides)}; "
        "expected numbers of a permuted or padded row-major layout."
    )


def _viewed(data: Any) -> Any:
    """Returns the buffer that a view refers to."""
    if isinstance(data, Call) and data.args and isinstance(data.args[0], tirx.Var):
        return data.args[0]
    raise DataError(f"Cannot turn TIR into a loop tree: got a view of {data}; expected a buffer.")


def _lanes(index: Any) -> int:
    found = _VECTOR.search(str(index.ty))
    return int(found[0][1:]) if found else 1


def _steps(shape: tuple[int, ...]) -> list[int]:
    """Returns the stride of each dimension, in elements."""
    return [math.prod(shape[place + 1 :]) for place in range(len(shape))]


def _product(index: Expr, step: int) -> Expr:
    return index if step == 1 else Expr("mul", index.dtype, (index, int_const(step)))


def _sum(left: Expr, right: Expr) -> Expr:
    return Expr("add", right.dtype, (left, right))


_OP_OF_CLASS_NAME: Mapping[str, str] = {name: op for op, name in TIRX_CLASS_OF_OP.items()}
#: Bitwise operations, which are calls in older TVMs.
_CALL_OF_CLASS_NAME: Mapping[str, str] = {
    "BitwiseAnd": "tir.bitwise_and", "BitwiseOr": "tir.bitwise_or",
    "BitwiseXor": "tir.bitwise_xor", "BitwiseNot": "tir.bitwise_not",
    "LShift": "tir.shift_left", "RShift": "tir.shift_right",
}  # fmt: skip
assert set(_OP_OF_CLASS_NAME.values()) == BINARY_OPS
