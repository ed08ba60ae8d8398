"""Tasks of the Ansor tests and of the Ansor benchmark, and quick measuring. Needs the old TVM."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import auto_scheduler, te, topi
from tvm.auto_scheduler import measure, measure_record

#: What the programs are for, and the device label of the training data that fits.
TARGET, DEVICE = "llvm -mcpu=core-avx2", "epyc-avx2-1c"


@auto_scheduler.register_workload
def cdmpp_test_matmul(rows: int, columns: int, depth: int) -> list[Any]:
    """A matrix product with a bias."""
    a = te.placeholder((rows, depth), name="A")
    b = te.placeholder((depth, columns), name="B")
    bias = te.placeholder((columns,), name="bias")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    out = te.compute((rows, columns), lambda i, j: c[i, j] + bias[j], name="D")
    return [a, b, bias, out]


@auto_scheduler.register_workload
def cdmpp_test_conv2d(size: int, inputs: int, outputs: int, kernel: int) -> list[Any]:
    """A convolution of one image in NHWC with a bias and a relu."""
    data = te.placeholder((1, size, size, inputs), name="data")
    weight = te.placeholder((kernel, kernel, inputs, outputs), name="weight")
    bias = te.placeholder((1, 1, 1, outputs), name="bias")
    conv = topi.nn.conv2d_nhwc(data, weight, 1, kernel // 2, 1, "float32")
    return [data, weight, bias, topi.nn.relu(topi.add(conv, bias))]


def matmul_task(rows: int = 32, columns: int = 48, depth: int = 40, **options: Any) -> Any:
    """Returns a small task unless told otherwise."""
    return _task(cdmpp_test_matmul, (rows, columns, depth), **options)


def conv2d_task(
    size: int = 10, inputs: int = 12, outputs: int = 20, kernel: int = 3, **options: Any
) -> Any:
    """Returns a small task unless told otherwise."""
    return _task(cdmpp_test_conv2d, (size, inputs, outputs, kernel), **options)


def gpu_parameters(*, threads_per_block: int = 1024) -> Any:
    """Returns what Ansor has to know of a GPU."""
    return auto_scheduler.HardwareParams(
        num_cores=16, vector_unit_bytes=64, cache_line_bytes=64, max_shared_memory_per_block=49152,
        max_local_memory_per_block=2147483647, max_threads_per_block=threads_per_block,
        max_vthread_extent=8, warp_size=32,
    )  # fmt: skip


def _task(function: Any, arguments: tuple[int, ...], *, target: str = TARGET, **rest: Any) -> Any:
    return auto_scheduler.SearchTask(
        func=function, args=arguments, target=tvm.target.Target(target), **rest
    )


def random_states(task: Any, count: int, *, seed: int = 0) -> list[Any]:
    """Returns states of Ansor's initial population."""
    policy = auto_scheduler.SketchPolicy(
        task,
        auto_scheduler.RandomModel(),
        params={"sample_init_min_population": count},
        seed=seed + 1,
        verbose=0,
    )
    return list(policy.sample_initial_population())[:count]


def measure_here() -> None:
    """Lets `LocalBuilder` and `LocalRunner` work in this process.

    TVM starts two processes for every two programs, which takes longer than all the rest. The code
    that builds and times a program is TVM's own; a program's time is the median of its repeats.
    """
    tvm.register_func("auto_scheduler.local_builder.build", _build, override=True)
    tvm.register_func("auto_scheduler.local_runner.run", _run, override=True)


def measure_invented() -> None:
    """Lets `LocalBuilder` and `LocalRunner` build nothing and invent a time for every program."""
    tvm.register_func("auto_scheduler.local_builder.build", _build_nothing, override=True)
    tvm.register_func("auto_scheduler.local_runner.run", _invent, override=True)


def _build_nothing(inputs: Sequence[Any], *_: Any) -> list[Any]:
    return [measure.BuildResult("none", [], 0, "", 0.0) for _ in inputs]


def _invent(inputs: Sequence[Any], *_: Any) -> list[Any]:
    zero = measure.MeasureResult([0.0], 0, "", 0.0, 0.0)
    lines = [measure_record.dump_record_to_string(entry, zero) for entry in inputs]
    seconds = [1e-4 * (1 + zlib.crc32(line.encode()) % 1000 / 100) for line in lines]
    return [measure.MeasureResult([cost], 0, "", 0.0, 0.0) for cost in seconds]


def _build(inputs: Sequence[Any], *_: Any) -> list[Any]:
    worker = measure._local_build_worker
    return [
        measure.BuildResult(*worker(entry.serialize(), measure.BuildFunc.build_func, 0))
        for entry in inputs
    ]


def _run(inputs: Sequence[Any], built: Sequence[Any], timeout: int, *options: Any) -> list[Any]:
    del timeout
    results = []
    for entry, made in zip(inputs, built, strict=True):
        if made.error_no:
            found: tuple[Any, ...] = ((1e10,), made.error_no, made.error_msg, 0.0, 0.0)
        else:
            arguments = measure.prepare_runner_args(entry, made)
            number, repeat, least_ms, pause_s, is_flushed, _, device = options
            costs, *rest = measure._timed_eval_func(
                entry.serialize(), made, arguments, number, repeat, least_ms, pause_s, is_flushed,
                0, device,
            )  # fmt: skip
            found = ((float(np.median(costs)),), *rest)
        results.append(measure.MeasureResult(*found))
    return results


def measured_s(task: Any, states: Sequence[Any]) -> NDArray[np.float64]:
    """Returns float64 [state], seconds."""
    inputs = [measure.MeasureInput(task, state) for state in states]
    results = _run(inputs, _build(inputs), 60, 1, 5, 5, 0.0, False, 0, 0)
    return np.array([float(result.costs[0].value) for result in results])


def search(
    task: Any,
    model: Any,
    *,
    trials: int,
    each_round: int = 8,
    seed: int = 1,
    log: str | None = None,
    repeat: int = 3,
    least_ms: int = 5,
    population: int | None = None,
    is_invented: bool = False,
) -> None:
    """Runs Ansor's search, measuring in this process.

    Args:
        population: of the evolutionary search; None = Ansor's own.
        is_invented: whether the times are invented: always the same ones, and at once.
    """
    params: dict[str, Any] = {}
    if population is not None:
        params = {
            "evolutionary_search_population": population,
            "sample_init_min_population": min(50, population // 2),
        }
    measure_invented() if is_invented else measure_here()
    policy = auto_scheduler.SketchPolicy(task, model, params=params or None, seed=seed, verbose=0)
    callbacks = [] if log is None else [auto_scheduler.RecordToFile(log)]
    task.tune(
        auto_scheduler.TuningOptions(
            num_measure_trials=trials,
            num_measures_per_round=each_round,
            builder=auto_scheduler.LocalBuilder(n_parallel=1),
            runner=auto_scheduler.LocalRunner(
                number=1, repeat=repeat, min_repeat_ms=least_ms, timeout=60
            ),
            measure_callbacks=callbacks,
            verbose=0,
        ),
        policy,
    )
