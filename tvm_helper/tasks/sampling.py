"""Random schedules of MetaSchedule's design spaces, as its search would featurise them: input of
tests and benchmarks.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from tvm_helper.compat import Schedule, Target, llvm_target, meta_schedule, s_tir, te, tirx, topi

TargetKind = Literal["llvm", "cuda"]
_INTRINSICS = "tvm.s_tir.tensor_intrin"


def _matmul() -> Any:
    a = te.placeholder((128, 128), name="A")
    b = te.placeholder((128, 128), name="B")
    k = te.reduce_axis((0, 128), name="k")
    c = te.compute((128, 128), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c])


def _conv2d_bias_relu() -> Any:
    x = te.placeholder((1, 64, 56, 56), name="X")
    w = te.placeholder((64, 64, 3, 3), name="W")
    bias = te.placeholder((64, 1, 1), name="bias")
    y = topi.nn.relu(topi.add(topi.nn.conv2d_nchw(x, w, 1, 1, 1), bias))
    return te.create_prim_func([x, w, bias, y])


def _softmax() -> Any:
    a = te.placeholder((512, 1024), name="A")
    return te.create_prim_func([a, topi.nn.softmax(a)])


def _depthwise() -> Any:
    x = te.placeholder((1, 32, 28, 28), name="X")
    w = te.placeholder((32, 1, 3, 3), name="W")
    return te.create_prim_func([x, w, topi.nn.depthwise_conv2d_nchw(x, w, 2, 1, 1)])


def _average_pooling() -> Any:
    x = te.placeholder((1, 32, 29, 29), name="X")
    y = topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "avg")
    return te.create_prim_func([x, y])


def _batch_matmul() -> Any:
    a = te.placeholder((4, 50, 30), name="A")
    b = te.placeholder((4, 40, 30), name="B")
    return te.create_prim_func([a, b, topi.nn.batch_matmul(a, b)])


def _half_matmul() -> Any:
    """Returns a matmul of types other than float32 and int32."""
    size = tirx.const(64, "int64")
    a = te.placeholder((size, size), "float16", name="A")
    b = te.placeholder((size, size), "float16", name="B")
    k = te.reduce_axis((tirx.const(0, "int64"), size), name="k")

    def body(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    return te.create_prim_func([a, b, te.compute((size, size), body, name="C")])


#: Makes the function of a workload, by its name.
WORKLOADS: Mapping[str, Callable[[], Any]] = types.MappingProxyType({
    "matmul": _matmul, "conv2d_bias_relu": _conv2d_bias_relu, "softmax": _softmax,
    "depthwise": _depthwise, "average_pooling": _average_pooling, "batch_matmul": _batch_matmul,
    "half_matmul": _half_matmul,
})  # fmt: skip


def sample_target(kind: TargetKind) -> Target:
    """Returns the target of the samples: a CPU with AVX2, or a T4."""
    return llvm_target(num_cores=2) if kind == "llvm" else Target("nvidia/nvidia-t4")


def sample_schedules(
    function: Any, kind: TargetKind, count: int, *, seed: int = 0
) -> list[Schedule]:
    """Returns random schedules of a function. On GPUs most of them exceed a limit.

    Args:
        function: a `PrimFunc` that is not scheduled.
        kind: which of MetaSchedule's default design spaces; without tensor intrinsics.
        count: how many.
        seed: the same seed gives the same schedules.
    """
    context, spaces = _design_spaces(function, sample_target(kind), kind, seed)
    chance = random.Random(seed)
    return [_random_schedule(context, spaces, chance)[0] for _ in range(count)]


def first_valid_schedule(
    function: Any, target: Target, *, seed: int = 0, tries: int = 2000
) -> Schedule | None:
    """Returns the first random schedule of a function that MetaSchedule would measure.

    Args:
        function: a `PrimFunc` that is not scheduled.
        target: a CPU or GPU; its kind chooses the design space, without tensor intrinsics.
        seed: the same seed gives the same schedule.
        tries: None is returned when so many were invalid.
    """
    return next(valid_schedules(function, target, seed=seed, tries=tries), None)


def valid_schedules(
    function: Any, target: Target, *, seed: int = 0, tries: int = 2000
) -> Iterator[Schedule]:
    """Yields random schedules that MetaSchedule would measure; some may be equal.

    Args:
        function, target, seed: as `first_valid_schedule`.
        tries: it ends when so many were drawn, invalid ones included.
    """
    kind: TargetKind = "llvm" if target.kind.name == "llvm" else "cuda"
    context, spaces = _design_spaces(function, target, kind, seed)
    chance = random.Random(seed)
    for _ in range(tries):
        schedule, is_valid = _random_schedule(context, spaces, chance)
        if is_valid:
            yield schedule


def _design_spaces(function: Any, target: Target, kind: TargetKind, seed: int) -> tuple[Any, Any]:
    generator = meta_schedule.space_generator.PostOrderApply(
        sch_rules=kind, postprocs=kind, mutator_probs=kind
    )
    with _without_intrinsics():
        context = meta_schedule.TuneContext(
            mod=function, target=target, space_generator=generator, num_threads=1,
            rand_state=seed + 1,
        )  # fmt: skip
        return context, context.generate_design_space()


def _random_schedule(context: Any, spaces: Any, chance: random.Random) -> tuple[Schedule, bool]:
    """Returns a schedule and whether every postprocessor agrees to it."""
    trace = spaces[chance.randrange(len(spaces))].trace
    schedule = s_tir.Schedule(
        context.mod, seed=chance.randrange(1, 2**30), error_render_level="none", debug_mask="none"
    )
    # Without its decisions a trace draws new ones.
    s_tir.schedule.Trace(trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
    schedule.enter_postproc()
    for postproc in context.space_generator.postprocs:
        if not postproc.apply(schedule):
            return schedule, False  # most often the last one, which verifies a GPU kernel
    return schedule, True


@contextmanager
def _without_intrinsics() -> Iterator[None]:
    """Lets a design space be made without TVM's tensor intrinsics, whose import takes long."""
    if _INTRINSICS in sys.modules:
        yield
        return
    module = types.ModuleType(_INTRINSICS)
    sys.modules[_INTRINSICS] = s_tir.tensor_intrin = module
    try:
        yield
    finally:
        del sys.modules[_INTRINSICS], s_tir.tensor_intrin
