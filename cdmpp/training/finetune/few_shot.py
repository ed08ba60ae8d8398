"""Few-shot adaptation: a trained model learns a new device or network from a few measured tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.errors import UsageError
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.parts.checks import check_trainable
from cdmpp.training.finetune.folds import budget_folds, joined
from cdmpp.training.finetune.options import FinetuneOptions, TuneWhat
from cdmpp.training.finetune.tuner import Tunable, Tuner, look_name
from cdmpp.training.finetune.tuning_trainee import error

#: What was kept: the model as it was, with one factor, or tuned.
Kept = Literal["unchanged", "shifted", "tuned"]


#: No log of seconds is farther from 0.
_FAR = 50.0


@dataclass(frozen=True)
class FinetuneResult:
    """A fine-tuned model and how it came about.

    Attributes:
        model: the new model.
        kept: what of it is new.
        steps: which weights were tuned -> steps of the optimiser; empty unless `kept` is `tuned`.
        held_out_error: error on held-out programs (what `_tuning.error` says) of every variant
            that was tried: `unchanged`, `shifted`, `tuned`, `adapters, 40 steps`, ...; empty
            without held-out programs.
        held_out: the budget, each program as it was held out; None without held-out programs.
        held_out_s: float64 [N], what models that had not seen those programs predicted, tuned
            as the one that was kept; None likewise.
    """

    model: CostModel
    kept: Kept
    steps: dict[str, int]
    held_out_error: dict[str, float]
    held_out: Samples | None
    held_out_s: FloatArray | None


def finetune_in_detail(
    model: CostModel,
    train: Samples,
    validation: Samples,
    *,
    options: FinetuneOptions | None = None,
    seed: int,
    source: Samples | None = None,
    run_dir: Path | None = None,
    on_progress: OnTrain | None = None,
) -> FinetuneResult:
    """Returns a new model, adapted to a few measured tasks; the given one stays as it is.

    The inputs are normalised with the statistics of the first training; an unseen device's vector
    goes through them too. The start is the model as it is, or as if the device were the known one
    that fits the budget best. First its predictions are scaled so that the median error on the
    budget is zero: without any step that is one-factor scaling. Then the chosen weights are tuned.
    How many steps are good, and whether they are better than the factor alone or than nothing, is
    decided on held-out parts of the budget, task by task; then all of the budget is used.

    Args:
        train: measured samples of the budget.
        validation: the rest of the budget, may be empty. Both are learned from and both take
            turns at being held out.
        source: samples of the first training, for `options.replay`.
        run_dir: where logs and checkpoints of the final tunings go, a folder each.

    Raises:
        UsageError: the model cannot be fine-tuned, or an option is out of range.
        DataError: no samples, or features of another schema version.
    """
    tried = try_tuning(
        model, train, validation, options=options, seed=seed, source=source,
        on_progress=on_progress,
    )  # fmt: skip
    if tried.held_out is None:
        return FinetuneResult(tried.model("shifted"), "shifted", {}, {}, None, None)
    kept = min(get_args(Kept), key=lambda name: tried.errors[name])
    return FinetuneResult(
        model=tried.model(kept, run_dir),
        kept=kept,
        steps=tried.steps if kept == "tuned" else {},
        held_out_error=tried.errors,
        held_out=tried.held_out,
        held_out_s=tried.held_out_s[kept],
    )


@dataclass(frozen=True)
class TriedTuning:
    """What tuning did for held-out parts of a budget; the models of all of it are made on demand.

    Attributes:
        held_out: the budget, each program as it was held out; None without held-out programs.
        held_out_s: variant (see `FinetuneResult.held_out_error`) -> float64 [N], what models that
            had not seen those programs predicted; empty likewise.
        errors: likewise, their error.
        steps: which weights are tuned -> steps of the optimiser.
    """

    held_out: Samples | None
    held_out_s: dict[str, FloatArray]
    errors: dict[str, float]
    steps: dict[str, int]
    _tuner: Tuner
    _budget: Samples

    def model(self, kept: Kept, run_dir: Path | None = None) -> CostModel:
        """Returns the model of the whole budget; `tuned` only where there were held-out programs.

        Args:
            run_dir: where logs and checkpoints of the tunings go, a folder each.
        """
        if kept == "unchanged":
            return _cost_model(self._tuner.unchanged())
        if kept == "shifted":
            return _cost_model(self._tuner.shifted(self._budget))
        return _cost_model(self._tuner.tuned(self._budget, self.steps, run_dir))


def try_tuning(
    model: CostModel,
    train: Samples,
    validation: Samples,
    *,
    options: FinetuneOptions | None = None,
    seed: int,
    source: Samples | None = None,
    on_progress: OnTrain | None = None,
) -> TriedTuning:
    """Returns what tuning does for held-out parts of a budget; arguments as of
    `finetune_in_detail`.

    Raises:
        UsageError: the model cannot be fine-tuned, or an option is out of range.
        DataError: no samples, or features of another schema version.
    """
    options = options or FinetuneOptions()
    part = tunable(model, options)
    if options.replay > 0 and source is None:
        raise UsageError(
            "finetune: replay needs samples of the original training; expected finetune(..., "
            "source=) from Python, or --set finetune.replay=0"
        )
    budget = joined(train, validation)
    check_trainable(budget)
    tuner = Tuner(part, budget, options, seed, source if options.replay else None, on_progress)
    folds = budget_folds(budget, options.folds, seed=seed)
    if not folds:
        return TriedTuning(None, {}, {}, {}, tuner, budget)
    trials = [tuner.trial(budget.take(~rows), budget.take(rows)) for rows in folds]
    held_out = budget.take(np.concatenate([np.flatnonzero(rows) for rows in folds]))
    # Weights that flew away say anything: clipped, it is still wrong enough to be refused.
    predicted_s = {
        name: np.exp(np.clip(np.concatenate([trial[name] for trial in trials]), -_FAR, _FAR))
        for name in trials[0]
    }
    errors = {name: error(values, held_out.latency_s) for name, values in predicted_s.items()}
    steps = tuner.best_steps(errors)
    chosen = [predicted_s[look_name(what, count)] for what, count in steps.items()]
    predicted_s["tuned"] = np.exp(np.mean(np.log(chosen), axis=0))
    errors["tuned"] = error(predicted_s["tuned"], held_out.latency_s)
    return TriedTuning(held_out, predicted_s, errors, steps, tuner, budget)


def tunable(model: CostModel, options: FinetuneOptions) -> Tunable:
    """Returns what of a model is tuned.

    Raises:
        UsageError: nothing of it can be, or an option is out of range.
    """
    _check(options)
    part = model.tunable_part()
    if not isinstance(part, Tunable):
        raise UsageError(
            f"model kind {part.kind!r} cannot be fine-tuned; expected a transformer: train one "
            "with `cdmpp train --model transformer`, or train only on the budget with `cdmpp "
            "train`"
        )
    return part


def _cost_model(model: Tunable) -> CostModel:
    assert isinstance(model, CostModel)
    return model


def _check(options: FinetuneOptions) -> None:
    """Refuses options out of range.

    Raises:
        UsageError: names the option.
    """
    least = {
        "steps": 1,
        "validate_every": 1,
        "folds": 2,
        "learning_rate": 0.0,
        "learning_rate_all": 0.0,
        "replay": 0.0,
    }
    for name, value in least.items():
        got = getattr(options, name)
        if not got >= value:
            raise UsageError(
                f"finetune: {name} must be at least {value}, got {got}; e.g. --set "
                f"{name}={getattr(FinetuneOptions(), name)}"
            )
    if options.what not in get_args(TuneWhat):
        raise UsageError(
            f"finetune: what is {options.what!r}, expected one of {', '.join(get_args(TuneWhat))}"
        )
