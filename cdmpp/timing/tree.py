"""Timers as a tree: each below those that were running when it started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cdmpp.timing.stat import Stat


@dataclass
class TimerNode:
    """A timer below the timers that were running when it started.

    Attributes:
        stat: durations on this call path.
        children: name -> node.
    """

    stat: Stat
    parent: TimerNode | None = None
    children: dict[str, TimerNode] = field(default_factory=dict)
    running: int = 0

    def child(self, name: str) -> TimerNode:
        """Returns the node of a name below this one, made when it is not there."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = TimerNode(Stat(name), self)
        return found

    def walk(self) -> Iterator[TimerNode]:
        """Yields this node and all below it."""
        yield self
        for node in list(self.children.values()):
            yield from node.walk()

    def merge(self, other: TimerNode) -> None:
        """Adds all samples of another tree."""
        self.stat.merge(other.stat)
        for name, node in other.children.items():
            self.child(name).merge(node)


def tree_lines(node: TimerNode, parent_ns: int, depth: int, lines: list[str]) -> None:
    """Adds the lines of the timers below a node, and what none of them has."""
    for child in sorted(node.children.values(), key=lambda each: -each.stat.total_ns):
        stat = child.stat
        if not stat.count and not child.children:
            continue
        share = f"{100 * stat.total_ns / parent_ns:.1f} %" if parent_ns else "-"
        name = "  " * depth + stat.name
        lines.append(
            f"{name:<44}{stat.total_ns / 1e6:>12.3f}{share:>11}{stat.mean_ns / 1e6:>12.4g}"
            f"{stat.count:>9}"
        )
        tree_lines(child, stat.total_ns, depth + 1, lines)
    rest_ns = node.stat.total_ns - sum(each.stat.total_ns for each in node.children.values())
    if node.children and rest_ns > 0:
        name = "  " * depth + "(rest)"
        lines.append(f"{name:<44}{rest_ns / 1e6:>12.3f}{100 * rest_ns / parent_ns:>9.1f} %")


def node_json(node: TimerNode) -> dict[str, Any]:
    """Returns a node and all below it as JSON values, most time first."""
    children = sorted(node.children.values(), key=lambda each: -each.stat.total_ns)
    return {**node.stat.as_json(), "children": [node_json(child) for child in children]}
