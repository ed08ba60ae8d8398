"""A loop tree as flat arrays: what the native code reads instead of Python objects."""

from __future__ import annotations

import types
from array import array
from collections.abc import Mapping, Sequence

from cdmpp.errors import DataError
from cdmpp.programs.loops.expr import Expr
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    LoopTree,
    Node,
    Store,
)
from cdmpp.programs.native.flatten import FlatWriter

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


def flatten_tree(tree: LoopTree) -> tuple[array[int], bytes]:
    """Returns the flat form of a program: 64-bit integers, and the text of its names.

    Raises:
        DataError: it holds something that the flat form has no place for.
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
    """Returns the nodes with annotations that change no feature replaced by their bodies."""
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, Attribute) and node.key != _UNROLL_KEY:
            result += _without_marks(node.body)
        else:
            result.append(node)
    return result
