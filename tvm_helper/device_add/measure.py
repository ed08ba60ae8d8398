"""Measurement of the chosen tasks on a new device, within a time limit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, DeviceError
from cdmpp.machine import allowed_cpus
from cdmpp.processes.campaign import CampaignProgress, OnProgress
from tvm_helper.measure.campaign import Campaign
from tvm_helper.measure.journal import read_journal
from tvm_helper.measure.options import MeasureOptions, TimingOptions, Way
from tvm_helper.measure.sources import MeasuredTask, campaign_tasks
from tvm_helper.measure.tables import write_tables
from tvm_helper.measure.target import MeasureTarget
from tvm_helper.measure.trials import WORKER_COMMAND

#: Number of programs built before they are timed; a stop loses at most these builds.
_BATCH = 32
_MOST_BUILD_JOBS = 8
#: Number of tasks whose first programs are drawn and measured before those of the next tasks: many
#: tasks with a program each teach more than few tasks with many.
_WAVE_TASKS = 128
#: Shared CPUs are slower for seconds at a time: single rounds measured 4 to 25 % too much, three
#: rounds 2 % (`docs/lab/experiments.md`).
_CPU_ROUNDS = 3
#: Schedules of drawn kernels, in turn; on other devices than CPUs only the first. A quarter are the
#: loops as they are, in which untuned networks run.
_WAYS: tuple[Way, ...] = (
    "random", "default", "random", "hand", "random", "default", "random", "dlight"
)  # fmt: skip


class _TimeIsUpError(Exception):
    """Ends a campaign from its progress callback."""


def measure_options(
    name: str,
    target: MeasureTarget,
    *,
    dataset: str = "",
    kernels: Sequence[str] = (),
    per_task: int,
    seed: int,
    machine_code: bool = False,
) -> MeasureOptions:
    """Returns the options of a new device's campaign: two short timings a program and round.

    Args:
        dataset: folder of the dataset whose programs are measured; empty with `kernels`.
        kernels: names of the kernels whose programs are drawn.
        machine_code: whether machine-code columns of the built programs are stored.
    """
    is_cpu = target.kind == "llvm"
    return MeasureOptions(
        device=name, threads=target.threads, replay=(dataset,) if dataset else (),
        sample=tuple(kernels), per_task=per_task, seed=seed,
        build_jobs=max(1, min(_MOST_BUILD_JOBS, allowed_cpus() or 1)), batch=_BATCH,
        schedules=_WAYS if kernels and is_cpu else _WAYS[:1], machine_code=machine_code,
        build_timeout_s=5.0 if is_cpu else 60.0, run_timeout_s=30.0,
        rounds=_CPU_ROUNDS if is_cpu else 1,
        timing=TimingOptions(
            min_repeats=2, max_repeats=2, min_repeat_s=0.005, budget_s=0.3, keep="minimum"
        ),
    )  # fmt: skip


def planned_tasks(
    options: MeasureOptions, target: MeasureTarget, names: Sequence[str]
) -> list[MeasuredTask]:
    """Returns the tasks with the given names (`"<workload key>|<target kind>"`), in their order.

    Raises:
        DataError: the dataset has no records of a task, or no kernel has a task of this name
            (another version of TVM chose the names).
    """
    found = {task_name(task, target): task
             for task in campaign_tasks(options, target.tvm_target())}  # fmt: skip
    missing = [name for name in names if name not in found]
    if missing and not options.replay:
        raise DataError(
            f"task {missing[0]} is not a kernel of the plan in this TVM; use the TVM that "
            "started this folder, or another --out"
        )
    if missing:
        raise DataError(
            f"{options.replay[0]}: no record of task {missing[0]} to replay; expected the "
            "dataset of the task selection"
        )
    return [found[name] for name in names]


def task_name(task: MeasuredTask, target: MeasureTarget) -> str:
    """Returns the name of a task in a dataset, `"<workload key>|<target kind>"`."""
    return f"{task.workload_key}|{target.kind}"


def kernel_task_name(kernel: str, target: MeasureTarget) -> str:
    """Returns the name of the task of a kernel, such as `dense:m=128,n=256,k=256`."""
    (task,) = campaign_tasks(MeasureOptions(sample=(kernel,)), None)
    return task_name(task, target)


def measure_until(
    folder: Path,
    options: MeasureOptions,
    tasks: Sequence[MeasuredTask],
    target: MeasureTarget,
    *,
    is_over: Callable[[], bool],
    reference: MeasuredTask | None,
    command: Sequence[str] = WORKER_COMMAND,
    on_progress: OnProgress | None = None,
) -> int:
    """Measures until `is_over` and writes the dataset; returns the number of programs that ran
    without a failure.

    On a CPU, times are divided by the slowdown of the reference program (`write_tables`).
    The first program of every task precedes the second of any. The remaining time goes to more
    programs of all tasks.
    An interrupted campaign in the folder is continued.

    Raises:
        CdmppError: see `Campaign.run`; a DeviceError if no program was measured in time.
    """

    def watch(progress: CampaignProgress) -> None:
        if on_progress is not None:
            on_progress(progress)
        if is_over():
            raise _TimeIsUpError

    first_only = replace(options, per_task=1)
    waves = [(first_only, list(tasks[first : first + _WAVE_TASKS]))
             for first in range(0, len(tasks), _WAVE_TASKS)]  # fmt: skip
    for wanted, wave in [*waves, (options, list(tasks))]:
        if is_over():
            break
        cut = [_cut(task, wanted.per_task) for task in wave]
        campaign = Campaign(wanted, folder, cut, target, reference=reference, command=command)
        with contextlib.suppress(_TimeIsUpError):
            campaign.run(watch)
    entries: list[dict[str, Any]] = [e for e in read_journal(folder) if e["kind"] == "measured"]
    if not entries:
        raise DeviceError(
            f"{folder}: no program was built and timed within the time limit; use more --minutes "
            "and another --out, or stop other programs"
        )
    write_tables(folder, is_quiet_time=target.kind == "llvm")
    return sum(entry["error_code"] == 0 for entry in entries)


def _cut(task: MeasuredTask, count: int) -> MeasuredTask:
    """Returns the task with its first `count` programs only."""
    return replace(task, programs=None if task.programs is None else task.programs[:count])
