"""Loop tree of a TIR function of the old TVM, from its JSON node graph. Needs no TVM.

`tvm.ir.save_json` writes the graph of a function with a TE schedule: loops, `BufferRealize`
allocations, `BufferStore` statements with full indices. Sequences, bindings and annotations without
effect on performance have no node in the tree.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from typing import Any, cast

from cdmpp.errors import DataError
from cdmpp.programs.loops.expr import Buffer, Expr
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    LoopKind,
    LoopTree,
    Node,
    Store,
    children,
)

_BINARY: Mapping[str, str] = types.MappingProxyType({
    "tir.Add": "add", "tir.Sub": "sub", "tir.Mul": "mul", "tir.Div": "div", "tir.Mod": "mod",
    "tir.FloorDiv": "floordiv", "tir.FloorMod": "floormod", "tir.Min": "min", "tir.Max": "max",
    "tir.EQ": "eq", "tir.NE": "ne", "tir.LT": "lt", "tir.LE": "le", "tir.GT": "gt",
    "tir.GE": "ge", "tir.And": "and", "tir.Or": "or",
})  # fmt: skip
_LOOP_KINDS: tuple[LoopKind, ...] = ("serial", "parallel", "vectorized", "unrolled")
_THREAD_ATTRS = ("thread_extent", "virtual_thread")
#: Annotations that become an attribute of the loop tree; double buffers take twice their size.
_KEPT_ATTRIBUTES = ("pragma_", "double_buffer_scope")
#: Statements that only have a body.
_TRANSPARENT = frozenset(("tir.Allocate", "tir.AllocateConst", "tir.DeclBuffer", "tir.AssertStmt"))


def loop_tree_from_json(text: str, read: type[TirReader] | None = None) -> LoopTree:
    """Returns the loop tree of a TIR function.

    Args:
        text: JSON node graph of a `PrimFunc` at the level of the compact AST.
        read: class of the reader; None = reader of TE schedules.

    Raises:
        DataError: not such a graph, or a node without an equivalent in a loop tree.
    """
    try:
        graph = json.loads(text)
        return (read or TirReader)(graph["nodes"], int(graph["root"])).tree()
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise DataError(
            f"Cannot turn a TIR node graph into a loop tree ({type(error).__name__}: {error}); "
            "expected the JSON of a function that the side environment lowered."
        ) from error


class TirReader:
    """Reader of one function with a TE schedule. Nodes are numbers; node 0 is null."""

    def __init__(self, nodes: list[dict[str, Any]], root: int) -> None:
        self._nodes = nodes
        self._function = root
        self._exprs: dict[int, Expr] = {}
        self._names: dict[int, str] = {}
        self._used_names: dict[str, int] = {}
        self._buffers: dict[int, Buffer] = {}
        self._in_memory: set[int] = set()
        self._is_gpu = False

    def tree(self) -> LoopTree:
        function = self._nodes[self._function]
        if function["type_key"] != "tir.PrimFunc":
            raise KeyError(f"root is a {function['type_key']}")
        attrs = function["attrs"]
        pairs = self._items(attrs["buffer_map"])
        buffer_of = dict(zip(pairs[::2], pairs[1::2], strict=True))
        parameters = [buffer_of[item] for item in self._items(attrs["params"])]
        self._in_memory.update(parameters)
        body = self._statement(int(attrs["body"]))
        return LoopTree(tuple(map(self._buffer, parameters)), body, self._is_gpu)

    def _items(self, number: str | int) -> list[int]:
        return [int(item) for item in self._nodes[int(number)].get("data", [])]

    def _text(self, number: str | int) -> str:
        return str(self._nodes[int(number)].get("repr_str", ""))

    # Statements. Nodes without stores below them are left out.

    def _statement(self, number: int) -> list[Node]:
        node = self._nodes[number]
        kind, attrs = node["type_key"], node.get("attrs", {})
        if kind == "tir.SeqStmt":
            return [made for item in self._items(attrs["seq"]) for made in self._statement(item)]
        if kind == "tir.BufferStore":
            return self._store(attrs)
        if kind == "tir.For":
            return self._loop(attrs)
        if kind == "tir.AttrStmt":
            return self._attribute(attrs)
        if kind == "tir.BufferRealize":
            return self._allocation(attrs)
        if kind == "tir.IfThenElse":
            then_body = self._statement(int(attrs["then_case"]))
            otherwise = int(attrs["else_case"])
            else_body = self._statement(otherwise) if otherwise else []
            made = Condition(self._expr(attrs["condition"]), then_body, else_body)
            return [made] if children(made) else []
        if kind in _TRANSPARENT:
            return self._statement(int(attrs["body"]))
        if kind == "tir.LetStmt":
            self._exprs[int(attrs["var"])] = self._expr(attrs["value"])
            return self._statement(int(attrs["body"]))
        if kind == "tir.Evaluate":
            return []
        raise KeyError(f"a statement of type {kind}")

    def _is_in_memory(self, buffer: int) -> bool:
        """Whether a buffer is a parameter or allocated; other buffers are registers."""
        return buffer in self._in_memory

    def _store(self, attrs: dict[str, str]) -> list[Node]:
        """Returns a list with the store; empty for a register.

        Threads combine their partial reductions in registers, which are neither parameters nor
        realized. The features of the original cdmpp do not include them.
        """
        buffer = int(attrs["buffer"])
        if not self._is_in_memory(buffer):
            return []
        indices = tuple(self._expr(index) for index in self._items(attrs["indices"]))
        return [Store(self._buffer(buffer), indices, self._expr(attrs["value"]))]

    def _loop(self, attrs: dict[str, str]) -> list[Node]:
        binding = int(attrs.get("thread_binding", 0))
        kind = self._thread_kind(binding) if binding else _LOOP_KINDS[int(attrs["kind"])]
        name = self._name(int(attrs["loop_var"]))
        body = self._statement(int(attrs["body"]))
        extent = self._int_or_expr(attrs["extent"])
        return [Loop(name, self._int_or_expr(attrs["min"]), extent, kind, body)] if body else []

    def _attribute(self, attrs: dict[str, str]) -> list[Node]:
        key = self._text(attrs["attr_key"])
        if key in _THREAD_ATTRS:
            axis = int(attrs["node"])
            kind = self._thread_kind(axis)
            name = self._name(int(self._nodes[axis]["attrs"]["var"]))
            body = self._statement(int(attrs["body"]))
            return [Loop(name, 0, self._int_or_expr(attrs["value"]), kind, body)] if body else []
        body = self._statement(int(attrs["body"]))
        if not body or not key.startswith(_KEPT_ATTRIBUTES):
            return body
        value = self._expr(attrs["value"])
        constant = value.value if value.op == "const" else None
        return [Attribute(key, constant if isinstance(constant, int) else str(constant), body)]

    def _thread_kind(self, axis: int) -> LoopKind:
        self._is_gpu = True
        tag = self._text(self._nodes[axis]["attrs"]["thread_tag"])
        return cast(LoopKind, "vthread" if tag.startswith("vthread") else tag)

    def _allocation(self, attrs: dict[str, str]) -> list[Node]:
        number = int(attrs["buffer"])
        self._in_memory.add(number)
        ranges = [self._nodes[item]["attrs"] for item in self._items(attrs["bounds"])]
        extents = tuple(self._int_or_expr(item["extent"]) for item in ranges)
        body = self._statement(int(attrs["body"]))
        return [Allocation(self._buffer(number), extents, body)] if body else []

    # Expressions.

    def _expr(self, number: str | int) -> Expr:
        number = int(number)
        made = self._exprs.get(number)
        if made is None:
            made = self._exprs[number] = self._make_expr(number)
        return made

    def _make_expr(self, number: int) -> Expr:
        node = self._nodes[number]
        kind = node["type_key"]
        if kind == "tir.StringImm":
            return Expr("const", "handle", (), self._text(node["attrs"].get("value", 0)))
        attrs = node["attrs"]
        dtype = str(attrs["dtype"])
        op = _BINARY.get(kind)
        if op is not None:
            return Expr(op, dtype, (self._expr(attrs["a"]), self._expr(attrs["b"])))
        if kind == "IntImm":
            return Expr("const", dtype, (), int(attrs["value"]))
        if kind == "FloatImm":
            return Expr("const", dtype, (), float(attrs["value"]))
        if kind in ("tir.Var", "tir.SizeVar"):
            return Expr("var", dtype, (), self._name(number))
        if kind == "tir.BufferLoad":
            return self._load(attrs)
        if kind == "tir.Cast":
            return Expr("cast", dtype, (self._expr(attrs["value"]),))
        if kind == "tir.Not":
            return Expr("not", "bool", (self._expr(attrs["a"]),))
        if kind == "tir.Select":
            parts = ("condition", "true_value", "false_value")
            return Expr("select", dtype, tuple(self._expr(attrs[part]) for part in parts))
        if kind == "tir.Let":
            self._exprs[int(attrs["var"])] = self._expr(attrs["value"])
            return self._expr(attrs["body"])
        if kind == "tir.Call":
            arguments = tuple(self._expr(item) for item in self._items(attrs["args"]))
            return Expr("call", dtype, arguments, self._text(attrs["op"]))
        raise KeyError(f"an expression of type {kind}")

    def _load(self, attrs: dict[str, str]) -> Expr:
        number = int(attrs["buffer"])
        buffer = self._buffer(number)
        if not self._is_in_memory(number):
            return Expr("var", buffer.dtype, (), self._name(number))
        indices = tuple(self._expr(index) for index in self._items(attrs["indices"]))
        return Expr("load", buffer.dtype, indices, buffer)

    def _int_or_expr(self, number: str | int) -> int | Expr:
        expr = self._expr(number)
        return int(expr.value) if expr.op == "const" else expr

    def _name(self, number: int) -> str:
        """Returns the unique name of a variable or register."""
        if number not in self._names:
            name = self._text(self._nodes[number]["attrs"]["name"])
            count = self._used_names.get(name, 0)
            self._used_names[name] = count + 1
            self._names[number] = f"{name}.{count}" if count else name
        return self._names[number]

    def _buffer(self, number: int) -> Buffer:
        if number not in self._buffers:
            attrs = self._nodes[number]["attrs"]
            shape = tuple(
                cast(int, self._int_or_expr(item)) for item in self._items(attrs["shape"])
            )
            pointer = self._nodes[int(self._nodes[int(attrs["data"])]["attrs"]["type_annotation"])]
            scope = self._text(pointer["attrs"]["storage_scope"]) or "global"
            name = self._text(attrs["name"])
            self._buffers[number] = Buffer(name, str(attrs["dtype"]), shape, scope)
        return self._buffers[number]
