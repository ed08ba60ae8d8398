"""Scores of Ansor's states from their record lines, in the model's process; needs no TVM."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.predict.estimates import TrainedModel
from cdmpp.programs.ansor.dag import parse_dag
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import featurise_records, is_gpu_kind
from cdmpp.records import MeasureRecord, TensetTask, program_id_of_text
from tvm_helper.cost_model.safety_net import SafetyNet
from tvm_helper.cost_model.scoring import SearchCore
from tvm_helper.cost_model.state_file import read_state, write_state

#: Ansor's score of a state that cannot be scored; every other score is positive.
INVALID_SCORE = float("-inf")


@dataclass(frozen=True)
class StateFeatures:
    """Features of states of one task.

    Attributes:
        records: records of all states.
        asts: compact ASTs of the states that can be scored.
        supported: int64 [S], indices of these states.
        unsupported: reason -> number of the other states.
        seconds: time of reading, replaying and lowering.
    """

    records: list[MeasureRecord]
    asts: list[CompactAst]
    supported: IntArray
    unsupported: Counter[str]
    seconds: float


class AnsorScorer:
    """Cost model for states given as lines of a record file.

    `add_task` has to be called once for each task before its states are scored. The arguments are
    those of `SearchCore`.

    Attributes:
        core: the model with its measured programs and counters.
    """

    def __init__(
        self,
        model: TrainedModel | Path | str,
        device: DeviceSpec | str,
        *,
        finetune_every: int = 0,
        neighbours: bool = True,
        seed: int = 0,
    ) -> None:
        self.core = SearchCore(
            model, device, finetune_every=finetune_every, neighbours=neighbours, seed=seed
        )
        self._tasks: dict[str, TensetTask] = {}

    def add_task(self, name: str, *, target: str, dag_json: str) -> None:
        """Adds a task.

        Args:
            name: name of the task in later requests.
            target: the compiler target as text.
            dag_json: tensors of the computation as TVM's JSON node graph.

        Raises:
            DataError: the computation cannot be read.
            UsageError: the device cannot run programs for that target.
        """
        kind = target.split()[0]
        device = self.core.device
        if is_gpu_kind(kind) != (device.kind == "gpu"):
            raise UsageError(
                f"programs for {kind} do not run on {device.name}, which is a {device.kind}; "
                "expected a device of the target's kind, see `cdmpp device list`"
            )
        parse_dag(dag_json)  # raises once here instead of for every state
        self._tasks[name] = TensetTask(name, target, kind, dag_json, ())

    def predict(self, name: str, lines: Sequence[str]) -> FloatArray:
        """Returns float64 [state]: positive and higher is better, or `INVALID_SCORE`.

        Raises:
            DataError: the task was not added, or a line is not a record.
        """
        started = time.perf_counter()
        found, latency_s = self._latencies(name, lines)
        self.core.count(found.unsupported, candidates=len(lines), feature_s=found.seconds)
        scores = self.core.scores(name, latency_s, unsupported=INVALID_SCORE)
        self.core.usage.predict_s += time.perf_counter() - started
        return scores

    def update(self, name: str, lines: Sequence[str]) -> None:
        """Adds a measured batch of one task; fine-tunes or corrects the model on it if enabled.

        Raises:
            DataError: the task was not added, or a line is not a record.
        """
        if not lines:
            return
        started = time.perf_counter()
        found = self._features(name, lines)
        cost_s = np.array([_cost_s(record) for record in found.records])
        usage = self.core.usage
        usage.measured += len(lines)
        usage.failed += int(np.sum(~np.isfinite(cost_s)))
        is_good = np.isfinite(cost_s[found.supported])
        asts = [ast for ast, good in zip(found.asts, is_good.tolist(), strict=True) if good]
        self.core.learn(name, asts, cost_s[found.supported][is_good])
        self.core.end_round(name)
        usage.update_s += time.perf_counter() - started

    def save(self, path: Path) -> None:
        """Writes everything that `load` needs into one file (tar, no pickle inside).

        Raises:
            DataError: it cannot be written.
        """
        write_state(path, self.core.state(SafetyNet(), peer=None))

    def load(self, path: Path) -> None:
        """Restores the state of the model that wrote the file; keeps this model's mode and seed.

        Raises:
            DataError: not a file of this kind.
        """
        self.core.restore(read_state(path, peer=None))

    def _features(self, name: str, lines: Sequence[str]) -> StateFeatures:
        started = time.perf_counter()
        task = self._tasks.get(name)
        if task is None:
            raise DataError(f"task {name} was not added; got {len(self._tasks)} others")
        records = [parse_record(line) for line in lines]
        asts: list[CompactAst] = []
        supported: list[int] = []
        unsupported: Counter[str] = Counter()
        for place, ast in enumerate(featurise_records(task, records)):
            reason = _invalid_reason(ast)
            if reason is not None:
                unsupported[reason] += 1
                continue
            assert isinstance(ast, CompactAst)
            asts.append(ast)
            supported.append(place)
        return StateFeatures(
            records, asts, np.array(supported, np.int64), unsupported, time.perf_counter() - started
        )

    def _latencies(self, name: str, lines: Sequence[str]) -> tuple[StateFeatures, FloatArray]:
        """Returns the features and float64 [state], predicted seconds; NaN without features."""
        found = self._features(name, lines)
        seconds = np.full(len(lines), np.nan)
        if found.asts:
            asked = [
                self._asked(found.records[place], ast)
                for place, ast in zip(found.supported.tolist(), found.asts, strict=True)
            ]
            seconds[found.supported] = self.core.latency_s(name, assemble_samples(asked))
        return found, seconds

    def _asked(self, record: MeasureRecord, ast: CompactAst) -> AskedProgram:
        kind = record.target_kind
        return AskedProgram(
            program_id=program_id_of_text("tenset", record.workload_key, record.schedule, kind),
            task=f"{record.workload_key}|{kind}",
            ast=ast,
            device=self.core.device,
            schedule=record.schedule,
        )


def _invalid_reason(ast: CompactAst | ReplayError) -> str | None:
    """Returns a short reason why a state must not be measured; None if it may be."""
    if isinstance(ast, ReplayError):
        return ast.reason
    if not ast.valid:
        return (ast.reject_reason or "rejected").partition(" (")[0].partition(":")[0]
    return "program without stores" if len(ast.leaf_features) == 0 else None


def _cost_s(record: MeasureRecord) -> float:
    """Returns the median seconds of a measurement; NaN if it failed."""
    return float(np.median(record.costs_s)) if record.is_ok else float("nan")


__all__ = ["INVALID_SCORE", "AnsorScorer"]
