"""Costs of Tenset's tasks from measure records, either recorded or predicted by a cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import find_device_files
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.models.assemble import assemble_samples
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.prediction import misfit
from cdmpp.predict.records import record_programs
from cdmpp.predict.requested_device import asked_device
from cdmpp.records import GPU_TARGET_KINDS, MeasureRecord, TensetTask, normalise_workload_key
from cdmpp.replay.costs import CostSource, GivenTimes, OperatorCost, gather_costs
from cdmpp.replay.engine import ReplayOptions
from cdmpp.replay.graph import OperatorGraph
from cdmpp.replay.summary import ReplayOutcome, replay_costs
from cdmpp.replay.tenset_network import DEVICE, read_tenset_network

RecordKind = Literal["best", "draws"]


@dataclass(frozen=True)
class RecordChoice:
    """Selection of the records that represent each task.

    Attributes:
        kind: `best` = the fastest measured program of each task; `draws` = random draws with
            replacement from all its programs.
        seed: seed of the draws.
        draws: number of draws.
    """

    kind: RecordKind = "best"
    seed: int = 0
    draws: int = 100

    @classmethod
    def of(cls, text: str, seed: int) -> RecordChoice:
        """Parses `best` or `draws:N`.

        Raises:
            UsageError: the text has another form.
        """
        name, _, value = text.partition(":")
        if text == "best":
            return cls(seed=seed)
        if name == "draws" and value.isdecimal() and int(value):
            return cls("draws", seed, int(value))
        raise UsageError(f"--schedule {text!r}: expected best or draws:N for Tenset's tasks")

    @property
    def text(self) -> str:
        """Description of the selection."""
        if self.kind == "best":
            return "the fastest measured record of each task"
        return f"{self.draws} samples from the measured records of each task, seed {self.seed}"


def replay_records(
    path: Path,
    label: str,
    choice: RecordChoice,
    options: ReplayOptions,
    *,
    trained: TrainedModel | None,
    dataset: Path | None = None,
    records_of: str | None = None,
    times: Mapping[str, float] | None = None,
    scales: Mapping[str, float] | None = None,
) -> ReplayOutcome:
    """Replays a Tenset network from records of its tasks.

    Args:
        path: the network's tasks, see `cdmpp.replay.tenset_network`.
        label: label of the device.
        trained: the model that predicts the records; None = use the recorded times.
        dataset: folder in Tenset's layout; None = the folder that contains the network.
        records_of: device whose records are used; None = `label`.
        times: seconds of operators by id, name, task or kind; they override records.
        scales: factors of `replay_costs`.

    Raises:
        DataError: the network cannot be read, its tasks have no records, or the device cannot run
            its programs.
        DeviceError: the device is unknown.
        UsageError: a time or factor matches no operator.
    """
    network = read_tenset_network(path)
    spec = get_device(label) if trained is None else asked_device(label, trained.card)
    for kind in {task.target_kind for task in network.tasks.values()}:
        reason = misfit(spec, is_gpu=kind in GPU_TARGET_KINDS)
        if reason is not None:
            raise DataError(
                f"no program of {path.name} can be predicted ({reason}); expected tasks of the "
                "kind that the device runs"
            )
    records_of = records_of or label
    records = RecordCosts(
        dataset or network.folder.parent, records_of, network.tasks, choice,
        trained=trained, device=spec,
    )  # fmt: skip
    costs = gather_costs(network.graph, [GivenTimes(times), records], {DEVICE: spec})
    schedule = f"{choice.text} on {records_of}{', recorded times' if trained is None else ''}"
    return replay_costs(costs, options, device=label, schedule=schedule, scales=scales)


class RecordCosts(CostSource):
    """Costs of the chosen records.

    Args:
        dataset: folder in Tenset's layout.
        records_of: label of the device whose records are used.
        tasks: workload key -> task.
        choice: selection of the records.
        trained: the model that predicts the records; None = use the recorded times.
        device: device to predict for.

    Raises:
        DataError: there are no records of the device.
        UsageError: fewer than one draw.
    """

    def __init__(
        self,
        dataset: Path,
        records_of: str,
        tasks: Mapping[str, TensetTask],
        choice: RecordChoice,
        *,
        trained: TrainedModel | None,
        device: DeviceSpec,
    ) -> None:
        if choice.draws < 1:
            raise UsageError(f"{choice.draws} draws of the records; expected at least 1")
        self._tasks, self._choice = tasks, choice
        self._trained, self._device = trained, device
        self._records = _measured(dataset, records_of, tasks)
        self._reasons: dict[str, str] = {}

    def costs(self, graph: OperatorGraph) -> dict[str, OperatorCost]:
        """Returns operator id -> cost, for tasks with usable records."""
        rng = np.random.default_rng(self._choice.seed)
        by_task = {key: self._cost(self._tasks[key], rng) for key in sorted(self._tasks)}
        found: dict[str, OperatorCost] = {}
        for one in graph.operators:
            cost = by_task.get(one.task)
            if isinstance(cost, OperatorCost):
                found[one.id] = cost
            elif cost is not None:
                self._reasons[one.id] = cost
        return found

    def reasons(self) -> dict[str, str]:
        """Returns operator id -> why its task has no cost."""
        return self._reasons

    def _cost(self, task: TensetTask, rng: np.random.Generator) -> OperatorCost | str:
        records = self._records.get(task.workload_key, [])
        if not records:
            return "no measured record of its task"
        measured = [float(record.latency_s or 0.0) for record in records]
        if self._choice.kind == "best":
            chosen = [int(np.argmin(measured))]
        else:
            chosen = [int(n) for n in rng.integers(0, len(records), self._choice.draws)]
        if self._trained is None:
            times = np.array([measured[n] for n in chosen])
            return _pooled(times, times, times, "records")
        distinct = sorted(set(chosen))
        estimates = self._predicted(task, [records[n] for n in distinct])
        if isinstance(estimates, str):
            return estimates
        place = [distinct.index(n) for n in chosen]
        times, low, high = (values[place] for values in estimates)
        return _pooled(times, low, high, "model")

    def _predicted(
        self, task: TensetTask, records: Sequence[MeasureRecord]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | str:
        assert self._trained is not None
        asked = []
        for program in record_programs(task, records, [lambda _: self._device]):
            if isinstance(program, str):
                return f"a record cannot be predicted ({program})"
            asked.append(program)
        found = self._trained.estimate(assemble_samples(asked))
        low = np.where(np.isnan(found.low_s), found.latency_s, found.low_s)
        high = np.where(np.isnan(found.high_s), found.latency_s, found.high_s)
        # The fastest record is not one of those that are far slower than predicted.
        expected_s = found.latency_s if self._choice.kind == "best" else found.mean_s
        return expected_s, low, high


def _pooled(
    times: np.ndarray, low: np.ndarray, high: np.ndarray, source: Literal["records", "model"]
) -> OperatorCost:
    draws = tuple(float(value) for value in times) if len(times) > 1 else ()
    mean = float(np.clip(times.mean(), times.min(), times.max()))
    return OperatorCost(mean, float(low.min()), float(high.max()), source, draws_s=draws)


def _measured(
    dataset: Path, device: str, tasks: Mapping[str, TensetTask]
) -> dict[str, list[MeasureRecord]]:
    """Returns workload key -> records with a measured latency."""
    kinds = {task.target_kind for task in tasks.values()}
    found: dict[str, list[MeasureRecord]] = {}
    report = ReadReport()
    for path in find_device_files(dataset, device):
        for record in read_records(path, report):
            key = normalise_workload_key(record.workload_key)
            if key in tasks and record.is_ok and record.target_kind in kinds:
                found.setdefault(key, []).append(record)
    if not found:
        raise DataError(
            f"{dataset}: no measured record of device {device!r} of any of the network's "
            f"{len(tasks)} tasks; choose another device or dataset with --records-of and --dataset"
        )
    return found
