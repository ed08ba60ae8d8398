"""Tree shapes by level, so that a batch of trees is combined level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cdmpp.arrays import IntArray


@dataclass(frozen=True)
class ShapeLevel:
    """Inner nodes of one height; missing children are -1.

    Attributes:
        leaf: int64 [node, most], leaves directly below each node, in program order.
        child_level: int64 [node, most], level of each inner child.
        child_place: int64 [node, most], position of each inner child in its level.
    """

    leaf: IntArray
    child_level: IntArray
    child_place: IntArray


@dataclass(frozen=True)
class TreeShape:
    """Inner nodes by height: those of level 0 have only leaves; the last level is the root."""

    levels: tuple[ShapeLevel, ...]


@dataclass
class _Inner:
    leaves: list[int] = field(default_factory=list)
    children: list[_Inner] = field(default_factory=list)
    level: int = 0
    place: int = 0


def tree_shape(
    tree: Sequence[int], leaf_position: Sequence[int], *, collapse_chains: bool
) -> TreeShape:
    """Returns the shape of a serialised tree.

    Args:
        tree: pre-order serialisation: a node's number on entry and -1 on exit.
        leaf_position: index of each leaf's number in `tree`, ascending.
        collapse_chains: whether to leave out inner nodes whose only child is an inner node.
    """
    leaf_at = {int(position): leaf for leaf, position in enumerate(leaf_position)}
    top = _Inner()
    path = [top]
    for position, number in enumerate(tree):
        if number < 0:
            path.pop()
        elif position in leaf_at:
            path[-1].leaves.append(leaf_at[position])
            path.append(_Inner())  # a leaf has no children
        else:
            inner = _Inner()
            path[-1].children.append(inner)
            path.append(inner)
    levels: list[list[_Inner]] = []
    _place(top.children[0] if top.children else top, levels, collapse_chains)
    return TreeShape(tuple(_level(nodes) for nodes in levels))


def _place(node: _Inner, levels: list[list[_Inner]], collapse_chains: bool) -> _Inner:
    """Assigns levels to a node and its descendants; returns the node after collapsing chains."""
    while collapse_chains and not node.leaves and len(node.children) == 1:
        node = node.children[0]
    node.children = [_place(child, levels, collapse_chains) for child in node.children]
    node.level = 1 + max((child.level for child in node.children), default=-1)
    while len(levels) <= node.level:
        levels.append([])
    node.place = len(levels[node.level])
    levels[node.level].append(node)
    return node


def _level(nodes: list[_Inner]) -> ShapeLevel:
    return ShapeLevel(
        leaf=_padded([node.leaves for node in nodes]),
        child_level=_padded([[child.level for child in node.children] for node in nodes]),
        child_place=_padded([[child.place for child in node.children] for node in nodes]),
    )


def _padded(rows: list[list[int]]) -> IntArray:
    padded = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded
