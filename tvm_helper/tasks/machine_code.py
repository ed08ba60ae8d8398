"""What TVM's compiler makes of scheduled programs, without a run of any of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cdmpp.errors import ReplayError
from tvm_helper.compat import Target, tvm
from tvm_helper.tir.packing import runnable


def code_of(module: Any, target: Target) -> str:
    """Returns the code of a scheduled module after LLVM's optimiser, as LLVM's text.

    Its arguments are taken not to overlap, as those of all that TVM makes itself; the check of its
    arguments would be one function with it otherwise.

    Raises:
        ReplayError: it does not compile for the target.
    """
    try:
        return code_of_built(tvm.compile(_without_aliases(runnable(module)), target=target))
    except Exception as error:  # TVM raises whatever its passes do
        text = (str(error).strip().splitlines() or [type(error).__name__])[-1][:160]
        raise ReplayError(f"it does not compile for {target.kind.name} ({text})") from None


def _without_aliases(module: Any) -> Any:
    return tvm.IRModule({"main": module["main"].with_attr("tirx.noalias", True)})


def code_of_built(executable: Any) -> str:
    """Returns the code of what TVM has compiled."""
    return str(executable.mod.inspect_source("ll"))


def is_target(target: Target, text: str) -> bool:
    """Returns whether a target is the one that a text (TVM's JSON) describes."""
    return str(target) == str(Target(json.loads(text)))


def reads_code(targets: Mapping[str, str], label: str, target: Target) -> bool:
    """Returns whether what has learned from the machine code of some devices reads that of a
    device: one of these, compiled as theirs was, or another CPU of the same instructions, with
    however many threads.

    Args:
        targets: label of each device that it learned from -> target, TVM's JSON.
        label: of the device.
        target: what its programs are compiled for.
    """
    if label in targets:
        return is_target(target, targets[label])
    own = _instructions(target)
    known = [_instructions(Target(json.loads(text))) for text in targets.values()]
    return own["kind"] == "llvm" and own in known


def _instructions(target: Target) -> dict[str, Any]:
    """Returns what of a target says which instructions code may have."""
    options = json.loads(str(target))
    return {name: options.get(name) for name in ("kind", "mcpu", "mtriple", "mattr")}
