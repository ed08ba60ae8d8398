"""TVM's default schedules of unscheduled programs."""

from __future__ import annotations

from typing import Any

from cdmpp.errors import DataError, last_line
from cdmpp.processes.collector import without_collector
from tvm_helper.compat import Schedule, Target, relax, s_tir, tirx, tvm
from tvm_helper.quick_import import cheap_inspect_stack
from tvm_helper.tir.loop_tree import child_statements


def default_schedule(module: Any, target: Target) -> Schedule:
    """Returns the schedule of relax's default pipeline: unchanged on a CPU, and by the first
    applicable DLight rule on a GPU.

    Args:
        module: an `IRModule` with an unscheduled `main`.

    Raises:
        DataError: no rule applies, or a rule fails.
    """
    if target.kind.name != "llvm":
        given = module["main"]
        backend = getattr(relax.backend, target.kind.name, relax.backend.gpu_generic)
        *_, apply_rules = backend.legalize_passes(target)
        try:
            # A rule may import TVM's tensor intrinsics: 5 seconds, or 90 without the patch.
            with target, cheap_inspect_stack(), without_collector():
                module = apply_rules(tvm.IRModule({"main": module["main"]}))
        except Exception as error:  # TVM's rules raise many types
            raise DataError(_why_not(given, last_line(error))) from None
        if "tirx.is_scheduled" not in module["main"].attrs:
            raise DataError(_why_not(given, ""))
    return s_tir.Schedule(module, debug_mask="none", error_render_level="none")


def dlight_schedule(module: Any, target: Target) -> Schedule:
    """Returns the schedule of the first applicable DLight rule, with its trace. On a GPU, the rules
    are those of relax; on a CPU, DLight's rules for CPUs, which relax does not use.

    Args:
        module: an `IRModule` with an unscheduled `main`.

    Raises:
        DataError: no rule applies, or a rule fails.
    """
    try:
        with target, cheap_inspect_stack(), without_collector():
            for rule in _rules(target):
                found = rule.apply(module["main"], target, False)
                if found is not None:
                    return found[0] if isinstance(found, list) else found
    except Exception as error:  # TVM's rules raise many types
        raise DataError(f"DLight's rules fail on it ({last_line(error)})") from None
    raise DataError(f"no DLight rule for {target.kind.name} applies")


def _rules(target: Target) -> list[Any]:
    if target.kind.name == "llvm":
        from tvm.s_tir.dlight import cpu

        return [cpu.GEMV(), cpu.Reduction()]
    backend = getattr(relax.backend, target.kind.name, relax.backend.gpu_generic)
    *_, apply_rules = backend.legalize_passes(target)
    return list(apply_rules.rules)


def _why_not(function: Any, error: str) -> str:
    """Returns the reason why TVM's default rules do not schedule a function.

    Args:
        error: error of the rules; empty if none applies.
    """
    bare = _store_outside_blocks(function.body)
    if bare is not None:
        return (
            f"TVM's default rules schedule blocks, but its store to {bare} is outside of all "
            "blocks; write it inside of T.sblock"
        )
    if not error:
        return "no TVM default rule (DLight) applies to its blocks"
    what = error.rpartition("Error message: ")[2].rstrip(": ")
    return f"TVM's default rules (DLight) fail on it: {what}"


def _store_outside_blocks(statement: Any) -> str | None:
    """Returns the buffer of the first store outside of all blocks but the root; else None."""
    if isinstance(statement, tirx.BufferStore):
        return str(statement.buffer.name)
    if isinstance(statement, s_tir.SBlockRealize):
        block = statement.block
        return _store_outside_blocks(block.body) if block.name_hint == "root" else None
    found = map(_store_outside_blocks, child_statements(statement))
    return next((one for one in found if one is not None), None)
