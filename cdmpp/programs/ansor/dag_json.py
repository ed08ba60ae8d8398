"""Reads expressions and buffers of TVM 0.8's JSON node graphs without TVM."""

from __future__ import annotations

from typing import Any

from cdmpp.errors import DataError
from cdmpp.programs.ansor.json_graph import JsonGraph
from cdmpp.programs.loops.expr import Buffer, Expr, load

_BINARY = {
    "tir.Add": "add", "tir.Sub": "sub", "tir.Mul": "mul", "tir.Div": "div", "tir.Mod": "mod",
    "tir.FloorDiv": "floordiv", "tir.FloorMod": "floormod", "tir.Min": "min", "tir.Max": "max",
    "tir.EQ": "eq", "tir.NE": "ne", "tir.LT": "lt", "tir.LE": "le", "tir.GT": "gt",
    "tir.GE": "ge", "tir.And": "and", "tir.Or": "or",
}  # fmt: skip
_ONE_RESULT_BOOL = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "and", "or"})


class ExprGraph(JsonGraph):
    """A computation's node graph, read as expressions and buffers.

    A malformed reference raises a `DataError`. Other malformed values raise Python's exceptions,
    which `cdmpp.programs.ansor.dag.parse_dag` converts to a `DataError`.
    """

    def __init__(self, text: str) -> None:
        """Parses the graph.

        Raises:
            DataError: not JSON, or not a node graph.
        """
        super().__init__(text)
        self._exprs: dict[int, Expr] = {}
        self._var_names: dict[int, str] = {}
        self._used_names: set[str] = set()
        self._buffers: dict[tuple[int, int], Buffer] = {}

    def constant(self, number: int) -> int:
        """Returns the value of an integer constant.

        Raises:
            DataError: the node is not an integer constant, or has no value.
        """
        value = self.integer(number)
        if value is None:
            raise DataError(
                f"Cannot read a computation graph: got {self.type_key(number)} where a constant "
                "extent is expected. Dynamic shapes are not supported; leave this task out."
            )
        return value

    def shape(self, index: int) -> tuple[int, ...]:
        """Returns an array of integer constants, in elements."""
        return tuple(self.constant(item) for item in self.items(index))

    def op_of_tensor(self, index: int) -> tuple[int, int]:
        """Returns (operation node, output number) of a tensor node; equal for equal tensors."""
        return self.reference(index, "op"), int(self.required(index, "value_index"))

    def buffer(self, index: int) -> Buffer:
        """Returns the `Buffer` of a tensor node, shared by equal tensors."""
        op, number = self.op_of_tensor(index)
        return self.output(
            op, number, self.required(index, "dtype"), self.shape(self.reference(index, "shape"))
        )

    def output(self, op: int, number: int, dtype: str, shape: tuple[int, ...]) -> Buffer:
        """Returns the shared `Buffer` of output `number` of an operation node."""
        if (op, number) not in self._buffers:
            name = self.required(op, "name")
            self._buffers[op, number] = Buffer(
                name if number == 0 else f"{name}.v{number}", dtype, shape
            )
        return self._buffers[op, number]

    def var_name(self, index: int) -> str:
        """Returns the name of a variable node, with a number if it is not unique in the graph."""
        if index not in self._var_names:
            base = self.nodes[self.reference(index, "name")].get("repr_str", "") or "v"
            name, count = base, 0
            while name in self._used_names:
                count += 1
                name = f"{base}_{count}"
            self._used_names.add(name)
            self._var_names[index] = name
        return self._var_names[index]

    def expr(self, index: int) -> Expr:
        """Returns the expression of a node; shared nodes give shared expressions."""
        if index not in self._exprs:
            self._exprs[index] = self._convert(index)
        return self._exprs[index]

    def value(self, index: int) -> Any:
        """Returns an attribute as a plain Python value; a tensor becomes its `Buffer`."""
        kind = self.type_key(index)
        if kind in ("IntImm", "FloatImm"):
            text = self.required(index, "value")
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

    def _operand(self, index: int, name: str) -> Expr:
        return self.expr(self.reference(index, name))

    def _convert(self, index: int) -> Expr:
        kind = self.type_key(index)
        if kind in _BINARY:
            op = _BINARY[kind]
            dtype = "bool" if op in _ONE_RESULT_BOOL else self.required(index, "dtype")
            return Expr(op, dtype, (self._operand(index, "a"), self._operand(index, "b")))
        dtype = self.required(index, "dtype")
        if kind == "IntImm":
            return Expr("const", dtype, (), int(self.required(index, "value")))
        if kind == "FloatImm":
            return Expr("const", dtype, (), float(self.required(index, "value")))
        if kind == "tir.Var":
            return Expr("var", dtype, (), self.var_name(index))
        if kind == "tir.ProducerLoad":
            places = self.items(self.reference(index, "indices"))
            indices = tuple(self.expr(place) for place in places)
            return load(self.buffer(self.reference(index, "producer")), indices)
        if kind == "tir.Call":
            name = self.nodes[self.reference(index, "op")].get("repr_str")
            if not name:
                raise DataError(
                    f"Cannot read a computation graph: call of {name!r} at node {index}."
                )
            arguments = tuple(self.expr(item) for item in self.items(self.reference(index, "args")))
            return Expr("call", dtype, arguments, str(name))
        if kind == "tir.Select":
            names = ("condition", "true_value", "false_value")
            return Expr("select", dtype, tuple(self._operand(index, name) for name in names))
        if kind == "tir.Cast":
            return Expr("cast", dtype, (self._operand(index, "value"),))
        if kind == "tir.Not":
            return Expr("not", "bool", (self._operand(index, "a"),))
        raise DataError(
            f"Cannot read a computation graph: expression of type {kind!r} at node {index} is not "
            "supported. Leave this task out and report its workload key."
        )
