"""A training run, from samples to a finished run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.calibration.intervals import add_interval_metrics
from cdmpp.calibration.ood import TrainingTasks
from cdmpp.config import dump_text
from cdmpp.datasets.judge import oracle_task_median
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import Split, split
from cdmpp.files.atomic import make_folder, write_json
from cdmpp.files.run_folder import check_run_folder, claim_run_folder
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain, RunProgress, TrainProgress
from cdmpp.models.parts.checks import as_learned, warn_of_old_columns
from cdmpp.models.registry import baseline_class, judged_baselines, model_class
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.saved_model import ModelCard, extended_card
from cdmpp.timing.stats import timer
from cdmpp.training.baselines import judge_lines, save_baselines
from cdmpp.training.options import TrainOptions
from cdmpp.training.run_folder import run_metrics, save_trained, split_facts, write_predictions

ORACLE = "oracle"


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        run_dir: the run folder.
        metrics: content of metrics.json.
        test: the test samples.
        predicted_s: line -> float64 [N], predictions for the test samples, including `oracle`; NaN
            for samples that a baseline does not recognise.
        history: one entry per epoch of the model's training; empty for models without epochs.
    """

    run_dir: Path
    metrics: dict[str, Any]
    test: Samples
    predicted_s: dict[str, NDArray[np.float64]]
    history: list[dict[str, Any]]


@dataclass(frozen=True)
class OtherStart:
    """A fine-tuned model that is selected over one trained from random weights.

    Attributes:
        model: the fine-tuned model.
        card: card of the original model.
        base_tasks: training tasks of the original model.
        held_out: training and validation part, in the order of the folds.
        held_out_s: float64 [N], cross-validated predictions in seconds.
    """

    model: CostModel
    card: ModelCard
    base_tasks: TrainingTasks | None
    held_out: Samples
    held_out_s: NDArray[np.float64]


#: Maps (all samples, training part, validation part, run folder, progress) to the start, None for
#: random weights, and the choice's entry of metrics.json, None without a choice.
ChooseStart = Callable[
    [Samples, Samples, Samples, Path, OnTrain], tuple[OtherStart | None, dict[str, Any] | None]
]


def new_model(kind: str, options: TrainOptions) -> CostModel:
    """Returns an untrained model or baseline with the options of its kind, if it has any.

    Raises:
        UsageError: the kind is unknown.
    """
    found = baseline_class(kind)
    own = getattr(options, kind.replace("-", "_"), None)
    return found(own) if own is not None else found()  # type: ignore[call-arg]


def train_run(
    options: TrainOptions,
    samples: Samples,
    run_dir: Path,
    *,
    on_progress: RunProgress | None = None,
    choose_start: ChooseStart | None = None,
    parts: Split | None = None,
) -> RunResult:
    """Trains a model and its baselines, evaluates them once on the test part and saves the run.

    The report is written by `cdmpp.report.run_report.write_run_report`. A run folder with
    checkpoints of the same options and data is resumed.

    Args:
        choose_start: chooses the start of a training on few tasks
            (`cdmpp.training.finetune.start`); None = always random weights.
        parts: training, validation and test part; None = split by the options.

    Raises:
        UsageError: the folder holds another run.
        DataError: the folder cannot be written, a part of the split is empty, or the features are
            of an earlier version.
    """
    report = on_progress or _ignore
    warn_of_old_columns(samples)
    make_folder(run_dir, what="run folder")
    claim_run_folder(run_dir, dump_text(options))
    parts = parts or split_samples(options, samples)
    train, validation, test = (
        samples.take(index) for index in (parts.train, parts.validation, parts.test)
    )
    model, card, tasks, training_s, start_facts = _trained(
        options, samples, parts, run_dir, report, choose_start
    )
    trained = TrainedModel(model, card, tasks)
    predicted_s: dict[str, NDArray[np.float64]] = {}
    started = time.perf_counter()
    predicted_s[options.model], disagreement = trained.predict_with_disagreement(test)
    predict_s = time.perf_counter() - started
    write_predictions(
        run_dir / "predictions.parquet",
        [
            ("train", train, trained.predict(train)),
            ("validation", validation, trained.predict(validation)),
            ("test", test, predicted_s[options.model]),
        ],
    )
    baselines: dict[str, CostModel] = {}
    for kind in judged_baselines(options.baselines):
        if kind not in predicted_s:
            baselines[kind], _ = _fit(kind, options, train, validation, None, report)
            predicted_s[kind] = baselines[kind].predict(test)
    save_baselines(run_dir, baselines)
    predicted_s[ORACLE] = oracle_task_median(test)
    judged, recognised = judge_lines(test, predicted_s)
    estimates = trained.estimate(
        test, latency_s=predicted_s[options.model], disagreement=disagreement
    )
    add_interval_metrics(judged[options.model], test, estimates.low_s, estimates.high_s)
    history = list(getattr(model, "history", []))
    if history:  # it includes the seconds spent before an interruption
        training_s = max(training_s, history[-1]["elapsed_s"])
    metrics = run_metrics(
        options.model,
        card,
        {"train": train, "validation": validation, "test": test},
        judged,
        training_s=training_s,
        predict_s=predict_s,
    )
    if history and model.tunable_part() is model:  # not that of an ensemble's transformer
        metrics["samples_per_s"] = float(np.mean([e["samples_per_s"] for e in history]))
    if recognised:
        metrics["recognised"] = recognised
    if start_facts is not None:
        metrics["start"] = start_facts
    if (prior := model.prior_facts()) is not None:
        metrics["prior"] = prior
    write_json(run_dir / "metrics.json", metrics)
    return RunResult(run_dir, metrics, test, predicted_s, history)


def assist_run(options: TrainOptions, samples: Samples, run_dir: Path) -> None:
    """Trains in parallel with the process that called `train_run`; writes nothing.

    Args:
        options, samples, run_dir: the same as in `train_run`.

    Raises:
        DataError: a part of the split is empty.
    """
    parts = split_samples(options, samples)
    train, validation = samples.take(parts.train), samples.take(parts.validation)
    for kind in dict.fromkeys([options.model, *judged_baselines(options.baselines)]):
        model = new_model(kind, options)
        if hasattr(model, "history"):  # it trains in the loop that the processes share
            own = run_dir if kind == options.model else None
            model.fit(train, validation, seed=options.seed, run_dir=own)


def split_samples(options: TrainOptions, samples: Samples) -> Split:
    """Returns the parts of a training run.

    Raises:
        DataError: a part is empty.
    """
    return split(
        samples,
        options.split,
        seed=options.seed,
        fractions=options.fractions,
        test_networks=options.test_networks or None,
    )


def check_run(options: TrainOptions, run_dir: Path) -> None:
    """Checks the kinds of models and the run folder, before any data is extracted.

    Raises:
        UsageError: a kind is unknown, or the folder holds another run.
        DataError: the folder cannot be written.
    """
    model_class(options.model)
    for kind in options.baselines:
        baseline_class(kind)
    check_run_folder(run_dir, dump_text(options))


def _trained(
    options: TrainOptions,
    samples: Samples,
    parts: Split,
    run_dir: Path,
    report: RunProgress,
    choose_start: ChooseStart | None,
) -> tuple[CostModel, ModelCard, TrainingTasks, float, dict[str, Any] | None]:
    """Trains and saves the model of a run.

    Returns the model, its card, its training tasks, the seconds of training, and the entry of
    metrics.json for its start (see `choose_start`).
    """
    train, validation = samples.take(parts.train), samples.take(parts.validation)
    facts = _split_facts(parts, options)
    start, start_facts = None, None
    began = time.perf_counter()
    if choose_start is not None:
        start, start_facts = choose_start(
            samples, train, validation, run_dir,
            lambda progress: report("choosing the starting model", progress),
        )  # fmt: skip
    if start is None:
        model, training_s = _fit(options.model, options, train, validation, run_dir, report)
        card, tasks = save_trained(
            model,
            run_dir,
            ModelCard.of(options.model, train, facts),
            train=train,
            validation=validation,
        )
        return model, card, tasks, training_s, start_facts
    learned = samples.take(np.concatenate([parts.train, parts.validation]))
    learned = as_learned(start.card.feature_schema, learned)
    card, tasks = save_trained(
        start.model,
        run_dir,
        extended_card(start.card, start.model.kind, learned, facts),
        train=learned,
        validation=start.held_out,
        validation_s=start.held_out_s,
        base_tasks=start.base_tasks,
    )
    return start.model, card, tasks, time.perf_counter() - began, start_facts


@timer("fit a model")
def _fit(
    kind: str,
    options: TrainOptions,
    train: Samples,
    validation: Samples,
    run_dir: Path | None,
    report: RunProgress,
) -> tuple[CostModel, float]:
    model = new_model(kind, options)
    report(f"training {kind}", None)
    started = time.perf_counter()
    model.fit(
        train,
        validation,
        seed=options.seed,
        run_dir=run_dir,
        on_progress=lambda progress: report(f"training {kind}", progress),
    )
    return model, time.perf_counter() - started


def _split_facts(parts: Split, options: TrainOptions) -> dict[str, Any]:
    return split_facts(
        options.split,
        options.seed,
        parts.description,
        fractions=options.fractions,
        leaks=parts.leaks,
        test_networks=parts.test_networks,
    )


def _ignore(what: str, progress: TrainProgress | None) -> None:
    """Ignores progress."""
