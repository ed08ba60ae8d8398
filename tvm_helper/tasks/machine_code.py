"""Machine code of scheduled programs by TVM's compiler, without running them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cdmpp.errors import ReplayError
from tvm_helper.compat import Target, tvm
from tvm_helper.tir.packing import runnable


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
