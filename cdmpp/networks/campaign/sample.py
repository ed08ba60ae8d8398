"""Measures one sample, a network at one batch size, in this process (forked for it)."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from cdmpp.errors import first_line
from cdmpp.networks.architectures.build import build_module, make_inputs
from cdmpp.networks.campaign.labels import time_repeats
from cdmpp.networks.campaign.machine_speed import SpeedProbe
from cdmpp.networks.campaign.process_memory import (
    limit_growth,
    return_freed_memory,
    settle_memory,
    status_bytes,
)
from cdmpp.networks.campaign.sample_step import (
    _LEARNING_RATE,
    SampleRequest,
    grad_mode,
    make_step,
    make_update,
    timed_values,
    warm_up,
)
from cdmpp.processes.collector import without_collector

Part = Literal["memory", "time", "gpu"]

#: The second iteration includes buffers that the first one set up.
_MEMORY_ITERATIONS = 2
_MEMORY_EVENT = "[memory]"


def run_part(request: SampleRequest, part: Part) -> dict[str, Any]:
    """Returns the measured values of a part, or the outcome and a note if it fails."""
    try:
        if part == "gpu":
            from cdmpp.networks.campaign.sample_cuda import run_on_gpu

            return run_on_gpu(request)
        return _memory_values(request) if part == "memory" else _time_values(request)
    except (RuntimeError, MemoryError) as error:
        outcome = "out-of-memory" if is_out_of_memory(error) else "crashed"
        return {"outcome": outcome, "note": first_line(error, 300)}


def parts_of(kind: Literal["cpu", "gpu"]) -> tuple[Part, ...]:
    """Returns the parts of a sample, each for its own process.

    On a CPU, memory and time are separate parts, because `return_freed_memory` makes the memory
    repeatable but slows the network down.
    """
    return ("gpu",) if kind == "gpu" else ("memory", "time")


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an exception of torch means out of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return any(
        part in text
        for part in ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc",
                     "cannot allocate memory")
    )  # fmt: skip


def prepare_process() -> None:
    """Loads the modules that every sample needs, without starting a thread."""
    # The first optimiser imports the compiler, which takes seconds and 70 MB.
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=_LEARNING_RATE).step()
    # Excludes existing objects from collection, which would copy their pages in every sample.
    gc.collect()
    gc.freeze()


def _memory_values(request: SampleRequest) -> dict[str, Any]:
    """Returns the process's peak memory of a few iterations and torch's allocations in one."""
    baseline = _start_on_cpu(request)
    return_freed_memory()
    module, inputs, step = _make(request)
    with grad_mode(request.mode):
        for _ in range(_MEMORY_ITERATIONS):
            step()
        peak = status_bytes("VmHWM")
        allocated = _allocated_peak(step, module, inputs)
    return {
        "outcome": "ok", "memory_bytes": max(0, peak - baseline), "allocated_bytes": allocated
    }  # fmt: skip


def _time_values(request: SampleRequest) -> dict[str, Any]:
    """Returns the times, the utilisation and the peak memory with the default allocator."""
    baseline = _start_on_cpu(request)
    module, inputs, step = _make(request)
    works_s: list[tuple[float, ...]] = []
    busy = wall = 0.0

    def run(count: int) -> float:
        nonlocal busy, wall
        started, busy_before = time.perf_counter(), time.process_time()
        for _ in range(count):
            step()
        seconds = time.perf_counter() - started
        busy, wall = busy + time.process_time() - busy_before, wall + seconds
        return seconds

    def run_beside_works(count: int) -> float:
        works_s.append(probe())
        return run(count)

    with grad_mode(request.mode), without_collector():
        first = warm_up(run, request.timing)
        process_bytes = max(0, status_bytes("VmHWM") - baseline)
        probe = SpeedProbe()
        busy = wall = 0.0
        timed = time_repeats(run_beside_works, request.timing, first_s=first)
        utilisation = min(1.0, busy / (wall * request.threads))
        before = probe()
        operators = _operator_times(request, module, inputs)
        operators_works_s = np.sqrt(np.multiply(before, probe()))
    return {
        **timed_values(timed.times_s, timed.iterations),
        "process_bytes": process_bytes,
        "utilisation": utilisation,
        "load_1min": os.getloadavg()[0],
        "works_s": [_short(works) for works in works_s],
        "operators_s": _short(operators),
        "operators_works_s": _short(operators_works_s),
    }


def _short(seconds: Iterable[float]) -> list[float]:
    """Returns the numbers rounded to four significant digits."""
    return [float(f"{value:.4g}") for value in seconds]


def _operator_times(
    request: SampleRequest, module: nn.Module, inputs: tuple[torch.Tensor, ...]
) -> tuple[float, ...]:
    """Returns the seconds of each operator; empty if `operator_runs` is 0."""
    timing = request.timing
    if not timing.operator_runs:
        return ()
    from cdmpp.networks.campaign.operator_times import OperatorRunner

    runner = OperatorRunner(module, inputs)
    update = make_update(module) if request.mode == "train" else None
    return runner.times(request.mode, update, runs=timing.operator_runs, budget_s=timing.budget_s)


def _start_on_cpu(request: SampleRequest) -> int:
    """Prepares the process for a sample; returns its resident bytes."""
    torch.set_num_threads(request.threads)
    torch.manual_seed(0)
    _touch_libraries()
    baseline = settle_memory()
    if request.most_memory_bytes is not None:
        limit_growth(request.most_memory_bytes)
    return baseline


def _make(
    request: SampleRequest,
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[[], None]]:
    if request.make is not None:
        module, inputs = request.make()
    else:
        assert request.spec is not None
        module = build_module(request.spec)
        inputs = make_inputs(request.spec, request.batch)
    return module, inputs, make_step(module, inputs, request.mode)


def _touch_libraries() -> None:
    """Runs one small training step, so that one-time setup does not count as network memory."""
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 8),
    )  # fmt: skip
    make_step(module, (torch.zeros(2, 3, 8, 8),), "train")()


def _allocated_peak(
    step: Callable[[], None], module: nn.Module, inputs: tuple[torch.Tensor, ...]
) -> int:
    """Returns torch's peak allocated bytes in one iteration, including weights and inputs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == _MEMORY_EVENT]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    held = [*module.parameters(), *module.buffers(), *inputs]
    return peak + sum(tensor.numel() * tensor.element_size() for tensor in held)
