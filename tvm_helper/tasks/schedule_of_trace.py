"""Schedules of MetaSchedule traces."""

from __future__ import annotations

from typing import Any

from cdmpp.errors import ReplayError
from cdmpp.processes.serve import first_error_text
from tvm_helper.compat import Schedule, import_tensor_intrinsics, s_tir


def schedule_of(module: Any, trace: Any) -> Schedule:
    """Applies a trace to a module and returns the schedule.

    Args:
        module: unscheduled `IRModule` or `PrimFunc`; not changed.
        trace: JSON in the format of MetaSchedule's databases: instructions and decisions.

    Raises:
        ReplayError: the trace does not apply to the module.
    """
    if any(isinstance(step, list) and step[:1] == ["Tensorize"] for step in trace[0]):
        import_tensor_intrinsics()
    schedule = s_tir.Schedule(module, debug_mask="none", error_render_level="none")
    try:
        s_tir.schedule.Trace.apply_json_to_schedule(list(trace), schedule)
    except Exception as error:  # TVM's checks raise many types
        raise ReplayError("trace cannot be applied", first_error_text(str(error))[:160]) from None
    return schedule
