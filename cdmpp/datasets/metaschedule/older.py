"""Databases of older TVMs: the format of a module, and its conversion for TVM 0.17.

Old modules are graphs with a `type_key` per node; TVM 0.27 writes another kind of graph. Before
Relax (up to builds of TVM 0.16), modules lack `global_infos`, typed expressions lack
`struct_info_`, and the instruction Split lacks the attribute `disable_predication`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

#: Instruction -> number of attributes in TVM 0.17, and the last one, which older TVMs do not write.
_LATER_ATTRIBUTES = {"Split": (2, False)}


@dataclass(frozen=True)
class ModuleFormat:
    """Format of a module's JSON.

    Attributes:
        is_old: whether it is a graph with a `type_key` per node, which the current TVM rejects.
        version: version of the TVM that wrote it, or `unknown`.
    """

    is_old: bool
    version: str


def module_format(module_json: str) -> ModuleFormat:
    """Returns the format of a module; for invalid text, the current format of unknown version."""
    try:
        graph = json.loads(module_json)
    except (ValueError, RecursionError):
        graph = None
    is_old = _is_old(graph)
    notes = graph.get("attrs" if is_old else "metadata") if isinstance(graph, dict) else None
    version = notes.get("tvm_version") if isinstance(notes, dict) else None
    return ModuleFormat(is_old, version if isinstance(version, str) else "unknown")


def _is_old(graph: Any) -> bool:
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    return (
        isinstance(nodes, list)
        and bool(nodes)
        and all(isinstance(node, dict) and isinstance(node.get("type_key"), str) for node in nodes)
    )


def upgraded_module(module_json: str) -> str:
    """Returns an old module's JSON with the attributes that TVM 0.17 expects.

    A module that has them is unchanged.

    Args:
        module_json: a module of the old format.
    """
    graph: dict[str, Any] = json.loads(module_json)
    nodes: list[dict[str, Any]] = graph["nodes"]
    no_infos = None
    for node in list(nodes):
        attrs = node.get("attrs")
        if not isinstance(attrs, dict):
            continue
        if "_checked_type_" in attrs:
            attrs.setdefault("struct_info_", "0")  # node 0 is null
        if node["type_key"] == "IRModule" and "global_infos" not in attrs:
            if no_infos is None:
                no_infos = str(len(nodes))
                nodes.append({"type_key": "Map"})
            attrs["global_infos"] = no_infos
    return json.dumps(graph)


def upgraded_trace(trace: list[Any]) -> list[Any]:
    """Returns a trace with the attributes of instructions that TVM 0.17 expects.

    Args:
        trace: instructions and decisions, as in the database; not modified.
    """
    instructions, *rest = trace
    return [[_upgraded_instruction(step) for step in instructions], *rest]


def _upgraded_instruction(step: Any) -> Any:
    if not (isinstance(step, list) and len(step) >= 3 and isinstance(step[2], list)):
        return step
    count, default = (
        _LATER_ATTRIBUTES.get(step[0], (0, None)) if isinstance(step[0], str) else (0, None)
    )
    if len(step[2]) != count - 1:
        return step
    return [step[0], step[1], [*step[2], default], *step[3:]]
