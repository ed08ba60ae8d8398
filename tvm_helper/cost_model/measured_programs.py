"""Measured programs of a search, and the adaptation of a model to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.files.json_text import parse_json
from cdmpp.metrics import Judged, spearman_by_task
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.models.base import CostModel
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.training.finetune.few_shot import finetune_in_detail
from cdmpp.training.finetune.options import FinetuneOptions

#: Few steps because a search waits for them. The learning rate may be high: held-out programs
#: decide whether the tuned weights are used.
SEARCH_TUNING = FinetuneOptions(
    what="all", learning_rate_all=1e-3, steps=60, validate_every=20, folds=3, programs_per_batch=32
)
#: Minimum number of measured programs for a tuning that can be validated.
LEAST_PROGRAMS = 12
_NAMES = ("leaf_features", "leaf_extra", "leaf_position", "tree")


@dataclass
class MeasuredPrograms:
    """Measured programs of one search, oldest first.

    Attributes:
        device: the device that measured the programs.
        asts: compact AST of each program.
        tasks: task of each program.
        latency_s: measured seconds of each program.
    """

    device: DeviceSpec
    asts: list[CompactAst] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.asts)

    def add(self, task: str, asts: Sequence[CompactAst], latency_s: FloatArray) -> None:
        """Adds a batch of one task."""
        # The arrays are views into those of a whole batch; copies free the batch.
        self.asts += [
            replace(ast, **{name: getattr(ast, name).copy() for name in _NAMES}) for ast in asts
        ]
        self.tasks += [task] * len(asts)
        self.latency_s += latency_s.tolist()

    def samples(self, task: str | None = None) -> Samples:
        """Returns one sample per program (of `task`, if given), in order."""
        return assemble_samples(
            [
                AskedProgram(
                    program_id=str(place), task=own, ast=ast, device=self.device, measured_s=cost
                )
                for place, (own, ast, cost) in enumerate(
                    zip(self.tasks, self.asts, self.latency_s, strict=True)
                )
                if task in (None, own)
            ]
        )

    def save(self, path: Path) -> None:
        """Writes an .npz file without pickles."""
        arrays = {"latency_s": np.array(self.latency_s, np.float64)}
        for name in _NAMES:
            parts = [getattr(ast, name) for ast in self.asts]
            arrays[f"{name}_count"] = np.array([len(part) for part in parts], np.int64)
            if parts:
                arrays[name] = np.concatenate(parts)
        tasks = np.frombuffer(json.dumps(self.tasks).encode(), np.uint8)
        with path.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, tasks=tasks, **arrays)

    @classmethod
    def load(cls, path: Path, device: DeviceSpec) -> MeasuredPrograms:
        """Reads a file written by `save`."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        latency_s = arrays["latency_s"].tolist()
        if not latency_s:
            return cls(device)
        parts = {
            name: np.split(arrays[name], np.cumsum(arrays[f"{name}_count"])[:-1]) for name in _NAMES
        }
        asts = [
            CompactAst(**dict(zip(_NAMES, columns, strict=True)), valid=True, reject_reason=None)
            for columns in zip(*(parts[name] for name in _NAMES), strict=True)
        ]
        tasks = parse_json(arrays["tasks"].tobytes())
        return cls(device, asts, tasks, latency_s)


@dataclass(frozen=True)
class Adaptation:
    """Result of a tuning. A loss is one minus the rank correlation, plus the mean absolute log
    error at the best factor.

    Attributes:
        model: the new model; None if the old one is better.
        old: loss of the model in use on the programs that it was not tuned on.
        new: cross-validated loss of tuning on the same programs; None if the tuned weights were
            not better than the original ones.
    """

    model: CostModel | None
    old: float
    new: float | None


def adapt(
    base: CostModel, current: CostModel, measured: MeasuredPrograms, first_new: int, *, seed: int
) -> Adaptation:
    """Tunes a model on all measured programs; the result has a model only if it is better.

    Tuning always starts from `base`, so that early measurements do not count twice. The tuned and
    the current model are compared on the programs from `first_new` on, on which `current` was not
    tuned: three-fold cross-validation gives the tuned predictions.

    Args:
        base: the model at the start of the search; a transformer or an ensemble with one.
        current: the model in use.
        first_new: number of programs that `current` was tuned on.
    """
    samples = measured.samples()
    nothing = samples.take(np.zeros(len(samples), bool))
    tunable = base.transformer if isinstance(base, EnsembleCostModel) else base
    result = finetune_in_detail(tunable, samples, nothing, options=SEARCH_TUNING, seed=seed)
    new = samples.take(samples.program >= first_new)
    old_rank, old_badness = _judge(new, current.predict(new))
    if result.kept != "tuned" or result.held_out is None or result.held_out_s is None:
        return Adaptation(None, old_badness, None)
    is_new = result.held_out.program >= first_new
    held_out = result.held_out.take(is_new)
    new_rank, new_badness = _judge(held_out, result.held_out_s[is_new])
    is_better = new_badness < old_badness and new_rank >= old_rank
    return Adaptation(result.model if is_better else None, old_badness, new_badness)


def _judge(samples: Samples, predicted_s: FloatArray) -> tuple[float, float]:
    """Returns (rank correlation, loss of `Adaptation`) of predictions.

    The correlation is the mean over tasks, 0 if no task can be ranked.
    """
    judged = Judged(
        measured_s=samples.latency_s,
        predicted_s=predicted_s,
        task=samples.task_id,
        device=samples.device,
        task_weight=np.ones(len(samples.programs.tasks)),
    )
    rank = spearman_by_task(judged) or 0.0
    error = np.log(predicted_s) - np.log(samples.latency_s)
    spread = float(np.mean(np.abs(error - np.median(error))))
    return rank, 1.0 - rank + spread
