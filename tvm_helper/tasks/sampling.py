"""Random schedules of MetaSchedule's design spaces, valid as in its search."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal

from cdmpp.errors import DataError, last_line
from tvm_helper.compat import Schedule, Target, meta_schedule, s_tir

TargetKind = Literal["llvm", "cuda"]
_INTRINSICS = "tvm.s_tir.tensor_intrin"


def first_valid_schedule(function: Any, target: Target, *, seed: int = 0) -> Schedule | None:
    """Returns the first random schedule of a function that MetaSchedule would measure.

    Args:
        function: an unscheduled `PrimFunc`.
        target: a CPU or GPU; its kind selects the design space, without tensor intrinsics.
        seed: seed of the draws.

    Returns:
        The schedule; None if all draws are invalid.

    Raises:
        DataError: TVM cannot create a search space for the function.
    """
    return next(valid_schedules(function, target, seed=seed), None)


def valid_schedules(
    function: Any, target: Target, *, seed: int = 0, tries: int = 2000
) -> Iterator[Schedule]:
    """Yields random schedules that MetaSchedule would measure; some may be equal.

    Schedules for a GPU without thread bindings, such as those of scans, are left out: the host
    would run them.

    Args:
        function, target, seed: see `first_valid_schedule`.
        tries: maximum number of draws, including invalid ones.

    Raises:
        DataError: see `first_valid_schedule`.
    """
    kind: TargetKind = "llvm" if target.kind.name == "llvm" else "cuda"
    for schedule, is_valid in islice(random_schedules(function, target, kind, seed=seed), tries):
        if is_valid and (kind == "llvm" or _binds_threads(schedule)):
            yield schedule


def _binds_threads(schedule: Schedule) -> bool:
    return any(one.kind.name == "Bind" for one in schedule.trace.insts)


def random_schedules(
    function: Any, target: Target, kind: TargetKind, *, seed: int
) -> Iterator[tuple[Schedule, bool]]:
    """Yields (random schedule of a design space, whether all postprocessors accept it)."""
    context, spaces = _design_spaces(function, target, kind, seed)
    chance = random.Random(seed)
    while True:
        yield _random_schedule(context, spaces, chance)


def _design_spaces(function: Any, target: Target, kind: TargetKind, seed: int) -> tuple[Any, Any]:
    generator = meta_schedule.space_generator.PostOrderApply(
        sch_rules=kind, postprocs=kind, mutator_probs=kind
    )
    with _without_intrinsics():
        context = meta_schedule.TuneContext(
            mod=function, target=target, space_generator=generator, num_threads=1,
            rand_state=seed + 1,
        )  # fmt: skip
        try:
            return context, context.generate_design_space()
        except Exception as error:  # TVM's schedule rules raise many types
            raise DataError(
                f"TVM cannot make a search space of this task for {target.kind.name} "
                f"({last_line(error)}); leave the task out"
            ) from None


def _random_schedule(context: Any, spaces: Any, chance: random.Random) -> tuple[Schedule, bool]:
    """Returns a schedule, and whether all postprocessors accept it."""
    trace = spaces[chance.randrange(len(spaces))].trace
    schedule = s_tir.Schedule(
        context.mod, seed=chance.randrange(1, 2**30), error_render_level="none", debug_mask="none"
    )
    # A trace without decisions draws new ones.
    s_tir.schedule.Trace(trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
    schedule.enter_postproc()
    for postproc in context.space_generator.postprocs:
        if not postproc.apply(schedule):
            return schedule, False  # usually the last one, which verifies a GPU kernel
    return schedule, True


@contextmanager
def _without_intrinsics() -> Iterator[None]:
    """Avoids the slow import of TVM's tensor intrinsics while a design space is created."""
    if _INTRINSICS in sys.modules:
        yield
        return
    module = types.ModuleType(_INTRINSICS)
    sys.modules[_INTRINSICS] = s_tir.tensor_intrin = module
    try:
        yield
    finally:
        del sys.modules[_INTRINSICS], s_tir.tensor_intrin
