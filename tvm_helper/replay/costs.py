"""Schedules of a network's kernels, and their costs predicted by a cost model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    check_database,
)
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError, DataError, UsageError, last_line
from cdmpp.predict.machine_code.cold_memory import LEAST_S, uncached_share
from cdmpp.predict.prediction import Prediction
from cdmpp.replay.costs import CostSource, OperatorCost
from cdmpp.replay.graph import OperatorGraph
from tvm_helper.compat import Schedule, Target, import_tensor_intrinsics, meta_schedule, s_tir
from tvm_helper.predict.predictor import Predictor
from tvm_helper.replay.graph import KernelGraph
from tvm_helper.tasks.default_schedule import default_schedule
from tvm_helper.tasks.network_tasks import NetworkTask
from tvm_helper.tasks.sampling import valid_schedules

ScheduleKind = Literal["default", "first-valid", "database", "draws"]
#: Seconds from which a record in TVM's database is a failed program.
_FAILED_S = 1e9


@dataclass(frozen=True)
class ScheduleChoice:
    """Choice of the schedules of a network's kernels.

    Attributes:
        kind: `default` = TVM's default schedule (`default_schedule`); `first-valid` = first valid
            sample of a kernel's MetaSchedule space; `database` = fastest measured program in a
            MetaSchedule database; `draws` = several valid samples.
        seed: seed of the samples.
        database: folder of the database.
        draws: number of samples.
    """

    kind: ScheduleKind = "default"
    seed: int = 0
    database: Path | None = None
    draws: int = 1

    @classmethod
    def of(cls, text: str, seed: int) -> ScheduleChoice:
        """Parses `default`, `first-valid`, `database:DIR` or `draws:N`.

        Raises:
            UsageError: another text.
        """
        name, _, value = text.partition(":")
        if text == "default":
            return cls(seed=seed)
        if text == "first-valid":
            return cls("first-valid", seed)
        if name == "database" and value:
            return cls("database", seed, Path(value))
        if name == "draws" and value.isdecimal() and int(value):
            return cls("draws", seed, draws=int(value))
        raise UsageError(
            f"--schedule {text!r}: expected default, first-valid, database:DIR or draws:N "
            "for a network"
        )

    @property
    def text(self) -> str:
        """The choice in words."""
        match self.kind:
            case "default":
                return "TVM's default schedule of each task"
            case "first-valid":
                return f"the first valid MetaSchedule sample of each task, seed {self.seed}"
            case "database":
                return f"the fastest measured program of each task in {self.database}"
            case "draws":
                return f"{self.draws} valid MetaSchedule samples of each task, seed {self.seed}"


@dataclass(frozen=True)
class ChosenSchedule:
    """Schedules of a task.

    Attributes:
        schedules: one schedule, or one per draw; empty if there is none.
        reason: reason why `schedules` is empty.
        remark: note if the schedule is not the requested one.
        is_random: whether the schedules are random samples. Then the predicted mean is used, which
            includes the long tail of slow programs.
        fastest_of: number of measured programs of which it was the fastest; 0 = not from a
            database.
    """

    schedules: tuple[Schedule, ...]
    reason: str = ""
    remark: str = ""
    is_random: bool = False
    fastest_of: int = 0


def choose_schedules(
    network: KernelGraph, target: Target, choice: ScheduleChoice
) -> dict[str, ChosenSchedule]:
    """Returns task key -> schedules.

    A task that is missing in a database gets its first valid sample, with a remark.

    Raises:
        DataError: the database cannot be read, or has none of the tasks.
        UsageError: fewer than one draw, or no database given.
    """
    if choice.draws < 1:
        raise UsageError(f"{choice.draws} draws of the schedules; expected at least 1")
    database = _database(choice.database) if choice.kind == "database" else None
    chosen: dict[str, ChosenSchedule] = {}
    for task in network.tasks.tasks:
        tuned = None if database is None else _tuned(database, task, target)
        if tuned is not None:
            chosen[task.workload_key] = tuned
            continue
        if choice.kind == "default":
            chosen[task.workload_key] = _by_default(task, target)
            continue
        count = choice.draws if choice.kind == "draws" else 1
        sampled = _sampled(task, target, choice.seed, count)
        if database is not None and sampled.schedules:
            remark = "not in the database: first valid sample used"
            sampled = replace(sampled, remark=remark)
        chosen[task.workload_key] = sampled
    if database is not None and all(one.remark or one.reason for one in chosen.values()):
        raise DataError(
            f"{choice.database}: has none of the network's {len(chosen)} tasks for "
            f"{target.kind.name}; create it with: cdmpp search --network FILE --out DIR"
        )
    return chosen


class ProgramCosts(CostSource):
    """Cost source of a trained model for a network's kernels.

    In a network, a kernel's arguments come from memory or the last cache, except for kernels
    shorter than `LEAST_S`.

    Args:
        predictor: the model.
        network: the network.
        chosen: schedules of its tasks.
        device: the device.

    Attributes:
        predictions: task key -> prediction of its first schedule alone.
    """

    def __init__(
        self,
        predictor: Predictor,
        network: KernelGraph,
        chosen: Mapping[str, ChosenSchedule],
        device: DeviceSpec,
    ) -> None:
        self._predictor, self._network = predictor, network
        self._chosen, self._device = chosen, device
        self._reasons: dict[str, str] = {}
        self.predictions: dict[str, Prediction] = {}

    def costs(self, graph: OperatorGraph) -> dict[str, OperatorCost]:
        """Returns operator id -> cost, for kernels that the model supports."""
        argument_bytes = sum(one.bytes or 0.0 for one in graph.operators)
        cold_s_per_byte = self._predictor.cold_s_per_byte(self._device)
        cold_s_per_byte *= uncached_share(argument_bytes, self._device)
        by_task: dict[str, OperatorCost | str] = {}
        found: dict[str, OperatorCost] = {}
        for one in graph.operators:
            if not one.task or one.task not in self._chosen:
                continue
            if one.task not in by_task:
                by_task[one.task] = self._cost(one.task)
            cost = by_task[one.task]
            if isinstance(cost, str):
                self._reasons[one.id] = cost
            else:
                is_long = cost.latency_s >= LEAST_S
                more_s = cold_s_per_byte * (one.bytes or 0.0) if is_long else 0.0
                found[one.id] = _later(cost, more_s)
        return found

    def reasons(self) -> dict[str, str]:
        """Returns operator id -> reason why the model has no prediction."""
        return self._reasons

    def _cost(self, key: str) -> OperatorCost | str:
        task, chosen = self._network.task(key), self._chosen[key]
        if task is None or not chosen.schedules:
            return chosen.reason or "not a task that TVM can schedule"
        draws, lows, highs = [], [], []
        for schedule in chosen.schedules:
            answer = self._predictor.scheduled(
                task, schedule, self._device, fastest_of=chosen.fastest_of
            )
            self.predictions.setdefault(key, answer)
            if answer.latency_s is None:
                return answer.reason or "the model cannot score it"
            mean_s = answer.mean_s if chosen.is_random else None
            seconds = answer.latency_s if mean_s is None else mean_s
            draws.append(seconds)
            lows.append(seconds if answer.low_s is None else answer.low_s)
            highs.append(seconds if answer.high_s is None else answer.high_s)
        mean_s = float(np.clip(np.mean(draws), min(draws), max(draws)))
        return OperatorCost(
            mean_s, min(lows), max(highs), "model", chosen.remark,
            tuple(draws) if len(draws) > 1 else (),
            self._predictor.own_half_width(self._device, mean_s, self.predictions[key]),
        )  # fmt: skip


def _later(cost: OperatorCost, more_s: float) -> OperatorCost:
    """Returns the cost of a kernel that takes `more_s` longer; its interval scales with it."""
    factor = (cost.latency_s + more_s) / cost.latency_s
    return replace(
        cost,
        latency_s=factor * cost.latency_s,
        low_s=factor * cost.low_s,
        high_s=factor * cost.high_s,
        draws_s=tuple(one + more_s for one in cost.draws_s),
    )


def _by_default(task: NetworkTask, target: Target) -> ChosenSchedule:
    try:
        return ChosenSchedule((default_schedule(task.module, target),))
    except DataError as error:
        return ChosenSchedule((), str(error))


def _sampled(task: NetworkTask, target: Target, seed: int, count: int) -> ChosenSchedule:
    try:
        drawn = valid_schedules(task.module["main"], target, seed=seed)
        schedules = tuple(itertools.islice(drawn, count))
    except CdmppError as error:
        return ChosenSchedule((), str(error))
    except Exception as error:  # TVM's schedule rules raise many types
        return ChosenSchedule((), f"cannot be scheduled ({last_line(error)})")
    if not schedules:
        return ChosenSchedule((), "none of its random schedules is valid for the target")
    # Each task needs the same number of draws: one with fewer valid samples repeats them.
    draws = tuple(itertools.islice(itertools.cycle(schedules), count))
    return ChosenSchedule(draws, is_random=True)


def _database(folder: Path | None) -> Any:
    if folder is None:
        raise UsageError("no database given; give --schedule database:DIR")
    check_database(folder)
    try:
        if "Tensorize" in (folder / RECORD_FILE).read_text(encoding="utf-8"):
            import_tensor_intrinsics()  # a trace uses one
        return meta_schedule.database.JSONDatabase(
            path_workload=str(folder / WORKLOAD_FILE), path_tuning_record=str(folder / RECORD_FILE)
        )
    except Exception as error:  # TVM's parser raises many types
        text = (str(error).strip().splitlines() or [""])[-1][:160]
        raise DataError(f"{folder}: TVM cannot read the database ({text}); recreate it") from None


def _tuned(database: Any, task: NetworkTask, target: Target) -> ChosenSchedule | None:
    """Returns the fastest measured program for the target's kind; None if there is none.

    TVM's own query ignores the target.
    """
    if not database.has_workload(task.module):
        return None
    workload = database.commit_workload(task.module)
    best: tuple[float, Any] | None = None
    programs: set[str] = set()
    for record in database.get_top_k(workload, 1 << 20):
        costs = [float(value) for value in record.run_secs or ()]
        if not costs or max(costs) >= _FAILED_S or record.target.kind.name != target.kind.name:
            continue
        programs.add(str(record.trace))
        seconds = float(np.median(costs))
        if best is None or seconds < best[0]:
            best = seconds, record.trace
    if best is None:
        return None
    schedule = s_tir.Schedule(task.module, debug_mask="none", error_render_level="none")
    best[1].apply_to_schedule(schedule, remove_postproc=False)
    return ChosenSchedule((schedule,), fastest_of=len(programs))
