"""How fast modules in TVM's hands become leaf vectors, beside TVM's own `per-store-feature`.

Both sides get the same random schedules, in turn, in one process; each figure is the best of
several rounds. Shared machines are noisy, so programs per second of processor time stand beside
those per second of the clock.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from tvm.s_tir import meta_schedule

from cdmpp.errors import DataError
from cdmpp.machine import processor_name
from lab.pages import write_page
from lab.stamp import PROGRAMS, stamp
from tests.tvm_helper.sampled import WORKLOADS, sample_schedules, sample_target
from tvm_helper.compat import Schedule, installed_versions
from tvm_helper.native.modules import MODULE_PHASES, NativeModules
from tvm_helper.tasks.sampling import TargetKind
from tvm_helper.tir.features import native_modules
from tvm_helper.tir.loop_tree import lowering_passes

#: Workloads that are measured.
MEASURED = ("matmul", "conv2d_bias_relu", "softmax")


@dataclass(frozen=True)
class Speed:
    """Programs per second of the clock and of processor time (all threads together)."""

    per_s: float
    per_cpu_s: float


@dataclass(frozen=True)
class ModuleSpeed:
    """What was measured of one workload on one target.

    Attributes:
        scheduled: from scheduled modules to leaf vectors; one entry a number of threads.
        lowered: the same from modules without blocks.
        peer: TVM's own extractor, from scheduled modules.
        phase_us: microseconds a program in each of `MODULE_PHASES`, scheduled, one thread.
        leaves: mean number of leaves.
    """

    target: TargetKind
    workload: str
    scheduled: dict[int, Speed]
    lowered: dict[int, Speed]
    peer: dict[int, Speed]
    phase_us: dict[str, float]
    leaves: float


def measure(
    target: TargetKind, workload: str, *, programs: int, rounds: int, threads: Sequence[int]
) -> ModuleSpeed:
    """Measures one workload.

    Args:
        target: what the schedules are for.
        workload: a name in `WORKLOADS`.
        programs: different random schedules.
        rounds: how often everything is repeated.
        threads: numbers of threads.

    Raises:
        DataError: there is no native code.
    """
    native = native_modules()
    if native is None:
        raise DataError("Cannot measure the native code: got none; install g++ or set CXX.")
    schedules = sample_schedules(WORKLOADS[workload](), target, programs)
    modules = [schedule.mod for schedule in schedules]
    lowered = [lowering_passes()(module) for module in modules]
    is_gpu = target == "cuda"
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    for count in threads:
        calls["scheduled", count] = _native_call(native, modules, is_gpu, count)
        calls["lowered", count] = _native_call(native, lowered, is_gpu, count)
        calls["peer", count] = _peer_call(schedules, target, count)
    best = dict.fromkeys(calls, Speed(0, 0))
    for _ in range(rounds):
        for key, call in calls.items():
            best[key] = _better(best[key], _timed(call, programs))
    by_side = {
        side: {count: best[side, count] for count in threads}
        for side in ("scheduled", "lowered", "peer")
    }
    batches = [native.featurise(modules, is_gpu=is_gpu, limits=None) for _ in range(10 * rounds)]
    phase_us = {
        phase: min(batch.seconds[phase] for batch in batches) / programs * 1e6
        for phase in MODULE_PHASES
    }
    leaves = len(batches[0].leaf_features) / programs
    return ModuleSpeed(target, workload, **by_side, phase_us=phase_us, leaves=leaves)


def _native_call(
    native: NativeModules, modules: list[Any], is_gpu: bool, threads: int
) -> Callable[[], object]:
    return lambda: native.featurise(modules, is_gpu=is_gpu, limits=None, threads=threads)


def _peer_call(schedules: list[Schedule], target: TargetKind, threads: int) -> Callable[[], object]:
    entry = meta_schedule.arg_info.ArgInfo.from_entry_func(schedules[0].mod, remove_preproc=True)
    candidates = [meta_schedule.MeasureCandidate(schedule, entry) for schedule in schedules]
    extractor = meta_schedule.feature_extractor.FeatureExtractor.create("per-store-feature")
    context = meta_schedule.TuneContext(
        mod=schedules[0].mod, target=sample_target(target), num_threads=threads
    )
    return lambda: extractor.extract_from(context, candidates)


def _timed(call: Callable[[], object], programs: int) -> Speed:
    """Returns the speed of at least a tenth of a second of calls."""
    calls = 0
    start, cpu_start = time.perf_counter(), time.process_time()
    while calls == 0 or time.perf_counter() - start < 0.1:
        call()
        calls += 1
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    return Speed(calls * programs / seconds, calls * programs / cpu_s)


def _better(left: Speed, right: Speed) -> Speed:
    return Speed(max(left.per_s, right.per_s), max(left.per_cpu_s, right.per_cpu_s))


def report(results: Sequence[ModuleSpeed], *, programs: int, rounds: int) -> str:
    """Returns the results as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        "# Speed of featurising modules in TVM's hands",
        "",
        "`python -m lab run module-speed`",
        "",
        f"{processor_name()}, {os.cpu_count()} cores, load average {load} when the last figure was "
        f"taken; Python {platform.python_version()}, {versions}, numpy {np.__version__}.",
        f"{programs} random MetaSchedule schedules a row, the best of {rounds} rounds; both sides "
        "get the same schedules in turn.",
        "`clock` = programs per second, `CPU` = programs per second of processor time. Scheduled: "
        "from a module with blocks to all leaf",
        "columns, lowering included; lowered: from a module without blocks; per-store-feature: "
        "TVM's own extractor, scheduled modules.",
        "",
        "| target | workload | leaves | threads | scheduled, clock | CPU | lowered, clock | CPU | "
        "per-store-feature, clock | CPU | ratio (CPU) |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for threads, ours in result.scheduled.items():
            plain, peer = result.lowered[threads], result.peer[threads]
            figures = (ours.per_s, ours.per_cpu_s, plain.per_s, plain.per_cpu_s, peer.per_s,
                       peer.per_cpu_s)  # fmt: skip
            ratio = ours.per_cpu_s / peer.per_cpu_s
            cells = " | ".join(f"{figure:,.0f}" for figure in figures)
            lines.append(
                f"| {_target_name(result.target)} | {result.workload} | {result.leaves:.1f} | "
                f"{threads} | {cells} | {ratio:.0f} |"
            )
    lines += [
        "",
        "Where the time goes: scheduled modules, one thread, microseconds a program (clock, the "
        "fastest call for each phase).",
        "",
        "| target | workload | " + " | ".join(MODULE_PHASES) + " |",
        "|---" * (2 + len(MODULE_PHASES)) + "|",
    ]
    for result in results:
        cells = " | ".join(f"{result.phase_us[phase]:.1f}" for phase in MODULE_PHASES)
        lines.append(f"| {_target_name(result.target)} | {result.workload} | {cells} |")
    lines += [
        "",
        "Walk: TIR to the raw loop tree, blocks included. Passes: TVM's own, only where threads "
        "reduce together (softmax on the GPU).",
        "Canonical: simplifying, placing and compacting allocations. Features: the leaf columns.",
    ]
    return "\n".join(lines) + "\n"


def _target_name(target: TargetKind) -> str:
    return "T4" if target == "cuda" else target


def experiment(programs: int = 64, rounds: int = 5) -> None:
    """Times every workload on every target, and writes the page.

    Args:
        programs: schedules a workload.
        rounds: repetitions of every measurement.
    """
    results = [
        measure(target, workload, programs=programs, rounds=rounds, threads=(1, 2))
        for target in get_args(TargetKind)
        for workload in MEASURED
    ]
    text = report(results, programs=programs, rounds=rounds)
    found = stamp("python -m lab run module-speed", schemas=PROGRAMS)
    print(write_page("module-speed", text, {}, found))
