"""Evaluation of a trained model on samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cdmpp.calibration.intervals import add_interval_metrics
from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.datasets.judge import judge
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError
from cdmpp.models.base import CostModel
from cdmpp.models.parts.checks import as_learned
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.requested_device import check_kinds
from cdmpp.predict.saved_model import task_digest, task_digests
from cdmpp.text import counted
from cdmpp.training.baselines import judge_lines
from cdmpp.training.tiers import judge_tiers


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of `evaluate`.

    Attributes:
        baselines: baselines to evaluate beside the model, of those saved in its run folder.
    """

    baselines: tuple[str, ...] = ()


def evaluate(
    trained: TrainedModel,
    samples: Samples,
    baselines: Mapping[str, CostModel] | None = None,
    code: Sequence[MachineCode] = (),
    *,
    all_tasks: bool = False,
) -> dict[str, Any]:
    """Evaluates a model: returns the metrics of `judge` and of the intervals.

    Metrics are for all samples and by device. Each object also has `tasks`, the number of evaluated
    tasks, `overlap_with_training`, the number of tasks in the model's training part, and
    `left_out_samples`, the number of their samples, which are left out. `tiers` has the result of
    `judge_tiers`.

    Trained devices are described as in the model's card.

    Args:
        baselines: baselines to evaluate on the same samples; their metrics are in `baselines` by
            kind, and for partial baselines in `recognised` (see `judge_lines`).
        code: machine code of the programs, for the compiled tier.
        all_tasks: whether to keep the tasks of the training part, whose errors are optimistic.

    Raises:
        DataError: all tasks were in the training part.
        DeviceError: the model was not trained on the kind of a device.
    """
    known = {spec.name: spec for spec in (*trained.card.described, *trained.card.devices)}
    devices = tuple(known.get(spec.name, spec) for spec in samples.devices)
    every = as_learned(trained.card.feature_schema, replace(samples, devices=devices))
    every = replace(every, programs=samples.programs)  # models narrow the columns themselves
    check_kinds([devices[index] for index in np.unique(every.device)], trained.card)
    samples = every if all_tasks else held_out_part(trained, every)
    estimates = trained.estimate(samples)
    values = judge(samples, estimates.latency_s)
    by_device = values.pop("by_device")
    values |= _counts(every, samples, trained)
    values["by_device"] = by_device
    for index, spec in enumerate(devices):
        if spec.name in by_device:
            of_all, of_judged = (part.take(part.device == index) for part in (every, samples))
            by_device[spec.name] |= _counts(of_all, of_judged, trained)
    add_interval_metrics(values, samples, estimates.low_s, estimates.high_s)
    values["tiers"] = judge_tiers(trained, samples, code, estimates)
    if baselines:
        lines = {trained.card.kind: estimates.latency_s}
        lines |= {kind: model.predict(samples) for kind, model in baselines.items()}
        whole, values["recognised"] = judge_lines(samples, lines)
        values["baselines"] = {kind: whole[kind] for kind in baselines if kind in whole}
    return values


def held_out_part(trained: TrainedModel, samples: Samples) -> Samples:
    """Returns the samples of tasks that were not in the model's training part.

    The card has no list of the validation tasks, so those stay.

    Raises:
        DataError: all tasks were in the training part.
    """
    known = trained.learned_tasks
    is_new = np.array([task_digest(str(name)) not in known for name in samples.programs.tasks])
    found = samples.take(is_new[samples.task_id])
    if len(found) == 0:
        raise DataError(
            f"{counted(len(np.unique(samples.task_id)), 'task', 'were')} in the model's training "
            "part, so nothing is held out; expected other tasks (--all-tasks evaluates them "
            "anyway: their errors are too optimistic)"
        )
    return found


def _counts(every: Samples, judged: Samples, trained: TrainedModel) -> dict[str, int]:
    return {
        "tasks": len(np.unique(judged.task_id)),
        "overlap_with_training": len(task_digests(every) & trained.learned_tasks),
        "left_out_samples": len(every) - len(judged),
    }
