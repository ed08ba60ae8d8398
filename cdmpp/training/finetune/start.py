"""Chooses the start of a training on few tasks: random weights or the shipped model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.calibration.ood import TrainingTasks
from cdmpp.datasets.budget import hold_out
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs
from cdmpp.errors import DataError
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.loop.shards import process_count
from cdmpp.models.parts.checks import as_read_by
from cdmpp.predict.saved_model import ModelCard, load_model, task_digest, task_digests
from cdmpp.text import counted
from cdmpp.training.finetune.adapt import LEAST_TASKS, TriedFits
from cdmpp.training.finetune.choice import SAYS, standard_error, task_errors
from cdmpp.training.finetune.folds import budget_folds, joined
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import ChooseStart, OtherStart, new_model

#: Maximum number of tasks for a start from the shipped model.
HANDFUL = 30
NOTHING = "nothing"
#: Maximum samples per device for the choice, evenly over tasks.
SAMPLES_TO_CHOOSE_ON = 2000
#: Kinds of models that may start from the shipped model.
STARTING_KINDS = ("transformer", "ensemble")


def may_start_from(card: ModelCard, samples: Samples) -> bool:
    """Returns whether a shipped model can be evaluated on these samples.

    It has to read the features of all of them, and none of their tasks may be in its training data
    with the same device.
    """
    try:
        is_read = len(as_read_by(card.feature_schema, samples)) == len(samples)
    except DataError:
        return False
    trained = {spec.name for spec in card.devices}
    on_trained = np.array([spec.name in trained for spec in samples.devices], bool)
    tasks = np.unique(samples.task_id[on_trained[samples.device]])
    names = samples.programs.tasks
    is_seen = any(task_digest(str(names[task])) in card.training_tasks for task in tasks)
    return is_read and not is_seen


def choose_start(
    fresh: Callable[[], CostModel],
    kind: str,
    shipped_dir: Path,
    samples: Samples,
    train: Samples,
    validation: Samples,
    *,
    options: FinetuneOptions | None = None,
    seed: int,
    run_dir: Path,
    on_progress: OnTrain | None = None,
) -> tuple[OtherStart | None, dict[str, Any] | None]:
    """Chooses between random weights and the shipped model by cross-validation.

    Held-out tasks of the training and the validation part decide; the test part is not used. Random
    weights need a gain above one standard error. At most `SAMPLES_TO_CHOOSE_ON` samples per device
    are used for the choice and for tuning the shipped model.

    Args:
        fresh: returns an untrained model.
        kind: kind of the untrained model.
        shipped_dir: run folder of the shipped model.
        samples: all samples of the run, including the test part; only names of tasks are read.
        run_dir: folder for logs and checkpoints of a tuning.

    Returns:
        The start, None for random weights; and the choice's entry of metrics.json, None if there is
        no choice: more than `HANDFUL` tasks, another kind of model, several processes, or a shipped
        model that cannot be evaluated on the samples.
    """
    known = cap_programs(joined(train, validation), SAMPLES_TO_CHOOSE_ON, seed=seed)
    count = len(np.unique(known.task_id))
    if kind not in STARTING_KINDS or not LEAST_TASKS <= count <= HANDFUL or process_count() > 1:
        return None, None
    shipped, card = load_model(shipped_dir)
    if not may_start_from(card, samples):
        return None, None
    readable = card.as_told(as_read_by(card.feature_schema, known))
    options = options or FinetuneOptions()
    fits = TriedFits(
        shipped, readable, card.devices, options=options, seed=seed, on_progress=on_progress
    )
    held_out, kept = fits.held_out, fits.choice.kept
    assert held_out is not None
    found = []
    for rows in budget_folds(known, options.folds, seed=seed):
        model = fresh()
        model.fit(*hold_out(known.take(~rows), seed=seed), seed=seed, on_progress=on_progress)
        found.append(model.predict(known.take(rows)))
    measured_s, task = held_out.latency_s, held_out.task_id
    scratch = task_errors(np.concatenate(found), measured_s, task)
    own = task_errors(fits.held_out_s[kept], measured_s, task)
    gain = own - scratch
    is_fresh = bool(gain.mean() > standard_error(gain))
    errors: dict[str, float] = {NOTHING: float(scratch.mean())}
    errors.update((str(name), value) for name, value in fits.choice.errors.items())
    facts = {
        "kept": NOTHING if is_fresh else kept,
        "shipped": SAYS[kept],
        "held_out_tasks": len(gain),
        "held_out_error": errors,
        "tasks": len(task_digests(samples)),
        "tasks_of_shipped": len(task_digests(samples) & card.training_tasks),
    }
    if is_fresh:
        return None, facts
    model = fits.model(kept, run_dir)
    tasks = TrainingTasks.load(shipped_dir)
    return OtherStart(model, card, tasks, held_out, fits.held_out_s[kept]), facts


def start_from(
    shipped_dir: Path, options: TrainOptions, *, tuning: FinetuneOptions | None = None
) -> ChooseStart:
    """Returns `choose_start` with these options, as an argument of `train_run`.

    Args:
        shipped_dir: run folder of the shipped model.
        tuning: options of the fine-tuning of the shipped model; None = the defaults.
    """

    def choose(
        samples: Samples, train: Samples, validation: Samples, run_dir: Path, show: OnTrain
    ) -> tuple[OtherStart | None, dict[str, Any] | None]:
        return choose_start(
            lambda: new_model(options.model, options), options.model, shipped_dir, samples,
            train, validation, options=tuning, seed=options.seed, run_dir=run_dir, on_progress=show,
        )  # fmt: skip

    return choose


def start_sentence(facts: dict[str, Any]) -> str:
    """Returns a description of the choice.

    Args:
        facts: the entry of metrics.json, see `choose_start`.
    """
    errors = facts["held_out_error"]
    best = "nothing" if facts["kept"] == NOTHING else f"the shipped model: {facts['shipped']}"
    listed = ", ".join(
        f"{'from nothing' if name == NOTHING else SAYS[name]} {100 * value:.0f} %"
        for name, value in errors.items()
    )
    text = f"{best} ({facts['held_out_tasks']} held-out tasks: {listed})"
    if facts["kept"] == NOTHING or not facts.get("tasks_of_shipped"):
        return text
    return (
        f"{text}; {facts['tasks_of_shipped']} of {counted(facts['tasks'], 'task')} are in its "
        "training data with other devices, and errors of new tasks can be larger"
    )
