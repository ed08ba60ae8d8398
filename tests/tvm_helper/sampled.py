"""Random schedules of MetaSchedule's design spaces, valid or not: input of tests and of the lab."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from tvm_helper.compat import Schedule, Target, llvm_target, te, tirx, topi
from tvm_helper.tasks.sampling import TargetKind, random_schedules


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
    drawn = random_schedules(function, sample_target(kind), kind, seed=seed)
    return [schedule for schedule, _ in islice(drawn, count)]
