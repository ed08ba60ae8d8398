"""A user's Python file with tensor programs (TVMScript, or anything that makes a PrimFunc)."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.programs.loops.loop_tree import Loop, LoopTree, stores_with_path
from tvm_helper.compat import tirx, tvm


@dataclass(frozen=True)
class NamedProgram:
    """A program of a file.

    Attributes:
        name: the variable, or `variable.function` in an `IRModule`.
        module: an `IRModule` whose only function is `main`.
    """

    name: str
    module: Any


def read_programs(path: Path) -> list[NamedProgram]:
    """Runs a Python file and returns the programs that it leaves behind, in its order.

    Raises:
        DataError: the file cannot be run, or defines no program.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; expected Python with a TVMScript PrimFunc")
    # TVMScript reads the source of its functions, so the module has to be findable.
    name = f"_cdmpp_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path}: is no Python file; expected a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's own code
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise DataError(
            f"{path}: cannot be run ({type(error).__name__}: {lines[-1][:200] if lines else ''}); "
            "expected TVMScript of this TVM: from tvm.script import tirx as T, "
            "@T.prim_func(s_tir=True)"
        ) from None
    finally:
        del sys.modules[name]
    found = programs_of(vars(module))
    if not found:
        raise DataError(
            f"{path}: defines no tensor program; expected a top-level PrimFunc or IRModule"
        )
    return found


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
            found += [
                NamedProgram(f"{name}.{own}", _main_module(function)) for own, function in functions
            ]
    return found


def is_scheduled(tree: LoopTree) -> bool:
    """Whether any store lies in a parallel, vectorised, unrolled or thread-bound loop, or below an
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
