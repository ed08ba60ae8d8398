"""Cells of a cross-device suite: one device is held out, some of its tasks may be measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from cdmpp.config import from_dict
from cdmpp.datasets.budget import hold_out, of_tasks
from cdmpp.datasets.judge import judge
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sampling import SamplingMethod, choose_tasks
from cdmpp.datasets.selection import cap_programs, of_devices
from cdmpp.datasets.splits import split
from cdmpp.predict.saved_model import ModelCard, load_model, save_model
from cdmpp.training.finetune.few_shot import finetune_in_detail
from cdmpp.training.finetune.one_factor import as_device, fit_one_factor
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.run import new_model
from cdmpp.training.run_folder import part_sizes, split_facts
from lab.suites.model_cell import (
    Stopwatch,
    fit_and_judge,
    judge_model,
    judge_predictions,
    reference_metrics,
)
from lab.suites.options import BUDGET_SUFFIX, FINETUNE, ZERO_SHOT_SUFFIX
from lab.suites.plan import PRETRAIN, REFERENCES, SuiteCell
from lab.suites.target_parts import TargetParts, target_parts

#: Training, validation and test fraction of the sources' tasks.
_SOURCE_FRACTIONS = (0.9, 0.1, 0.0)
#: Sampler for methods without their own.
_DEFAULT_SAMPLER: SamplingMethod = "kmeans"


def run_transfer_cell(
    cell: SuiteCell, samples: Samples, cell_dir: Path, runs_dir: Path
) -> dict[str, Any]:
    """Returns the entries of cell.json for a cell that holds a device out.

    The target's tasks are halved by the seed: a budget is chosen from one half, the other is the
    test part. The sources may contain the test part's programs, measured on other devices, as the
    protocol intends. A zero-shot line is trained on no measurement of the target.
    """
    if cell.line == PRETRAIN:
        return _pretrain(cell, samples, cell_dir)
    target = of_devices(samples, [cell.target])
    target = cap_programs(target, cell.key["programs_per_device"], seed=cell.seed)
    parts = target_parts(target, seed=cell.seed)
    facts: dict[str, Any] = {"parts": part_sizes(candidates=parts.candidates, test=parts.test)}
    if cell.line in REFERENCES:
        return {**facts, **reference_metrics(cell, parts.test, 0)}
    if cell.line.endswith(ZERO_SHOT_SUFFIX):
        train, validation = _source_parts(cell, samples)
        return {**facts, **fit_and_judge(cell, train, validation, parts.test, cell_dir)}
    if cell.line == "zero-shot":
        model = load_model(runs_dir / cell.needs)[0]
        return {**facts, **judge_model(cell, model, parts.test, cell_dir, Stopwatch())}
    return {**facts, **_with_budget(cell, parts, cell_dir, runs_dir)}


def _with_budget(
    cell: SuiteCell, parts: TargetParts, cell_dir: Path, runs_dir: Path
) -> dict[str, Any]:
    """Returns the entries for a method that measures `budget` tasks of the target."""
    sampler = _DEFAULT_SAMPLER
    if cell.line.startswith(FINETUNE):
        sampler = cast("SamplingMethod", cell.line.removeprefix(FINETUNE))
    tasks = choose_tasks(parts.candidates, cell.budget, method=sampler, seed=cell.seed)
    budget = of_tasks(parts.candidates, tasks)
    train, validation = hold_out(budget, seed=cell.seed)
    facts: dict[str, Any] = {"budget": part_sizes(train=train, validation=validation)}
    if cell.line == "scratch" or cell.line.endswith(BUDGET_SUFFIX):
        return {**facts, **fit_and_judge(cell, train, validation, parts.test, cell_dir)}
    pretrained = load_model(runs_dir / cell.needs)[0]
    watch = Stopwatch()
    if cell.line == "one-factor":
        with watch.running():
            source, factor = fit_one_factor(pretrained, budget, cell.sources)
        facts = {**facts, "nearest": source, "factor": factor}
        prediction = Stopwatch()
        with prediction.running():
            predicted_s = factor * pretrained.predict(as_device(parts.test, source))
        judged = judge_predictions(cell, parts.test, predicted_s, cell_dir, watch, prediction)
        return {**facts, **judged}
    options = from_dict(FinetuneOptions, cell.key["finetune"])
    with watch.running():
        tuned = finetune_in_detail(pretrained, train, validation, options=options, seed=cell.seed)
    facts |= {"kept": tuned.kept, "steps": tuned.steps}
    return {**facts, **judge_model(cell, tuned.model, parts.test, cell_dir, watch)}


def _pretrain(cell: SuiteCell, samples: Samples, cell_dir: Path) -> dict[str, Any]:
    train, validation = _source_parts(cell, samples)
    model = new_model(cell.kind, cell.options)
    watch = Stopwatch()
    with watch.running():
        model.fit(train, validation, seed=cell.seed)
    description = f"sources {', '.join(cell.sources)}: by task, validation only"
    facts = split_facts("task", cell.seed, description, fractions=_SOURCE_FRACTIONS)
    save_model(model, cell_dir, ModelCard.of(cell.kind, train, facts))
    everything = judge(validation, model.predict(validation))
    by_device = everything.pop("by_device")
    return {
        "parts": part_sizes(train=train, validation=validation),
        "training_cpu_s": watch.cpu_s,
        "training_wall_s": watch.wall_s,
        "validation": {"all": everything, "by_device": by_device},
    }


def _source_parts(cell: SuiteCell, samples: Samples) -> tuple[Samples, Samples]:
    sources = of_devices(samples, cell.sources)
    sources = cap_programs(sources, cell.key["programs_per_device"], seed=cell.seed)
    parts = split(sources, "task", seed=cell.seed, fractions=_SOURCE_FRACTIONS)
    return sources.take(parts.train), sources.take(parts.validation)
