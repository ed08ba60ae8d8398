"""Machine code of scheduled programs by TVM's compiler, without running them."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError, ReplayError
from cdmpp.processes.forked import Forked
from cdmpp.processes.serve import ProgramError
from cdmpp.programs.machine_code.columns import machine_code_columns
from tvm_helper.compat import Target, te, tvm
from tvm_helper.tir.packing import runnable

#: Error codes of the child.
_FAILED, _TOO_LONG, _DIED = 1, 2, 3


def code_of(module: Any, target: Target) -> str:
    """Returns the LLVM IR of a scheduled module after LLVM's optimiser, as text.

    Arguments are assumed not to overlap, as in TVM's own functions; otherwise LLVM would merge the
    function with the check of its arguments.

    Raises:
        ReplayError: the module does not compile for the target.
    """
    try:
        return code_of_built(tvm.compile(_without_aliases(runnable(module)), target=target))
    except Exception as error:  # TVM's passes raise many types
        text = (str(error).strip().splitlines() or [type(error).__name__])[-1][:160]
        raise ReplayError(f"it does not compile for {target.kind.name} ({text})") from None


class CodeReader:
    """Reads the machine code of modules that a child process compiles, with a time limit each.

    Args:
        limit_s: maximum seconds of a module.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._child = Forked(
            _read, _load_compiler, timeout_code=_TOO_LONG, died_code=_DIED, killed_code=_DIED
        )
        weakref.finalize(self, self._child.end)

    def columns(self, module: Any, target: Target) -> NDArray[np.float32] | None:
        """Returns float32 [columns] of a scheduled module; None if it only calls a library.

        Raises:
            ReplayError: it does not compile, or not within the limit.
        """
        request = {
            "module": tvm.ir.save_json(module), "target": str(target), "limit_s": self._limit_s
        }  # fmt: skip
        try:
            found = self._child(request, lambda: None)["columns"]
        except ProgramError as error:
            if error.error_code == _TOO_LONG:
                raise ReplayError(f"it takes longer than {self._limit_s:g} s to compile") from None
            died = "its compiler was " if error.error_code == _DIED else ""
            raise ReplayError(f"{died}{error}") from None
        return None if found is None else np.array(found, np.float32)


def _read(request: dict[str, Any], begin: Callable[[], None]) -> dict[str, Any]:
    """Compiles a module in the child; see `CodeReader`."""
    begin()
    module, target = tvm.ir.load_json(request["module"]), Target(json.loads(request["target"]))
    try:
        columns = machine_code_columns(code_of(module, target))
    except (ReplayError, DataError) as error:
        raise ProgramError(_FAILED, str(error)) from None
    return {"columns": None if columns is None else columns.tolist()}


@lru_cache(maxsize=1)
def _load_compiler() -> None:
    """Compiles a program, so that children have the compiler loaded."""
    a = te.placeholder((8,), name="A")
    function = te.create_prim_func([a, te.compute((8,), lambda i: a[i] + a[i], name="B")])
    machine_code_columns(code_of(tvm.IRModule({"main": function}), Target("llvm")))


def _without_aliases(module: Any) -> Any:
    return tvm.IRModule({"main": module["main"].with_attr("tirx.noalias", True)})


def code_of_built(executable: Any) -> str:
    """Returns the LLVM IR of a compiled program."""
    return str(executable.mod.inspect_source("ll"))


def is_target(target: Target, text: str) -> bool:
    """Returns whether a target equals that of a text (TVM's JSON)."""
    return str(target) == str(Target(json.loads(text)))


def reads_code(targets: Mapping[str, str], label: str, target: Target) -> bool:
    """Returns whether a model trained on machine code of some devices supports that of a device:
    a training device with the same target, or another CPU with the same instruction set.

    Args:
        targets: label of a training device -> target as TVM's JSON.
        label: label of the device.
        target: compile target of its programs.
    """
    if label in targets:
        return is_target(target, targets[label])
    own = _instructions(target)
    known = [_instructions(Target(json.loads(text))) for text in targets.values()]
    return own["kind"] == "llvm" and own in known


def _instructions(target: Target) -> dict[str, Any]:
    """Returns the options of a target that determine the instruction set."""
    options = json.loads(str(target))
    return {name: options.get(name) for name in ("kind", "mcpu", "mtriple", "mattr")}
