"""What a training on a handful of tasks starts from: from nothing, or from the shipped model."""

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
from cdmpp.predict.saved_model import ModelCard, load_model, task_digest
from cdmpp.training.finetune.adapt import LEAST_TASKS, TriedFits
from cdmpp.training.finetune.choice import SAYS, standard_error, task_errors
from cdmpp.training.finetune.folds import budget_folds, joined
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import ChooseStart, OtherStart, new_model

#: A training on more tasks than these always starts from nothing.
HANDFUL = 30
NOTHING = "nothing"
#: So many samples a device, every task alike, are enough to choose on.
SAMPLES_TO_CHOOSE_ON = 2000
#: Kinds that are trained from nothing where the shipped model is no better.
STARTING_KINDS = ("transformer", "ensemble")


def may_start_from(card: ModelCard, samples: Samples) -> bool:
    """Whether a shipped model can be compared on these samples: it reads the features of all, and
    no task of theirs was in its training with the same device.
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
    """Returns the start where it is not from nothing, and what metrics.json says of the choice;
    None without a choice: more tasks than a handful, another kind of model, several processes, or a
    shipped model that cannot be compared.

    Held-out tasks of the training and the validation part decide. From nothing wins only where it
    is better by more than a standard error. The test part is not looked at. Of large tasks only
    `SAMPLES_TO_CHOOSE_ON` samples are used, for the choice and for tuning the shipped model.

    Args:
        fresh: returns an untrained model.
        kind: its kind.
        samples: all samples of the run, the test part too: only names of tasks are read.
        run_dir: where logs and checkpoints of a tuning go.
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
    }
    if is_fresh:
        return None, facts
    model = fits.model(kept, run_dir)
    tasks = TrainingTasks.load(shipped_dir)
    return OtherStart(model, card, tasks, held_out, fits.held_out_s[kept]), facts


def start_from(
    shipped_dir: Path, options: TrainOptions, *, tuning: FinetuneOptions | None = None
) -> ChooseStart:
    """Returns `choose_start` for a run of these options, as `train_run` takes it.

    Args:
        tuning: how the shipped model is tuned; None = as by default.
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
    """Returns what was chosen, for a reader.

    Args:
        facts: see `choose_start`.
    """
    errors = facts["held_out_error"]
    best = "nothing" if facts["kept"] == NOTHING else f"the shipped model: {facts['shipped']}"
    listed = ", ".join(
        f"{'from nothing' if name == NOTHING else SAYS[name]} {100 * value:.0f} %"
        for name, value in errors.items()
    )
    return f"{best} ({facts['held_out_tasks']} held-out tasks: {listed})"
