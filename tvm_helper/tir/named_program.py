"""Named tensor programs of files and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdmpp.programs.loops.loop_tree import Loop, LoopTree, stores_with_path
from tvm_helper.compat import tirx, tvm

_OF_RELAX = "of a Relax module, whose other operators are not predicted"


@dataclass(frozen=True)
class NamedProgram:
    """A program of a file.

    Attributes:
        name: name of the variable, or `variable.function` in an `IRModule`.
        module: an `IRModule` whose only function is `main`; None with a fault.
        fault: reason why the program cannot be read; empty if it can.
        note: note on the way the program was read; empty without one.
        source: the unscheduled module, if TVM's default rules scheduled it; else None.
    """

    name: str
    module: Any
    fault: str = ""
    note: str = ""
    source: Any = None


def programs_of(values: dict[str, Any]) -> list[NamedProgram]:
    """Returns the programs among named values, each object once."""
    found: list[NamedProgram] = []
    seen: list[Any] = []
    for name, value in values.items():
        if any(value is other for other in seen):
            continue
        if isinstance(value, tirx.PrimFunc):
            seen.append(value)
            found.append(NamedProgram(name, _main_module(value)))
        elif isinstance(value, tvm.IRModule):
            seen.append(value)
            functions = [
                (str(key.name_hint), function)
                for key, function in value.functions.items()
                if isinstance(function, tirx.PrimFunc)
            ]
            note = _OF_RELAX if len(functions) < len(value.functions) else ""
            found += [
                NamedProgram(f"{name}.{own}", _main_module(function), note=note)
                for own, function in functions
            ]
    return found


def is_scheduled(tree: LoopTree) -> bool:
    """Whether any store is in a parallel, vectorised, unrolled or thread-bound loop, or below an
    annotation.
    """
    for _, path in stores_with_path(tree):
        for node in path:
            if not isinstance(node, Loop) and type(node).__name__ == "Attribute":
                return True
            if isinstance(node, Loop) and node.kind != "serial":
                return True
    return False


def _main_module(function: Any) -> Any:
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
