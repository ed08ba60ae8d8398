"""A scheduled function of the old TVM whose blocks were lowered, as JSON node graph, to the loop
tree. Needs no TVM.

The same level as `tvm_helper.tir.loop_tree` gives of today's modules: loops over buffers of full
shape, which are declared where they are allocated; then the canonical level.
"""

from __future__ import annotations

from typing import Any

from cdmpp.programs.loops.canonical import canonical
from cdmpp.programs.loops.expr import Buffer
from cdmpp.programs.loops.loop_tree import LoopTree, Node
from tvm_helper.legacy.dividends import restore_dividends
from tvm_helper.legacy.tir import TirReader, loop_tree_from_json

_ALL_REDUCE = "tir.tvm_thread_allreduce"


def loop_tree_of_blocks(text: str) -> LoopTree:
    """Returns the canonical loop tree of a function.

    Args:
        text: JSON node graph of a `PrimFunc` without blocks, as the side environment answers.

    Raises:
        DataError: not such a graph, or a node that has no place in a loop tree.
    """
    return loop_tree_from_json(text, _BlockReader)


class _BlockReader(TirReader):
    """Reads one function. Buffers that threads reduce through are registers: no store, no load."""

    def __init__(self, nodes: list[dict[str, Any]], root: int) -> None:
        super().__init__(nodes, root)
        self._allocated: list[Buffer] = []
        self._registers = self._reduction_registers()

    def tree(self) -> LoopTree:
        tree = super().tree()
        restore_dividends(tree)
        return canonical(tree, self._allocated)

    def _reduction_registers(self) -> set[int]:
        found: set[int] = set()
        for node in self._nodes:
            attrs = node.get("attrs", {})
            if node["type_key"] != "tir.Call" or self._text(attrs["op"]) != _ALL_REDUCE:
                continue
            for item in self._items(attrs["args"]):
                if self._nodes[item]["type_key"] == "tir.BufferLoad":
                    buffer = int(self._nodes[item]["attrs"]["buffer"])
                    if self._buffer(buffer).scope == "local":
                        found.add(buffer)
        return found

    def _is_in_memory(self, buffer: int) -> bool:
        known = super()._is_in_memory(buffer)
        if not known and buffer not in self._registers:
            raise KeyError(f"a buffer {self._buffer(buffer).name} that nothing allocates")
        return known

    def _statement(self, number: int) -> list[Node]:
        node = self._nodes[number]
        if node["type_key"] == "tir.DeclBuffer":
            buffer = int(node["attrs"]["buffer"])
            if buffer not in self._registers:
                self._in_memory.add(buffer)
                self._allocated.append(self._buffer(buffer))
        return super()._statement(number)
