"""Compilation and timing of a network with given schedules: as a whole and kernel by kernel."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cdmpp.errors import DeviceError, last_line
from tvm_helper.compat import Target, import_tensor_intrinsics, relax, tvm
from tvm_helper.replay.costs import ChosenSchedule
from tvm_helper.replay.graph import KernelGraph
from tvm_helper.tasks.build import (
    Arguments,
    built,
    compiled_network,
    network_inputs,
    random_tensors,
)

#: Number of turns, each with new memory: addresses determine cache conflicts, and with a single
#: allocation these would bias the whole network and its kernels differently.
_TURNS = 5
#: Time limit after which a slow network gets no further turn, and its minimum number of turns.
_TURNS_S = 120.0
_FEWEST_TURNS = 3
#: Number of stack positions. Within a turn, network and kernels are timed alternately on each of
#: them, so that slow changes of the machine affect both. Code with register spills keeps vectors on
#: a stack that is aligned to 16 bytes only: a kernel with many spills takes up to 2.5 times as long
#: if they cross blocks of 32 bytes (on a Zen 4).
_PLACES = 2
_LEAST_MS = 20
#: A faster network is run several times per round.
_SMALL_S = 0.1
#: Latency of a network below which the overhead of a Python call matters.
_TINY_S = 1e-3
#: Minimum depth of the stack: its first steps have other sizes than the later ones.
_LEAST_DEPTH = 4
#: A faster kernel is called repeatedly, because a single call cannot be timed.
_SINGLE_CALL_S = 10e-6


_T = TypeVar("_T")


@dataclass(frozen=True)
class _Kernel:
    """A compiled kernel with arguments.

    Attributes:
        tensors: arguments; each call gets copies in its own memory.
        timer: time evaluator of the kernel.
    """

    run: Callable[..., Any]
    tensors: Sequence[Any]
    timer: Callable[..., Any]


@dataclass(frozen=True)
class _Call:
    task: str
    run: Callable[..., Any]
    tensors: Sequence[Any]


@dataclass(frozen=True)
class _Whole:
    """Library of a compiled network, and the data types and shapes of its inputs."""

    library: Path
    inputs: Arguments


@dataclass(frozen=True)
class MeasuredNetwork:
    """Timings of a network on this machine.

    A single thread (a device of one thread, and TVM_NUM_THREADS=1) is timed by CPU time, several
    threads by wall time. As in measured programs, the fastest turn counts: other tenants of a
    shared machine slow a core down for seconds.

    Attributes:
        costs_s: seconds of the whole network, one per repeat; the repeats alternate between the
            stack positions.
        kernel_s: task key -> seconds of its kernel alone, the median of a turn's calls, otherwise
            as in `latency_s`. The kernels are called in the network's order, each call with its own
            weights, so that the caches are in the same state as in the network; kernels below 10 µs
            are called repeatedly.
        unmeasured: task key -> reason why its kernel was not timed.
    """

    costs_s: tuple[float, ...]
    kernel_s: dict[str, float]
    unmeasured: dict[str, str]

    @property
    def latency_s(self) -> float:
        """Seconds of the whole network: of the fastest turn, mean over the stack positions."""
        return _over_places([self.costs_s[place::_PLACES] for place in range(_PLACES)])


def measure_network(
    network: KernelGraph,
    chosen: Mapping[str, ChosenSchedule],
    target: Target,
    *,
    turns: int = _TURNS,
) -> MeasuredNetwork:
    """Returns the timings of a network compiled with the first schedule of each task.

    Args:
        turns: maximum number of turns with new memory; slow networks get fewer.

    Raises:
        DeviceError: the target is not a CPU, or the network cannot be compiled or run.
    """
    if target.kind.name != "llvm":
        raise DeviceError(
            f"--measure runs the network on this machine's CPU, got target {target.kind.name}; "
            "choose the label of this CPU with --device (`cdmpp device list`)"
        )
    import_tensor_intrinsics(target.kind.name)
    is_alone = _is_one_thread(target)
    kernel_costs_s: dict[str, list[list[float]]] = {}
    costs_s: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        kernels, unmeasured = _kernels(network, chosen, target, Path(scratch))
        try:
            whole = _compiled(network, chosen, target, Path(scratch) / "network.so")
            began = time.monotonic()
            for turn in range(turns):
                if turn >= _FEWEST_TURNS and time.monotonic() - began > _TURNS_S:
                    break
                # Allocated before those of the last turn are freed, to get other memory.
                run, calls = _placed(whole, is_alone=is_alone), _calls(network, kernels)
                _time_calls(calls, is_alone=is_alone)  # touches the memory
                timed = partial(_time_round, calls, kernels, is_alone=is_alone)
                for place in range(_PLACES):
                    depth = _LEAST_DEPTH + turn * _PLACES + place
                    costs_s.append(_deeper(depth, run))
                    for key, costs in _deeper(depth, timed).items():
                        of_places = kernel_costs_s.setdefault(key, [[] for _ in range(_PLACES)])
                        of_places[place].append(float(np.median(costs)))
        except Exception as error:  # TVM and LLVM raise many types
            raise DeviceError(
                f"the network cannot be compiled and run here ({last_line(error)}); check the "
                "target with: cdmpp doctor"
            ) from None
    kernel_s = {key: _over_places(costs) for key, costs in kernel_costs_s.items()}
    return MeasuredNetwork(tuple(costs_s), kernel_s, unmeasured)


def _compiled(
    network: KernelGraph, chosen: Mapping[str, ChosenSchedule], target: Target, library: Path
) -> _Whole:
    scheduled = [
        (task.module, chosen[task.workload_key].schedules[0])
        for task in network.tasks.tasks
        if chosen[task.workload_key].schedules
    ]
    compiled_network(network.module, scheduled, target).export_library(str(library))
    return _Whole(library, network_inputs(network.module))


def _placed(whole: _Whole, *, is_alone: bool) -> Callable[[], float]:
    """Returns a function that times the network in its own memory and returns mean seconds."""
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(whole.library)), tvm.cpu(0))
    tensors = random_tensors(whole.inputs, tvm.cpu(0))
    clock = _clock(is_alone=is_alone)
    main = machine["main"]

    def timed(least_s: float) -> float:
        runs, began, ends = 0, clock(), time.perf_counter() + least_s
        while runs == 0 or time.perf_counter() < ends:
            main(*tensors)
            runs += 1
        return (clock() - began) / runs

    def warmed() -> float:
        timed(0.0)
        return timed(1e-3 * _LEAST_MS)

    timed(0.0)  # touches the memory
    latency_s = timed(0.0)
    if latency_s >= _SMALL_S:
        return partial(timed, 0.0)
    if latency_s >= _TINY_S:
        return warmed
    timer = machine.time_evaluator("main", tvm.cpu(0), number=1, repeat=1, min_repeat_ms=_LEAST_MS)
    return partial(_mean_cost, timer, tensors, is_alone=is_alone)


def _kernels(
    network: KernelGraph,
    chosen: Mapping[str, ChosenSchedule],
    target: Target,
    scratch: Path,
) -> tuple[dict[str, _Kernel], dict[str, str]]:
    """Returns task key -> kernel, and task key -> reason for the other tasks."""
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
        except Exception as error:  # TVM and LLVM raise many types
            unmeasured[key] = last_line(error)
        else:
            kernels[key] = _Kernel(module["main"], tensors, timer)
    return kernels, unmeasured


def _calls(network: KernelGraph, kernels: Mapping[str, _Kernel]) -> list[_Call]:
    """Returns the network's calls in order, with newly allocated arguments.

    Arguments with the shape of a kernel's output count as activations, which share memory between
    calls. All other arguments are weights, separate for each call. Weights have the network's
    values, so that results stay as large as there: the time of functions such as `erf` and `exp`
    depends on them.
    """
    activations = {_form(kernel.tensors[-1]) for kernel in kernels.values()}
    shared: dict[tuple[Any, ...], Any] = {}
    calls = []
    for one in network.graph.operators:
        if one.task not in kernels:
            continue
        kernel = kernels[one.task]
        tensors: list[Any] = []
        weights = chain(network.constants.get(one.id, ()), repeat(None))
        for tensor, weight in zip(kernel.tensors, weights, strict=False):
            form = _form(tensor)
            if weight is not None and _form(weight) == form:  # else it has a layout of its own
                tensors.append(tvm.runtime.tensor(weight.numpy(), tvm.cpu(0)))
                continue
            # Arguments of one call are different tensors.
            place = (form, sum(_form(other) == form for other in tensors))
            if form not in activations or place not in shared:
                shared[place] = tvm.runtime.tensor(tensor.numpy(), tvm.cpu(0))
            tensors.append(shared[place])
        calls.append(_Call(one.task, kernel.run, tensors))
    return calls


def _form(tensor: Any) -> tuple[str, tuple[int, ...]]:
    return str(tensor.dtype), tuple(int(extent) for extent in tensor.shape)


def _time_round(
    calls: Sequence[_Call], kernels: Mapping[str, _Kernel], *, is_alone: bool
) -> dict[str, list[float]]:
    costs_s = _time_calls(calls, is_alone=is_alone)
    if sum(map(sum, costs_s.values())) < _SMALL_S:  # the whole network may fit in the caches
        costs_s, began = {}, time.perf_counter()
        while time.perf_counter() - began < 1e-3 * _LEAST_MS:
            for key, found in _time_calls(calls, is_alone=is_alone).items():
                costs_s.setdefault(key, []).extend(found)
    arguments = {call.task: call.tensors for call in calls}
    for key, found in costs_s.items():
        if np.median(found) < _SINGLE_CALL_S:
            costs_s[key] = [_mean_cost(kernels[key].timer, arguments[key], is_alone=is_alone)]
    return costs_s


def _time_calls(calls: Sequence[_Call], *, is_alone: bool) -> dict[str, list[float]]:
    """Returns task key -> seconds of its calls; CPU time for a single thread."""
    clock = _clock(is_alone=is_alone)
    costs_s: dict[str, list[float]] = {}
    for call in calls:
        began = clock()
        call.run(*call.tensors)
        costs_s.setdefault(call.task, []).append(clock() - began)
    return costs_s


def _mean_cost(timer: Callable[..., Any], tensors: Sequence[Any], *, is_alone: bool) -> float:
    """Returns the mean seconds of consecutive calls, after a warm-up call.

    Args:
        is_alone: whether to multiply by the thread's share of CPU time, so that other programs on
            the machine do not count.
    """
    wall, worked = time.perf_counter(), time.process_time()
    cost = float(timer(*tensors).results[0])
    share = (time.process_time() - worked) / (time.perf_counter() - wall)
    return cost * min(1.0, share) if is_alone else cost


def _deeper(depth: int, call: Callable[[], _T]) -> _T:
    """Returns the result of a call that is made `depth` steps deeper in the processor's stack.

    Calls of Python functions do not move that stack, but calls through C do: `map` moves it by an
    odd multiple of 16 bytes, so that every second step has the same alignment to 32 bytes.
    """
    if depth == 0:
        return call()
    return next(map(lambda _: _deeper(depth - 1, call), (None,)))  # noqa: C417


def _over_places(costs_s: Sequence[Sequence[float]]) -> float:
    return float(np.mean([min(costs) for costs in costs_s]))


def _clock(*, is_alone: bool) -> Callable[[], float]:
    return time.process_time if is_alone else time.perf_counter


def _is_one_thread(target: Target) -> bool:
    return int(target.attrs.get("num-cores", 0)) == 1 and os.environ.get("TVM_NUM_THREADS") == "1"
