"""Builds of scheduled tensor programs and networks as libraries, and arguments to call them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_helper.compat import Target, meta_schedule, relax, s_tir, tvm
from tvm_helper.tasks.schedule_of_trace import schedule_of
from tvm_helper.tir.packing import runnable

#: Libraries that LLVM's code calls: mathematics, and data types that a CPU does not support.
_NEEDED = ("-lm", "-l:libgcc_s.so.1")
#: Data type and shape of each argument.
Arguments = list[list[Any]]


def arguments_of(module: Any) -> Arguments:
    """Returns the arguments of a runnable module's `main`, outputs last."""
    found = meta_schedule.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False)
    return [[str(info.dtype), [int(extent) for extent in info.shape]] for info in found]


def random_tensors(arguments: Sequence[Sequence[Any]], device: Any) -> list[Any]:
    """Returns random tensors: numbers in [0.1, 1) for floats, and zeros for integers, which may be
    indices. An argument with a bound (third item) gets random integers below it.
    """
    rng = np.random.default_rng(0)
    tensors = []
    for dtype, shape, *bound in arguments:
        if bound:
            values = rng.integers(bound[0], size=shape).astype(dtype)
        elif "float" in dtype:
            values = (rng.random(shape, np.float32) * 0.9 + 0.1).astype(_numpy_type(dtype))
        else:
            values = np.zeros(shape, dtype)
        tensors.append(tvm.runtime.tensor(values, device))
    return tensors


def _numpy_type(dtype: str) -> Any:
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def built(
    function: Any, trace: Any, target: Target, folder: Path, name: str
) -> tuple[Any, list[Any]]:
    """Returns the compiled and loaded module of a task with a schedule, and arguments for it on
    this machine's CPU.

    Args:
        trace: trace as JSON of TVM's database, or a schedule.
        folder: folder of the library.
        name: name of the library.
    """
    schedule = trace if isinstance(trace, s_tir.Schedule) else schedule_of(function, trace)
    module = runnable(schedule.mod)
    path = folder / f"{name}.so"
    tvm.compile(module, target=target).export_library(str(path))
    return tvm.runtime.load_module(str(path)), random_tensors(arguments_of(module), tvm.cpu(0))


def export(executable: Any, path: str) -> None:
    """Writes a compiled program as a library, or as a `.tar` of objects for linking elsewhere."""
    executable.export_library(path, fcompile=None if path.endswith(".tar") else _link)


def _link(output: str, objects: list[str], **options: Any) -> None:
    """Links objects directly with the linker, in a third of the compiler's time; uses the compiler
    if the linker is missing or fails, or if there are sources to compile.
    """
    linker = shutil.which("ld")
    if linker is not None and all(name.endswith(".o") for name in objects):
        command = [linker, "-shared", "-o", output, *objects, *_NEEDED]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return
    tvm.support.cc.create_shared(output, objects, **options)


def compiled_network(
    fused: Any, scheduled: Iterable[tuple[Any, s_tir.Schedule]], target: Target
) -> Any:
    """Returns a network as an executable.

    Args:
        fused: fused relax module of the network.
        scheduled: (module, schedule) of tasks; other tasks get TVM's default schedule.
    """
    database = meta_schedule.database.MemoryDatabase()
    for module, schedule in scheduled:
        workload = database.commit_workload(module)
        database.commit_tuning_record(
            meta_schedule.database.TuningRecord(schedule.trace, workload, [1.0], target, [])
        )
    with target, database, tvm.transform.PassContext(opt_level=3):
        return tvm.compile(relax.transform.MetaScheduleApplyDatabase()(fused), target=target)


def network_inputs(fused: Any) -> Arguments:
    """Returns the arguments of a network's `main`."""
    return [
        [str(one.ty.dtype), [int(extent) for extent in one.ty.shape.values]]
        for one in fused["main"].params
    ]
