"""What TVM makes of a program that nobody scheduled."""

from __future__ import annotations

from typing import Any

from cdmpp.errors import DataError, last_line
from tvm_helper.compat import Schedule, Target, relax, s_tir, tvm
from tvm_helper.quick_import import cheap_inspect_stack, without_garbage_collection


def default_schedule(module: Any, target: Target) -> Schedule:
    """Returns a program as relax's default pipeline compiles it: on a CPU as it stands, on a GPU
    scheduled by the first of DLight's rules that fits.

    Args:
        module: an `IRModule` with an unscheduled `main`.

    Raises:
        DataError: none of the rules fits.
    """
    if target.kind.name != "llvm":
        backend = getattr(relax.backend, target.kind.name, relax.backend.gpu_generic)
        *_, apply_rules = backend.legalize_passes(target)
        try:
            # A rule may import TVM's tensor intrinsics: 5 seconds, or 90 at TVM's own pace.
            with target, cheap_inspect_stack(), without_garbage_collection():
                module = apply_rules(tvm.IRModule({"main": module["main"]}))
        except Exception as error:  # TVM raises whatever its rules do
            raise DataError(f"TVM's default rules fail on it ({last_line(error)})") from None
        if "tirx.is_scheduled" not in module["main"].attrs:
            raise DataError("none of TVM's default rules fits it")
    return s_tir.Schedule(module, debug_mask="none", error_render_level="none")
