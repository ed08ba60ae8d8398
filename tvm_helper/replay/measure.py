"""Compiling a network with given schedules and timing it here: whole, and kernel by kernel."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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

#: Each turn places everything in memory anew: where it lies decides which cache lines displace each
#: other, and would otherwise be one draw for the whole network and one for its kernels.
_TURNS = 5
#: Slow networks get fewer turns: no more when these seconds are over, but at least so many.
_TURNS_S = 120.0
_FEWEST_TURNS = 3
#: Within a turn network and kernels take turns, so that slow changes of the machine meet both
#: alike, once on each of two places of the stack: code that has too few registers keeps vectors on
#: a stack that is aligned to 16 bytes only, and a kernel that does so a lot takes up to 2.5 times
#: as long where they cross blocks of 32 bytes (on a Zen 4) as where they do not.
_PLACES = 2
_LEAST_MS = 20
#: A network that takes less is run several times in a round.
_SMALL_S = 0.1
#: Of one that takes less, what calling it takes would be a part of the time.
_TINY_S = 1e-3
#: The first steps into the stack are of other sizes than the later ones.
_LEAST_DEPTH = 4
#: Below that a single call cannot be timed: the kernel is called again and again.
_SINGLE_CALL_S = 10e-6


_T = TypeVar("_T")


@dataclass(frozen=True)
class _Kernel:
    """A compiled kernel and arguments for it.

    Attributes:
        tensors: arguments; their values go into the memory of each call.
        timer: calls it again and again, with the given arguments.
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
    """The library of a compiled network, and the data types and shapes of its inputs."""

    library: Path
    inputs: Arguments


@dataclass(frozen=True)
class MeasuredNetwork:
    """Timings of a network on this machine.

    One thread (a device of one thread, and TVM_NUM_THREADS=1) is timed by the processor time that
    it gets, several by the clock.

    Attributes:
        costs_s: seconds of the whole network, one a repeat; the repeats take turns on two places of
            the stack.
        kernel_s: task key -> seconds of its kernel alone, as `latency_s`. The kernels are called in
            the network's order, each call with weights of its own, so that the caches hold what
            they hold in the network; kernels of less than 10 µs are called again and again.
        unmeasured: task key -> why its kernel was not timed.
    """

    costs_s: tuple[float, ...]
    kernel_s: dict[str, float]
    unmeasured: dict[str, str]

    @property
    def latency_s(self) -> float:
        """Seconds of the whole network: the mean over the places of the stack, of the medians."""
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
        turns: how often network and kernels get new memory; fewer for slow networks.

    Raises:
        DeviceError: the target is no CPU, or the network cannot be compiled or run.
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
                # Made while those of the last turn stand, or they would get the same memory again.
                run, calls = _placed(whole, is_alone=is_alone), _calls(network, kernels)
                _time_calls(calls, is_alone=is_alone)  # touches the memory
                timed = partial(_time_round, calls, kernels, is_alone=is_alone)
                for place in range(_PLACES):
                    depth = _LEAST_DEPTH + turn * _PLACES + place
                    costs_s.append(_deeper(depth, run))
                    for key, costs in _deeper(depth, timed).items():
                        of_places = kernel_costs_s.setdefault(key, [[] for _ in range(_PLACES)])
                        of_places[place].extend(costs)
        except Exception as error:  # TVM and LLVM raise whatever they do
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
    """Returns what times a run of the network, in memory of its own; mean seconds."""
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
            unmeasured[key] = last_line(error)
        else:
            kernels[key] = _Kernel(module["main"], tensors, timer)
    return kernels, unmeasured


def _calls(network: KernelGraph, kernels: Mapping[str, _Kernel]) -> list[_Call]:
    """Returns the network's calls in order, in memory of their own.

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
            # Not the same one twice in a call.
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
    if sum(map(sum, costs_s.values())) < _SMALL_S:  # it may stay in the caches as a whole
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
    """Returns task key -> seconds of its calls; processor time of a kernel of one thread."""
    clock = _clock(is_alone=is_alone)
    costs_s: dict[str, list[float]] = {}
    for call in calls:
        began = clock()
        call.run(*call.tensors)
        costs_s.setdefault(call.task, []).append(clock() - began)
    return costs_s


def _mean_cost(timer: Callable[..., Any], tensors: Sequence[Any], *, is_alone: bool) -> float:
    """Returns mean seconds of calls one after another, after one that warms up.

    Args:
        is_alone: one thread: its share of the processor meanwhile counts, so that what else runs on
            the machine does not.
    """
    wall, worked = time.perf_counter(), time.process_time()
    cost = float(timer(*tensors).results[0])
    share = (time.process_time() - worked) / (time.perf_counter() - wall)
    return cost * min(1.0, share) if is_alone else cost


def _deeper(depth: int, call: Callable[[], _T]) -> _T:
    """Returns what a call returns that stands so many steps deeper in the processor's stack.

    Python's calls do not move that stack, those through C do: through `map` by an odd multiple of
    16 bytes, so that every other step lies alike to blocks of 32.
    """
    if depth == 0:
        return call()
    return next(map(lambda _: _deeper(depth - 1, call), (None,)))  # noqa: C417


def _over_places(costs_s: Sequence[Sequence[float]]) -> float:
    return float(np.mean([np.median(costs) for costs in costs_s]))


def _clock(*, is_alone: bool) -> Callable[[], float]:
    return time.process_time if is_alone else time.perf_counter


def _is_one_thread(target: Target) -> bool:
    return int(target.attrs.get("num-cores", 0)) == 1 and os.environ.get("TVM_NUM_THREADS") == "1"
