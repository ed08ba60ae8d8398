"""A fine-tuning run: chooses tasks, adapts a model, evaluates it and writes a run folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.calibration.ood import TrainingTasks
from cdmpp.calibration.transfer import Transfer
from cdmpp.config import dump_text
from cdmpp.datasets.budget import hold_out, of_tasks
from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.datasets.judge import judge_in_detail, oracle_task_median
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sampling import SamplingMethod, choose_tasks, untouched_tasks, workload_count
from cdmpp.datasets.selection import of_devices
from cdmpp.datasets.splits import network_family
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder, write_json
from cdmpp.files.run_folder import claim_run_folder
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import RunProgress
from cdmpp.models.parts.checks import as_learned, as_read_by
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.machine_code.model import FOLDERS, CodeModel
from cdmpp.predict.saved_model import (
    ModelCard,
    extended_card,
    load_model,
    save_model,
    task_digest,
    write_transfer,
)
from cdmpp.pretrained import model_folder
from cdmpp.text import counted
from cdmpp.training.finetune.adapt import Adapted, adapt
from cdmpp.training.finetune.adapted_code import compiled_s, save_adapted_code
from cdmpp.training.finetune.elsewhere import Elsewhere, times_elsewhere
from cdmpp.training.finetune.few_shot import tunable
from cdmpp.training.finetune.one_factor import as_device, fit_one_factor, with_devices
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.options import TrainOptions, name_of
from cdmpp.training.run import ORACLE, RunResult, new_model
from cdmpp.training.run_folder import run_metrics, save_trained, split_facts, write_predictions

FINE_TUNED = "fine-tuned"
COMPILED = f"{FINE_TUNED}, machine code known"
ZERO_SHOT = "zero-shot"
ONE_FACTOR = "one-factor"
SCRATCH = "from scratch"
TREES = "trees on the budget"


@dataclass(frozen=True)
class FinetuneRunOptions:
    """Options of a fine-tuning run; written as config.yaml into its run folder.

    Attributes:
        from_run: run folder of the model to start from.
        dataset: folder of the measurements; empty = the default dataset.
        devices: labels of the devices to adapt to.
        network: adapt to the tasks of this network only; empty = all tasks.
        budget: number of training tasks; 0 = all tasks, evaluated by cross-validation.
        sampler: method that chooses the tasks.
        seed: seed of the choice of tasks and of the training.
        compare: whether models trained on the budget alone are evaluated too.
        measured_on: label of a trained device whose times of the same programs, in the same
            dataset, correct predictions for the new devices. The budget is then chosen and
            evaluated among programs measured on it. Empty = none.
        finetune: options of the fine-tuning.
    """

    from_run: str = ""
    dataset: str = ""
    devices: tuple[str, ...] = ()
    network: str = ""
    budget: int = 10
    sampler: SamplingMethod = "kmeans"
    seed: int = 0
    compare: bool = False
    measured_on: str = ""
    finetune: FinetuneOptions = field(default_factory=FinetuneOptions)


def run_name(options: FinetuneRunOptions) -> str:
    """Returns a folder name that depends only on the options."""
    where = "+".join(options.devices) if len(options.devices) <= 2 else ""
    words = [Path(options.from_run).name, "to", where, network_family(options.network)]
    return name_of([*words, f"{options.budget}tasks" if options.budget else "all"], options)


@dataclass(frozen=True)
class Budget:
    """Training and test part of a fine-tuning.

    Attributes:
        tasks: int64, chosen tasks, best first.
        train: samples of the chosen tasks.
        test: samples of tasks that share no workload with them; equal to `train` if the budget is
            all tasks, which are evaluated by cross-validation.
        left_out: number of tasks that the model was trained on with the same device; they are in
            neither part.
    """

    tasks: IntArray
    train: Samples
    test: Samples
    left_out: int


def choose_budget(options: FinetuneRunOptions, samples: Samples, card: ModelCard) -> Budget:
    """Chooses the training and test part of the samples of the new devices.

    Raises:
        UsageError: the budget is too large, or the network is unknown.
        DataError: fewer than two workloads are outside the model's training data.
    """
    target = _of_network(samples, options.network)
    trained = {spec.name for spec in card.devices}
    on_trained = np.array([spec.name in trained for spec in samples.devices])[target.device]
    seen = [task_digest(str(task)) in card.training_tasks for task in target.programs.tasks]
    is_seen = on_trained & np.array(seen, bool)[target.task_id]
    left_out = len(np.unique(target.task_id[is_seen]))
    target = target.take(~is_seen)
    workloads = workload_count(target) if len(target) else 0
    if workloads < 2:
        raise DataError(
            f"only {counted(workloads, 'workload')} outside the training data of "
            f"{options.from_run}, expected at least 2: one to train on and one to evaluate on; "
            "choose another --device or --network"
        )
    if options.budget == 0:
        return Budget(np.unique(target.task_id), target, target, left_out)
    most = workloads // 2
    if not 1 <= options.budget <= most:
        raise UsageError(
            f"a budget of {counted(options.budget, 'task')} is too large for {workloads} different "
            f"workloads: expected 1 to {counted(most, 'task')}, so that at least half of the "
            f"workloads are left for evaluation, e.g. --budget {most}tasks (for the best model: "
            f"--budget all; for no task at all: cdmpp evaluate --model {options.from_run})"
        )
    tasks = choose_tasks(target, options.budget, method=options.sampler, seed=options.seed)
    test = of_tasks(target, untouched_tasks(target, tasks))
    return Budget(tasks, of_tasks(target, tasks), test, left_out)


def finetune_run(
    options: FinetuneRunOptions,
    samples: Samples,
    run_dir: Path,
    *,
    code: Sequence[MachineCode] = (),
    on_progress: RunProgress | None = None,
) -> tuple[RunResult, Budget]:
    """Chooses the budget, adapts the model, evaluates it once on the other tasks and saves the run.

    The report is not written.

    Args:
        samples: measurements of the new devices, and of `measured_on`.
        code: machine code of the same programs, to adapt the machine-code model too.

    Raises:
        UsageError: the folder holds another run, the budget is too large, the model's kind cannot
            be fine-tuned, or the model was not trained on `measured_on`.
        DataError: no model in `from_run`, features of another schema, or too few tasks to evaluate.
    """
    report = on_progress or (lambda what, progress: None)
    model, card = load_model(model_folder(options.from_run))
    reader = CodeModel.load(model_folder(options.from_run)) if code else None
    trained_on = card.devices
    if reader is not None:  # fitting takes minutes: what is wrong is said before
        as_read_by(reader.feature_schema, samples)
    programs = samples.programs
    samples = as_learned(card.feature_schema, samples)
    if options.compare and options.budget == 0:
        raise UsageError(
            "--compare evaluates other models on tasks outside the budget, and --budget all "
            "leaves none; use one of the two, e.g. --budget 10tasks --compare"
        )
    elsewhere = (
        times_elsewhere(samples, options.measured_on, options.devices, card)
        if options.measured_on
        else None
    )
    if elsewhere is not None:
        samples = of_devices(samples, options.devices)
        if options.budget:
            samples = samples.take(elsewhere.known(samples))
    budget = choose_budget(options, samples, card)
    if elsewhere is not None:
        elsewhere.check(budget.train)
    tunable(model, options.finetune)
    told_test = card.as_told(budget.test)
    zero_shot = model.predict(told_test)  # checks the features before anything is written
    make_folder(run_dir, what="run folder")
    claim_run_folder(run_dir, dump_text(options))
    started = time.perf_counter()
    result = adapt(
        model,
        card.as_told(budget.train),
        trained_on,
        options=options.finetune,
        seed=options.seed,
        run_dir=run_dir,
        on_progress=lambda progress: report("fine-tuning", progress),
    )
    training_s = time.perf_counter() - started
    card = _save(result, run_dir, options, card, budget, elsewhere)
    reads_code = save_adapted_code(run_dir, reader, code, result, programs)
    labels = tuple(spec.name for spec in trained_on)
    nearest, factor = fit_one_factor(model, with_devices(budget.train, trained_on), labels)
    started = time.perf_counter()
    if options.budget:
        test = budget.test
        predicted_s = {FINE_TUNED: result.model.predict(told_test)}
        known = as_device(with_devices(test, trained_on), nearest)
        predicted_s |= {ONE_FACTOR: factor * model.predict(known), ZERO_SHOT: zero_shot}
        if elsewhere is not None and card.transfer is not None and card.transfer.pairs:
            line = f"{FINE_TUNED}, {elsewhere.device.name} known"
            predicted_s[line] = elsewhere.counted_in(load_trained(run_dir), test)
        if reads_code:
            trained = load_trained(run_dir, with_code=True)
            predicted_s[COMPILED] = compiled_s(trained, replace(test, programs=programs), code)
    else:
        assert result.held_out is not None
        test, held_out_s = result.held_out, result.held_out_s
        predicted_s = {
            FINE_TUNED: held_out_s[result.choice.kept],
            ONE_FACTOR: held_out_s["one_factor"],
            ZERO_SHOT: held_out_s["unchanged"],
        }
    predict_s = time.perf_counter() - started
    write_predictions(
        run_dir / "predictions.parquet",
        [
            ("train", budget.train, result.model.predict(card.as_told(budget.train))),
            ("test", test, predicted_s[FINE_TUNED]),
        ],
    )
    if options.compare:
        report("training on the budget only", None)
        predicted_s |= _on_budget_alone(budget, model.tunable_part(), options)
    predicted_s[ORACLE] = oracle_task_median(test)
    metrics = run_metrics(
        FINE_TUNED,
        card,
        {"train": budget.train, "test": test},
        {name: judge_in_detail(test, s) for name, s in predicted_s.items()},
        training_s=training_s,
        predict_s=predict_s,
    ) | {
        "budget_tasks": [str(budget.train.programs.tasks[task]) for task in budget.tasks],
        **result.facts,
        "one_factor": {"nearest": nearest, "factor": factor},
        "lost_machine_code": [
            kind for kind, name in FOLDERS.items()
            if (model_folder(options.from_run) / name).is_dir() and not (run_dir / name).is_dir()
        ],
    }  # fmt: skip
    write_json(run_dir / "metrics.json", metrics)
    return RunResult(run_dir, metrics, test, predicted_s, []), budget


def _of_network(samples: Samples, network: str) -> Samples:
    """Returns the samples of a network's tasks, for all its input shapes; "" = all samples."""
    if not network:
        return samples
    pairs = samples.programs.networks
    families = [{network_family(name) for name, _ in pairs[task]} for task in range(len(pairs))]
    wanted = network_family(network)
    rows = np.array([wanted in families[task] for task in samples.task_id], bool)
    if not rows.any():
        known = sorted(set().union(*(families[task] for task in np.unique(samples.task_id))))
        raise UsageError(
            f"unknown network {network!r}; networks of these tasks: {', '.join(known) or 'none'}"
        )
    return samples.take(rows)


def _save(
    result: Adapted,
    run_dir: Path,
    options: FinetuneRunOptions,
    card: ModelCard,
    budget: Budget,
    elsewhere: Elsewhere | None,
) -> ModelCard:
    """Writes the adapted model and returns its card."""
    adapted = extended_card(card, result.model.kind, budget.train, _split_facts(options, budget))
    base_tasks = TrainingTasks.load(model_folder(options.from_run))
    if result.held_out is None:
        save_model(result.model, run_dir, adapted)
        return adapted
    adapted, _ = save_trained(
        result.model,
        run_dir,
        adapted,
        train=budget.train,
        validation=result.held_out,
        validation_s=result.held_out_s[result.choice.kept],
        base_tasks=base_tasks,
    )
    if elsewhere is None:
        return adapted
    held_out_s = result.held_out_s[result.choice.kept]
    pairs = elsewhere.pairs(result.model, result.held_out, held_out_s)
    transfer = replace(adapted.transfer or Transfer({}, {}), pairs=pairs)
    write_transfer(run_dir, transfer)
    return replace(adapted, transfer=transfer)


def _on_budget_alone(
    budget: Budget, model: CostModel, options: FinetuneRunOptions
) -> dict[str, FloatArray]:
    """Returns predictions of the test part by models trained only on the budget."""
    train, validation = hold_out(budget.train, seed=options.seed)
    predicted_s = {}
    defaults = TrainOptions()
    for name, untrained in (
        (SCRATCH, new_model(model.kind, defaults)),
        (TREES, new_model("gbdt", defaults)),
    ):
        untrained.fit(train, validation, seed=options.seed)
        predicted_s[name] = untrained.predict(budget.test)
    return predicted_s


def _split_facts(options: FinetuneRunOptions, budget: Budget) -> dict[str, Any]:
    devices = "+".join(options.devices) or "all devices"
    where = f"{devices}, network {options.network}" if options.network else devices
    left_out = f", {counted(budget.left_out, 'task')} of the original training left out" * (
        budget.left_out > 0
    )
    if options.budget == 0:
        return split_facts(
            "budget",
            options.seed,
            f"all {len(budget.tasks)} tasks of {where}, evaluated by cross-validation with "
            f"{options.finetune.folds} folds{left_out}",
        )
    return split_facts(
        "budget",
        options.seed,
        f"{counted(len(budget.tasks), 'task')} of {where} chosen by {options.sampler} (seed "
        f"{options.seed}), evaluated on {counted(len(np.unique(budget.test.task_id)), 'task')} "
        f"of other workloads{left_out}",
    )
