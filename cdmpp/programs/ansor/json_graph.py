"""Reads TVM's JSON node graphs (written by `tvm.ir.save_json`) as plain data.

`cdmpp.programs.ansor.dag_json` builds on it to read expressions and buffers.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from cdmpp.errors import DataError


class JsonGraph:
    """A graph of typed nodes that reference each other by number; node 0 is null.

    Attributes:
        nodes: the nodes as parsed JSON: `type_key`, `attrs`, `data`, `keys`, `repr_str`.
        root: number of the root node.
    """

    def __init__(self, text: str) -> None:
        """Parses the graph.

        Raises:
            DataError: not JSON, or not a node graph.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _unreadable(f"not JSON ({error})") from None
        try:
            self.nodes: list[dict[str, Any]] = value["nodes"]
            self.root = int(value["root"])
            self.type_keys: list[str] = [str(node["type_key"]) for node in self.nodes]
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise _unreadable(f"got {type(error).__name__}: {error}") from None

    def type_key(self, number: int) -> str:
        """Returns the type of a node, e.g. `ComputeOp`; empty for null."""
        return self.type_keys[number]

    def attribute(self, number: int, name: str) -> str:
        """Returns the text of an attribute; empty if the node lacks it.

        Raises:
            DataError: the node does not exist.
        """
        try:
            return str(self.nodes[number].get("attrs", {}).get(name, ""))
        except IndexError:
            raise _unreadable(f"node {number} of {len(self.nodes)} does not exist") from None
        except AttributeError:
            raise _unreadable(f"the attributes of node {number} are not a JSON object") from None

    def required(self, number: int, name: str) -> str:
        """Returns the text of an attribute.

        Raises:
            DataError: the node or the attribute does not exist.
        """
        text = self.attribute(number, name)
        if not text and name not in self.nodes[number]["attrs"]:
            raise _unreadable(f"node {number} ({self.type_key(number)}) has no attribute {name}")
        return text

    def reference(self, number: int, name: str) -> int:
        """Returns the number of the node that an attribute references; 0 = null.

        Raises:
            DataError: the attribute is not a node number.
        """
        text = self.attribute(number, name)
        try:
            reference = int(text or 0)
        except ValueError:
            reference = -1
        if not 0 <= reference < len(self.nodes):
            raise _unreadable(f"{name} of node {number} is {text!r:.40}, no node number")
        return reference

    def items(self, number: int) -> list[int]:
        """Returns the node numbers in an array or the values of a map.

        Raises:
            DataError: the node contains something else.
        """
        try:
            return [int(item) for item in self.nodes[number].get("data", [])]
        except (TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
            raise _unreadable(f"node {number} is not an array of node numbers ({error})") from None

    def mapping(self, number: int) -> dict[str, int]:
        """Returns a map with text keys as key -> node number.

        Raises:
            DataError: the node is not a map with text keys.
        """
        items = self.items(number)
        keys = self.nodes[number].get("keys", [])
        if not isinstance(keys, list):
            raise _unreadable(f"node {number} is not a map with a list of keys")
        return dict(zip(map(str, keys), items, strict=False))

    def text(self, number: int) -> str:
        """Returns the text of a string node."""
        node = self.nodes[number]
        if "repr_b64" in node:
            return base64.b64decode(node["repr_b64"]).decode("utf-8", "replace")
        return str(node.get("repr_str", ""))

    def integer(self, number: int) -> int | None:
        """Returns the value of an integer constant; None for any other node.

        Raises:
            DataError: the constant has no value.
        """
        if self.type_keys[number] != "IntImm":
            return None
        try:
            return int(self.attribute(number, "value"))
        except ValueError as error:
            raise _unreadable(f"node {number} is not an integer constant ({error})") from None


def _unreadable(found: str) -> DataError:
    return DataError(
        f"Cannot read the computation graph of a task: {found}; expected TVM's JSON node graph, an "
        "object with a list `nodes` and the number of its `root`. Unpack network_info again."
    )
