"""Reading TVM 0.8's JSON node graphs without TVM: nodes by index, expressions, attribute values."""

from __future__ import annotations

import json
from typing import Any

from cdmpp.errors import DataError
from cdmpp.features.expr import Buffer, Expr, load

_BINARY = {
    "tir.Add": "add", "tir.Sub": "sub", "tir.Mul": "mul", "tir.Div": "div", "tir.Mod": "mod",
    "tir.FloorDiv": "floordiv", "tir.FloorMod": "floormod", "tir.Min": "min", "tir.Max": "max",
    "tir.EQ": "eq", "tir.NE": "ne", "tir.LT": "lt", "tir.LE": "le", "tir.GT": "gt",
    "tir.GE": "ge", "tir.And": "and", "tir.Or": "or",
}  # fmt: skip
_ONE_RESULT_BOOL = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "and", "or"})


class JsonGraph:
    """A parsed node graph with typed access; every malformed reference is a `DataError`."""

    def __init__(self, text: str) -> None:
        try:
            graph = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"Cannot read the computation graph of a task: not JSON ({error}); expected the "
                "node graph that TVM 0.8 writes into network_info. Unpack network_info again."
            ) from error
        if not isinstance(graph, dict) or not isinstance(graph.get("nodes"), list):
            raise DataError(
                "Cannot read the computation graph of a task: got JSON without a list `nodes`; "
                "expected TVM 0.8's node graph. Unpack network_info again."
            )
        self.nodes: list[dict[str, Any]] = graph["nodes"]
        try:
            self.root = int(graph.get("root", 1))
        except (TypeError, ValueError, OverflowError):
            raise DataError(
                f"Cannot read the computation graph of a task: its root is {graph['root']!r:.40}, "
                "expected the number of a node. Unpack network_info again."
            ) from None
        self._exprs: dict[int, Expr] = {}
        self._var_names: dict[int, str] = {}
        self._used_names: set[str] = set()
        self._buffers: dict[tuple[int, int], Buffer] = {}

    def kind(self, index: int) -> str:
        """Returns the type key of a node."""
        return str(self.nodes[index]["type_key"])

    def attr(self, index: int, name: str) -> str:
        """Returns an attribute as the file holds it: text."""
        return str(self.nodes[index]["attrs"][name])

    def ref(self, index: int, name: str) -> int:
        """Returns an attribute that is the index of another node."""
        return int(self.attr(index, name))

    def items(self, index: int) -> list[int]:
        """Returns the node indices in an array node (null counts as empty)."""
        return [int(item) for item in self.nodes[index].get("data", [])]

    def integer(self, index: int) -> int:
        """Returns the value of an integer constant node."""
        if self.kind(index) != "IntImm":
            raise DataError(
                f"Cannot read a computation graph: got {self.kind(index)} where a constant extent "
                "is expected. Dynamic shapes are not supported; leave this task out."
            )
        return int(self.attr(index, "value"))

    def shape(self, index: int) -> tuple[int, ...]:
        """Returns an array of integer constants, in elements."""
        return tuple(self.integer(item) for item in self.items(index))

    def op_of_tensor(self, index: int) -> tuple[int, int]:
        """Returns (operation node, output number) of a tensor node: equal for equal tensors."""
        return self.ref(index, "op"), self.ref(index, "value_index")

    def buffer(self, index: int) -> Buffer:
        """Returns the one `Buffer` of a tensor node; equal tensors share it."""
        op, number = self.op_of_tensor(index)
        return self.output(
            op, number, self.attr(index, "dtype"), self.shape(self.ref(index, "shape"))
        )

    def output(self, op: int, number: int, dtype: str, shape: tuple[int, ...]) -> Buffer:
        """Returns the one `Buffer` of output `number` of an operation node."""
        if (op, number) not in self._buffers:
            name = self.attr(op, "name")
            self._buffers[op, number] = Buffer(
                name if number == 0 else f"{name}.v{number}", dtype, shape
            )
        return self._buffers[op, number]

    def var_name(self, index: int) -> str:
        """Returns the name of a variable node, made unique in the whole graph by a number."""
        if index not in self._var_names:
            base = self.nodes[self.ref(index, "name")].get("repr_str", "") or "v"
            name, count = base, 0
            while name in self._used_names:
                count += 1
                name = f"{base}_{count}"
            self._used_names.add(name)
            self._var_names[index] = name
        return self._var_names[index]

    def expr(self, index: int) -> Expr:
        """Returns the expression that starts at a node. Shared nodes give shared expressions."""
        if index not in self._exprs:
            self._exprs[index] = self._convert(index)
        return self._exprs[index]

    def value(self, index: int) -> Any:
        """Returns an attribute value as plain Python; a tensor becomes its `Buffer`."""
        kind = self.kind(index)
        if kind in ("IntImm", "FloatImm"):
            text = self.attr(index, "value")
            return int(text) if kind == "IntImm" else float(text)
        if kind == "runtime.String":
            return str(self.nodes[index].get("repr_str", ""))
        if kind == "Array":
            return tuple(self.value(item) for item in self.items(index))
        if kind == "Map":
            return self.attrs_map(index)
        if kind == "Tensor":
            return self.buffer(index)
        return None if kind == "" else kind

    def attrs_map(self, index: int) -> dict[str, Any]:
        """Returns a map node with text keys."""
        keys = self.nodes[index].get("keys", [])
        return {
            str(key): self.value(item) for key, item in zip(keys, self.items(index), strict=True)
        }

    def _convert(self, index: int) -> Expr:
        kind = self.kind(index)
        if kind in _BINARY:
            op = _BINARY[kind]
            dtype = "bool" if op in _ONE_RESULT_BOOL else self.attr(index, "dtype")
            return Expr(
                op, dtype, (self.expr(self.ref(index, "a")), self.expr(self.ref(index, "b")))
            )
        dtype = self.attr(index, "dtype")
        if kind == "IntImm":
            return Expr("const", dtype, (), int(self.attr(index, "value")))
        if kind == "FloatImm":
            return Expr("const", dtype, (), float(self.attr(index, "value")))
        if kind == "tir.Var":
            return Expr("var", dtype, (), self.var_name(index))
        if kind == "tir.ProducerLoad":
            indices = tuple(self.expr(item) for item in self.items(self.ref(index, "indices")))
            return load(self.buffer(self.ref(index, "producer")), indices)
        if kind == "tir.Call":
            name = self.nodes[self.ref(index, "op")].get("repr_str")
            if not name:
                raise DataError(
                    f"Cannot read a computation graph: call of {name!r} at node {index}."
                )
            arguments = tuple(self.expr(item) for item in self.items(self.ref(index, "args")))
            return Expr("call", dtype, arguments, str(name))
        if kind == "tir.Select":
            names = ("condition", "true_value", "false_value")
            return Expr("select", dtype, tuple(self.expr(self.ref(index, name)) for name in names))
        if kind == "tir.Cast":
            return Expr("cast", dtype, (self.expr(self.ref(index, "value")),))
        if kind == "tir.Not":
            return Expr("not", "bool", (self.expr(self.ref(index, "a")),))
        raise DataError(
            f"Cannot read a computation graph: expression of type {kind!r} at node {index} is not "
            "supported. Leave this task out and report its workload key."
        )
