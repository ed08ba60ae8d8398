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
_LEAST_MS = 20
#: A network that takes less is run several times in a turn.
_SMALL_S = 0.1
#: Below that a single call cannot be timed: the kernel is called again and again.
_SINGLE_CALL_S = 10e-6

#: Does so many timings after one that warms up; seconds.
_Timer = Callable[[int], list[float]]


@dataclass(frozen=True)
class _Kernel:
    run: Callable[..., Any]
    tensors: Sequence[Any]
    again: _Timer


@dataclass(frozen=True)
class _Call:
    task: str
    run: Callable[..., Any]
    tensors: Sequence[Any]


@dataclass(frozen=True)
class MeasuredNetwork:
    """Timings of a network on this machine.

    One thread (a device of one thread, and TVM_NUM_THREADS=1) is timed by the processor time that
    it gets, several by the clock.

    Attributes:
        costs_s: seconds of the whole network, one a repeat.
        kernel_s: task key -> median seconds of its kernel alone. The kernels are called in the
            network's order, each call with weights of its own, so that the caches hold what they
            hold in the network; kernels of less than 10 µs are called again and again.
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
            calls = _calls(network, kernels)
            _time_calls(calls, is_alone=_is_one_thread(target))  # warms up
            began = time.monotonic()
            for turn in range(turns):
                if turn >= _FEWEST_TURNS and time.monotonic() - began > _TURNS_S:
                    break
                costs_s += whole(_REPEATS_A_TURN)
                for key, costs in _time_turn(calls, kernels, target).items():
                    kernel_costs_s.setdefault(key, []).extend(costs)
        except Exception as error:  # TVM and LLVM raise whatever they do
            raise DeviceError(
                f"the network cannot be compiled and run here ({_text(error)}); check the target "
                "with: cdmpp doctor"
            ) from None
    kernel_s = {key: float(np.median(costs)) for key, costs in kernel_costs_s.items()}
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
) -> tuple[dict[str, _Kernel], dict[str, str]]:
    """Returns task key -> kernel, and why the others have none."""
    called = {one.task for one in network.graph.operators}
    kernels: dict[str, _Kernel] = {}
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
            module["main"](*tensors)
            timer = module.time_evaluator(
                "main", tvm.cpu(0), number=1, repeat=1, min_repeat_ms=_LEAST_MS
            )
        except Exception as error:  # TVM and LLVM raise whatever they do
            unmeasured[key] = _text(error)
        else:
            again = partial(_costs, timer, tensors, is_alone=_is_one_thread(target))
            kernels[key] = _Kernel(module["main"], tensors, again)
    return kernels, unmeasured


def _calls(network: NetworkGraph, kernels: Mapping[str, _Kernel]) -> list[_Call]:
    """Returns the network's calls in order.

    What has the shape of a kernel's output counts as an activation: these use the same memory again
    and again. All other arguments are weights, of each call its own.
    """
    activations = {_form(kernel.tensors[-1]) for kernel in kernels.values()}
    shared: dict[tuple[Any, ...], Any] = {}
    calls = []
    for one in network.graph.operators:
        if one.task not in kernels:
            continue
        kernel = kernels[one.task]
        tensors: list[Any] = []
        for tensor in kernel.tensors:
            form = _form(tensor)
            if form in activations:  # not the same one twice in a call
                place = (form, sum(_form(other) == form for other in tensors))
                tensors.append(shared.setdefault(place, tensor))
            else:
                tensors.append(tvm.runtime.tensor(tensor.numpy(), tvm.cpu(0)))
        calls.append(_Call(one.task, kernel.run, tensors))
    return calls


def _form(tensor: Any) -> tuple[str, tuple[int, ...]]:
    return str(tensor.dtype), tuple(int(extent) for extent in tensor.shape)


def _time_turn(
    calls: Sequence[_Call], kernels: Mapping[str, _Kernel], target: Target
) -> dict[str, list[float]]:
    is_alone = _is_one_thread(target)
    costs_s = _time_calls(calls, is_alone=is_alone)
    if sum(map(sum, costs_s.values())) < _SMALL_S:  # it may stay in the caches as a whole
        costs_s, began = {}, time.perf_counter()
        while time.perf_counter() - began < 1e-3 * _LEAST_MS:
            for key, found in _time_calls(calls, is_alone=is_alone).items():
                costs_s.setdefault(key, []).extend(found)
    for key, found in costs_s.items():
        if np.median(found) < _SINGLE_CALL_S:
            costs_s[key] = kernels[key].again(1)
    return costs_s


def _time_calls(calls: Sequence[_Call], *, is_alone: bool) -> dict[str, list[float]]:
    """Returns task key -> seconds of its calls; processor time of a kernel of one thread."""
    clock = time.process_time if is_alone else time.perf_counter
    costs_s: dict[str, list[float]] = {}
    for call in calls:
        began = clock()
        call.run(*call.tensors)
        costs_s.setdefault(call.task, []).append(clock() - began)
    return costs_s


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
