"""Loop tree of a scheduled function of the old TVM with lowered blocks, from its JSON node graph.
Needs no TVM.

The graph is on the same level as the result of `tvm_helper.tir.loop_tree` for modules of the
current TVM (loops over buffers of full shape, declared where they are allocated); the result is
canonical.
"""

from __future__ import annotations

from typing import Any

from cdmpp.programs.loops.canonical import canonical
from cdmpp.programs.loops.expr import Buffer
from cdmpp.programs.loops.loop_tree import LoopTree, Node, Store
from tvm_helper.legacy.dividends import restore_dividends
from tvm_helper.legacy.tir import TirReader, loop_tree_from_json

_ALL_REDUCE = "tir.tvm_thread_allreduce"


def loop_tree_of_blocks(text: str) -> LoopTree:
    """Returns the canonical loop tree of a function.

    Args:
        text: JSON node graph of a `PrimFunc` without blocks, from the side environment.

    Raises:
        DataError: not such a graph, or a node without an equivalent in a loop tree.
    """
    return loop_tree_from_json(text, _BlockReader)


class _BlockReader(TirReader):
    """Reader of one function, including reductions across threads."""

    def __init__(self, nodes: list[dict[str, Any]], root: int) -> None:
        super().__init__(nodes, root)
        self._allocated: list[Buffer] = []
        self._reducer: dict[str, str] = {}

    def tree(self) -> LoopTree:
        tree = super().tree()
        restore_dividends(tree)
        return canonical(tree, self._allocated)

    def _is_in_memory(self, buffer: int) -> bool:
        known = super()._is_in_memory(buffer)
        if not known:
            raise KeyError(f"a buffer {self._buffer(buffer).name} that nothing allocates")
        return known

    def _statement(self, number: int) -> list[Node]:
        node = self._nodes[number]
        kind, attrs = node["type_key"], node.get("attrs", {})
        if kind == "tir.DeclBuffer":
            buffer = int(attrs["buffer"])
            self._in_memory.add(buffer)
            self._allocated.append(self._buffer(buffer))
        elif kind == "tir.AttrStmt" and self._text(attrs["attr_key"]) == "reduce_scope":
            self._reducer = self._nodes[int(attrs["node"])]["attrs"]
        elif kind == "tir.Evaluate":
            return self._combined(self._nodes[int(attrs["value"])])
        return super()._statement(number)

    def _combined(self, call: dict[str, Any]) -> list[Node]:
        """Returns the stores of a reduction across threads; an empty list for other calls."""
        attrs = call.get("attrs", {})
        if call["type_key"] != "tir.Call" or self._text(attrs["op"]) != _ALL_REDUCE:
            return []
        arguments = self._items(attrs["args"])
        count = int(self._nodes[arguments[0]]["attrs"]["value"])
        values, registers = arguments[1 : 1 + count], arguments[2 + count : 2 + 2 * count]
        for side, given in (("lhs", registers), ("rhs", values)):
            for variable, value in zip(self._items(self._reducer[side]), given, strict=True):
                self._exprs[variable] = self._expr(value)
        results = self._items(self._reducer["result"])
        return [
            Store(place.value, place.args, self._expr(result), True)
            for place, result in zip(map(self._expr, registers), results, strict=True)
        ]
