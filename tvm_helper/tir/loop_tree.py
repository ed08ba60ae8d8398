"""TIR to the loop tree: the reference walker, in Python.

A module is lowered with a short pass list to plain loops with multi-dimensional buffers and the
walker turns every statement into a node; blocks, sequences and bindings make none. Indices and
regions are then brought to the canonical level here (`cdmpp.programs.loops.canonical`), because
TVM's own passes for that take most of the time and change from version to version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from cdmpp.errors import DataError
from cdmpp.programs.loops.canonical import canonical
from cdmpp.programs.loops.expr import BINARY_OPS, Buffer, Expr
from cdmpp.programs.loops.loop_tree import (
    Attribute,
    Condition,
    Loop,
    LoopKind,
    LoopTree,
    Node,
    Store,
)
from tvm_helper.compat import Call, Sequential, TensorLoad, block_passes, tirx
from tvm_helper.tir.packing import runnable
from tvm_helper.tir.prim_func import TIRX_CLASS_OF_OP

_FOR_KINDS: tuple[LoopKind, ...] = ("serial", "parallel", "vectorized", "unrolled")
_THREAD_ATTRS = ("thread_extent", "virtual_thread")


def loop_tree_from_tir(module: Any, *, lowered: bool = False) -> LoopTree:
    """Returns the loop tree of a scheduled module, without what packs its weights beforehand.

    Args:
        module: an `IRModule` with one function `main`.
        lowered: whether its blocks are lowered already.

    Raises:
        DataError: `main` is missing or holds a statement that has no place in a loop tree.
    """
    if "main" not in [var.name_hint for var in module.get_global_vars()]:
        raise DataError("Cannot read a TIR module: got no function `main`; expected exactly one.")
    plain = module if lowered else _TO_LOOPS(runnable(module))
    return _Walker(plain["main"]).tree()


def lowering_passes() -> Any:
    """Returns the pass that turns blocks into plain loops; a lowered module stays as it is."""
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
    """Returns the statements directly below a statement; a block hides its own."""
    if isinstance(statement, tirx.SeqStmt):
        return list(statement.seq)
    if isinstance(statement, tirx.IfThenElse):
        both = (statement.then_case, statement.else_case)
        return [case for case in both if case is not None]
    body = getattr(statement, "body", None)
    return [] if body is None else [body]


def _reduction_registers(statement: Any) -> set[Any]:
    """Returns the one-element buffers through which threads combine their partial reductions.

    The original keeps them as bare registers, whose stores are not stores to a buffer.
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
    """Turns one lowered function into a loop tree."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._names: dict[Any, str] = {}
        self._used_names: set[str] = set()
        self._bound: dict[Any, Expr] = {}
        self._buffers: dict[Any, Buffer] = {}
        self._allocated: list[Buffer] = []
        self._registers = _reduction_registers(function.body)
        self._is_gpu = False

    def tree(self) -> LoopTree:
        parameters = tuple(self._buffer(parameter) for parameter in self._function.params)
        body = self._statement(self._function.body)
        return canonical(LoopTree(parameters, body, self._is_gpu), self._allocated)

    # Statements.

    def _statement(self, node: Any) -> list[Node]:
        if isinstance(node, tirx.SeqStmt):
            return [made for item in node.seq for made in self._statement(item)]
        if isinstance(node, tirx.BufferStore):
            if node.buffer in self._registers:
                return []
            indices = tuple(self._expr(index) for index in node.indices)
            return [Store(self._buffer(node.buffer), indices, self._expr(node.value))]
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
        if isinstance(node, tirx.Evaluate):
            return []
        raise DataError(
            f"Cannot turn TIR into a loop tree: got a statement of type {type(node).__name__}; "
            "expected loops, conditions, stores, attributes and allocations."
        )

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
        if isinstance(node, tirx.IntImm):
            return Expr("const", dtype, (), int(node.value))
        if isinstance(node, tirx.FloatImm):
            return Expr("const", dtype, (), float(node.value))
        if isinstance(node, TensorLoad):
            if node.source in self._registers:
                return Expr("var", dtype, (), self._var_name(node.source))
            indices = tuple(self._expr(index) for index in node.indices)
            buffer = self._buffer(node.source)
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
        if isinstance(node, Call):
            name = "tir." + str(node.op.name).rpartition(".")[2]
            return Expr("call", dtype, tuple(self._expr(item) for item in node.args), name)
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
            name, count = str(var.name), 0
            while name in self._used_names:
                count += 1
                name = f"{var.name}_{count}"
            self._used_names.add(name)
            self._names[var] = name
        return self._names[var]

    def _buffer(self, node: Any) -> Buffer:
        if node not in self._buffers:
            extents = getattr(getattr(node, "ty", None), "shape", None)
            if extents is None or not all(isinstance(e, tirx.IntImm) for e in extents):
                raise DataError(
                    f"Cannot turn TIR into a loop tree: got {node}; expected a buffer of constant "
                    "shape."
                )
            shape = tuple(int(extent) for extent in extents)
            self._buffers[node] = Buffer(node.name, str(node.dtype), shape, str(node.scope()))
        return self._buffers[node]


_OP_OF_CLASS_NAME: Mapping[str, str] = {name: op for op, name in TIRX_CLASS_OF_OP.items()}
assert set(_OP_OF_CLASS_NAME.values()) == BINARY_OPS
