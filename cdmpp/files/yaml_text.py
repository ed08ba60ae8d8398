"""Untrusted YAML: plain values only, with limits on depth and on expansion by aliases."""

from __future__ import annotations

from typing import Any

import yaml

#: The C safe loader if PyYAML has it: many commands parse YAML when they start.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 64
#: Maximum number of values in a document, with aliases expanded.
_MOST_VALUES = 1_000_000


def parse_yaml(text: str) -> Any:
    """Returns the value of one YAML document.

    Raises:
        ValueError: the text is not YAML, names code, is nested too deeply, has a key twice, or has
            too many values with its aliases expanded.
    """
    try:
        _check(text)
        return yaml.load(text, _SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None


def _check(text: str) -> None:
    """Checks the events of a document: needs no recursion and builds no values."""
    open_nodes = [_OpenNode()]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, _SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append(_OpenNode(event.anchor, isinstance(event, yaml.MappingStartEvent)))
            if len(open_nodes) > _DEEPEST:
                raise ValueError(f"nested more than {_DEEPEST} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            done = open_nodes.pop()
            open_nodes[-1].add(done.size)
            if done.anchor:
                sizes[done.anchor] = done.size
        elif isinstance(event, yaml.ScalarEvent):
            open_nodes[-1].add(1, event.value)
        elif isinstance(event, yaml.AliasEvent):
            anchor = str(event.anchor)
            if any(node.anchor == anchor for node in open_nodes):
                raise ValueError(f"{anchor} contains itself")
            open_nodes[-1].add(sizes.get(anchor, 1))


class _OpenNode:
    """A collection that has not ended yet."""

    def __init__(self, anchor: str | None = None, is_mapping: bool = False) -> None:
        self.anchor = anchor
        self.size = 1
        self._is_key = is_mapping
        self._is_mapping = is_mapping
        self._keys: set[str] = set()

    def add(self, size: int, text: str | None = None) -> None:
        self.size += size
        if self.size > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES} values")
        if self._is_key and text is not None:
            if text in self._keys:
                raise ValueError(f"{text[:60]!r} occurs twice")
            self._keys.add(text)
        self._is_key = self._is_mapping and not self._is_key
