"""Compiling a network with given schedules and timing it here: whole, and kernel by kernel."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax
from tvm.s_tir import meta_schedule

from cdmpp.errors import DeviceError
from tvm_helper.benchmark_search import built
from tvm_helper.compat import Target, import_tensor_intrinsics, tvm
from tvm_helper.measure_worker import random_tensors
from tvm_helper.network_costs import ChosenSchedule
from tvm_helper.network_graph import NetworkGraph

#: Network and kernels are timed in turns, so that slow changes of the machine meet both alike.
_TURNS = 5
#: Slow networks get fewer turns: no more when these seconds are over, but at least so many.
_TURNS_S = 60.0
_FEWEST_TURNS = 2
_REPEATS_A_TURN = 2
_KERNEL_REPEATS_A_TURN = 1
_LEAST_MS = 20

#: Does so many timings after one that warms up; seconds.
_Timer = Callable[[int], list[float]]


@dataclass(frozen=True)
class MeasuredNetwork:
    """Timings of a network on this machine.

    One thread (a device of one thread, and TVM_NUM_THREADS=1) is timed by the processor time that
    it gets, several by the clock.

    Attributes:
        costs_s: seconds of the whole network, one a repeat.
        kernel_s: task key -> median seconds of its kernel alone, its data in the cache.
        unmeasured: task key -> why its kernel was not timed.
    """

    costs_s: tuple[float, ...]
    kernel_s: dict[str, float]
    unmeasured: dict[str, str]

    @property
    def latency_s(self) -> float:
        """Median seconds of the whole network."""
        return float(np.median(self.costs_s))


def measure_network(
    network: NetworkGraph,
    chosen: Mapping[str, ChosenSchedule],
    target: Target,
    *,
    turns: int = _TURNS,
) -> MeasuredNetwork:
    """Returns the timings of a network compiled with the first schedule of each task.

    Args:
        turns: how often the whole network and then each kernel is timed; fewer for slow networks.

    Raises:
        DeviceError: the target is no CPU, or the network cannot be compiled or run.
    """
    if target.kind.name != "llvm":
        raise DeviceError(
            f"--measure runs the network on this machine's CPU, the target is {target.kind.name}; "
            "choose the label of this CPU with --device (`cdmpp device list`)"
        )
    import_tensor_intrinsics()
    kernel_costs_s: dict[str, list[float]] = {}
    costs_s: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        kernels, unmeasured = _kernels(network, chosen, target, Path(scratch))
        try:
            whole = _whole(network, chosen, target)
            began = time.monotonic()
            for turn in range(turns):
                if turn >= _FEWEST_TURNS and time.monotonic() - began > _TURNS_S:
                    break
                costs_s += whole(_REPEATS_A_TURN)
                _time_kernels(kernels, kernel_costs_s, unmeasured)
        except Exception as error:  # TVM and LLVM raise whatever they do
            raise DeviceError(
                f"the network cannot be compiled and run here ({_text(error)}); check the target "
                "with: cdmpp doctor"
            ) from None
    kernel_s = {
        key: float(np.median(costs))
        for key, costs in kernel_costs_s.items()
        if key not in unmeasured
    }
    return MeasuredNetwork(tuple(costs_s), kernel_s, unmeasured)


def _whole(network: NetworkGraph, chosen: Mapping[str, ChosenSchedule], target: Target) -> _Timer:
    database = meta_schedule.database.MemoryDatabase()
    for task in network.tasks.tasks:
        schedules = chosen[task.workload_key].schedules
        if schedules:
            workload = database.commit_workload(task.module)
            database.commit_tuning_record(
                meta_schedule.database.TuningRecord(schedules[0].trace, workload, [1.0], target, [])
            )
    with target, database, tvm.transform.PassContext(opt_level=3):
        applied = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(network.module)
        executable = tvm.compile(applied, target=target)
    machine = relax.VirtualMachine(executable, tvm.cpu(0))
    inputs = [
        [str(one.ty.dtype), [int(extent) for extent in one.ty.shape.values]]
        for one in network.module["main"].params
    ]
    tensors = random_tensors(inputs, tvm.cpu(0))
    timer = machine.time_evaluator("main", tvm.cpu(0), number=1, repeat=1, min_repeat_ms=_LEAST_MS)
    return partial(_costs, timer, tensors, is_alone=_is_one_thread(target))


def _kernels(
    network: NetworkGraph,
    chosen: Mapping[str, ChosenSchedule],
    target: Target,
    scratch: Path,
) -> tuple[dict[str, _Timer], dict[str, str]]:
    """Returns task key -> timer, and why the others have none."""
    called = {one.task for one in network.graph.operators}
    timers: dict[str, _Timer] = {}
    unmeasured: dict[str, str] = {}
    for number, task in enumerate(network.tasks.tasks):
        key, schedules = task.workload_key, chosen[task.workload_key].schedules
        if key not in called:
            continue
        if not schedules:
            unmeasured[key] = chosen[key].reason
            continue
        try:
            module, tensors = built(
                task.module["main"], schedules[0], target, scratch, f"kernel{number}"
            )
            timer = module.time_evaluator(
                "main", tvm.cpu(0), number=1, repeat=1, min_repeat_ms=_LEAST_MS
            )
        except Exception as error:  # TVM and LLVM raise whatever they do
            unmeasured[key] = _text(error)
        else:
            timers[key] = partial(_costs, timer, tensors, is_alone=_is_one_thread(target))
    return timers, unmeasured


def _time_kernels(
    kernels: Mapping[str, _Timer], costs_s: dict[str, list[float]], unmeasured: dict[str, str]
) -> None:
    for key, timer in kernels.items():
        if key in unmeasured:
            continue
        try:
            costs_s.setdefault(key, []).extend(timer(_KERNEL_REPEATS_A_TURN))
        except Exception as error:  # TVM and LLVM raise whatever they do
            unmeasured[key] = _text(error)


def _costs(
    timer: Callable[..., Any], tensors: Sequence[Any], repeats: int, *, is_alone: bool
) -> list[float]:
    """Returns seconds, one a repeat, after one that warms up.

    Args:
        is_alone: one thread: its share of the processor during the repeat counts, so that what
            else runs on the machine does not.
    """
    costs = []
    for _ in range(repeats + 1):
        wall, worked = time.perf_counter(), time.process_time()
        cost = float(timer(*tensors).results[0])
        share = (time.process_time() - worked) / (time.perf_counter() - wall)
        costs.append(cost * min(1.0, share) if is_alone else cost)
    return costs[1:]


def _is_one_thread(target: Target) -> bool:
    return int(target.attrs.get("num-cores", 0)) == 1 and os.environ.get("TVM_NUM_THREADS") == "1"


def _text(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:160] if lines else ''}"
