"""Few-shot fine-tuning of a trained model on a few measured tasks of a new device or network."""

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

#: Variants of the model: unadapted, with one factor, or tuned.
Kept = Literal["unchanged", "shifted", "tuned"]


#: Bound on the magnitude of log seconds.
_FAR = 50.0


@dataclass(frozen=True)
class FinetuneResult:
    """Result of a fine-tuning.

    Attributes:
        model: the new model.
        kept: the selected variant.
        steps: tuned weights -> steps of the optimiser; empty unless `kept` is `tuned`.
        held_out_error: variant -> error on held-out programs (`tuning_trainee.error`), for
            `unchanged`, `shifted`, `tuned`, `adapters, 40 steps`, ...; empty without held-out
            programs.
        held_out: the budget in the order of the folds; None without held-out programs.
        held_out_s: float64 [N], cross-validated predictions of the selected variant; None without
            held-out programs.
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
    """Fine-tunes a copy of a model on a few measured tasks; the given model is unchanged.

    Inputs are normalised with the statistics of the first training. The start is the model itself,
    or the model with the device embedding of the trained device that fits the budget best. Its
    predictions are first scaled to a median error of zero on the budget, which without steps is
    one-factor scaling. Then the chosen weights are tuned. Held-out parts of the budget decide on
    the number of steps and on the variant; the final model uses the whole budget.

    Args:
        train: measured samples of the budget.
        validation: the rest of the budget, may be empty. Both parts are trained on and held out in
            turn.
        source: samples of the first training, for `options.replay`.
        run_dir: folder for logs and checkpoints of the final tunings, one subfolder each.

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
    """Cross-validation of tunings on a budget; models of the whole budget are fitted on demand.

    Attributes:
        held_out: the budget in the order of the folds; None without held-out programs.
        held_out_s: variant (see `FinetuneResult.held_out_error`) -> float64 [N], cross-validated
            predictions in seconds; empty without held-out programs.
        errors: variant -> error of these predictions.
        steps: tuned weights -> steps of the optimiser.
    """

    held_out: Samples | None
    held_out_s: dict[str, FloatArray]
    errors: dict[str, float]
    steps: dict[str, int]
    _tuner: Tuner
    _budget: Samples

    def model(self, kept: Kept, run_dir: Path | None = None) -> CostModel:
        """Fits a variant to the whole budget; `tuned` needs held-out programs.

        Args:
            run_dir: folder for logs and checkpoints of the tunings, one subfolder each.
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
    """Cross-validates tunings on a budget; arguments as in `finetune_in_detail`.

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
    # Diverged weights can predict any value; a clipped one is still wrong enough to be rejected.
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
    """Returns the tunable part of a model.

    Raises:
        UsageError: the model has no tunable part, or an option is out of range.
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
    """Checks the ranges of options.

    Raises:
        UsageError: an option is out of range.
    """
    least = {
        "steps": 1,
        "validate_every": 1,
        "folds": 2,
        "learning_rate": 0.0,
        "learning_rate_all": 0.0,
        "l2_to_start": 0.0,
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
