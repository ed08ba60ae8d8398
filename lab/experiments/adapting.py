"""Adaptation to a device: errors of the selected and of every candidate fit."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.config import from_dict
from cdmpp.datasets.budget import of_tasks
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.judge import judged, oracle_task_median
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sampling import choose_tasks
from cdmpp.datasets.selection import of_devices
from cdmpp.datasets.sources import extracted_folder
from cdmpp.datasets.splits import split
from cdmpp.metrics import summarise
from cdmpp.predict.saved_model import ModelCard, load_model, save_model
from cdmpp.text import markdown_table, percent_text
from cdmpp.training.finetune.adapt import TriedFits, comparable
from cdmpp.training.finetune.choice import KEPT
from cdmpp.training.finetune.one_factor import as_device, fit_one_factor, with_devices
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import new_model
from cdmpp.training.run_folder import split_facts
from lab.journal import Journal
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp
from lab.suites.target_parts import target_parts

#: Target -> device family that its base model is trained on. Rules and numbers of
#: `cdmpp.training.finetune` were chosen on the development targets; these were evaluated once.
TARGETS = {
    "xeon-avx512-2c": "epyc", "epyc-avx512-2c": "xeon", "xeon-avx2-1c": "epyc",
    "epyc-avx512-1c": "xeon", "epyc-avx2-2c": "xeon",
}  # fmt: skip
DEVELOPMENT_TARGETS = {"xeon-avx512-1c": "epyc", "epyc-avx2-1c": "xeon", "xeon-avx2-2c": "epyc"}
BUDGETS = (1, 3, 10, 0)
DRAWS = (0, 1, 2, 3, 4)
TUNING = FinetuneOptions(what="adapters", steps=40, validate_every=40, programs_per_batch=32)
PASSES = {"epyc": 10, "xeon": 8}
BASE: dict[str, Any] = {
    "model": "ensemble",
    "ensemble": {
        "fence": 1.5,
        "transformer": {"loop": {}},
        "perceptron": {"loop": {"epochs": 20}},
        "trees": {"threads": 1},
    },
}
LINES = (*KEPT, "kept", "nearest_factor", "constant", "oracle")
_NAMES = {
    "unchanged": "as it was", "one_factor": "one factor, shrunken", "shrunken": "shrunken fit",
    "full": "full fit", "kept": "**kept**", "nearest_factor": "one factor", "oracle": "oracle",
    "constant": "constant",
}  # fmt: skip
_METRICS = ("mape", "median_ape", "mean_log_error", "median_ratio")
_BESIDE = {"mean_log_error": "mean log error", "median_ratio": "mean of median ratios"}
_TITLES = {0: "All tasks of the half", 1: "1 task"}
FloatArray = NDArray[np.float64]


def base_model(family: str, samples: Samples, work: Path) -> Path:
    """Returns the folder of the model trained on a family's devices; trains it if missing."""
    folder = work / f"base-{family}"
    if not (folder / "model.json").is_file():
        names = [spec.name for spec in samples.devices if spec.name.startswith(family)]
        sources = of_devices(samples, names)
        parts = split(sources, "task", seed=0, fractions=(0.9, 0.1, 0.0))
        train = sources.take(parts.train)
        options = copy.deepcopy(BASE)
        options["ensemble"]["transformer"]["loop"]["epochs"] = PASSES[family]
        model = new_model("ensemble", from_dict(TrainOptions, options))
        model.fit(train, sources.take(parts.validation), seed=0)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(model, folder, ModelCard.of("ensemble", train, split_facts("task", 0, family)))
    return folder


def run_cell(target: str, base: Path, budget: int, draw: int, samples: Samples) -> dict[str, Any]:
    """Returns errors on the test tasks, by line.

    A drawn half of the target's tasks is the test part. The budget is chosen from the other half by
    k-means; `budget` 0 takes the whole half.
    """
    model, card = load_model(base)
    parts = target_parts(of_devices(samples, [target]), seed=draw)
    test = parts.test
    tasks = np.unique(parts.candidates.task_id)
    if budget:
        tasks = choose_tasks(parts.candidates, budget, seed=draw)
    train = of_tasks(parts.candidates, tasks)
    started = time.process_time()
    fits = TriedFits(model, train, card.devices, options=TUNING, seed=draw)
    names = KEPT if len(tasks) > 1 else KEPT[:2]
    predicted_s: dict[str, FloatArray] = {n: fits.model(n).predict(test) for n in names}
    predicted_s["kept"] = predicted_s[fits.choice.kept]
    nearest, factor = fit_one_factor(
        model, with_devices(train, card.devices), comparable(train, card.devices)
    )
    known = as_device(with_devices(test, card.devices), nearest)
    predicted_s["nearest_factor"] = factor * model.predict(known)
    predicted_s["constant"] = np.full(len(test), np.median(train.latency_s))
    predicted_s["oracle"] = oracle_task_median(test)
    errors = {name: summarise(judged(test, values)) for name, values in predicted_s.items()}
    return {
        "target": target, "budget": budget, "draw": draw, "tasks": len(tasks),
        "programs": len(train), "judging_programs": len(test),
        "judging_tasks": len(np.unique(test.task_id)), "kept": fits.choice.kept,
        "why": fits.choice.reason, "steps": fits.steps, "shares": fits.shares,
        **{
            metric: {name: found[metric] for name, found in errors.items()} for metric in _METRICS
        },
        "cpu_s": time.process_time() - started, "stamp": stamp("", schemas=PROGRAMS),
    }  # fmt: skip


def grid(*, is_development: bool, draws: Sequence[int]) -> Iterator[tuple[str, str, int, int]]:
    """Yields (target, family, budget, draw); a draw's targets and budgets come before the next."""
    targets = DEVELOPMENT_TARGETS if is_development else TARGETS
    for draw in draws:
        for budget in BUDGETS:
            for target, family in targets.items():
                yield target, family, budget, draw


def experiment(
    work: Path = ROOT / "runs" / "adapting",
    draws: tuple[int, ...] = DRAWS,
    is_development: bool = False,
) -> None:
    """Computes missing cells (one minute each) and writes the page of `TARGETS`.

    The rule was chosen on the development targets with draw 100; no page shows them.
    """
    samples = load_samples(extracted_folder(None, None, cache_dir=work / "cache", jobs=1))
    journal = Journal(work / "cells.jsonl")
    for target, family, budget, draw in grid(is_development=is_development, draws=draws):
        name = f"{target}-{budget or 'all'}-{draw}"
        cell = journal.cell(
            name,
            lambda t=target, f=family, b=budget, d=draw: run_cell(  # type: ignore[misc]
                t, base_model(f, samples, work), b, d, samples
            ),
        )
        errors = ", ".join(f"{line} {100 * value:.1f}" for line, value in cell["mape"].items())
        print(f"{name}: kept {cell['kept']} ({cell['why']}): {errors}", flush=True)
    if not is_development:
        page([cell for _, cell in sorted(journal.cells().items()) if cell["target"] in TARGETS])


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one row per target and budget, and one per budget (target `mean`): means over draws.

    The mean over targets weights every target equally.
    """
    rows = []
    for budget in BUDGETS:
        own = []
        for target in dict.fromkeys(cell["target"] for cell in cells):
            some = [c for c in cells if (c["target"], c["budget"]) == (target, budget)]
            if some:
                own.append({
                    "target": target, "budget": budget, "draws": len(some), **_means(some)
                })  # fmt: skip
        rows += own
        if own:
            rows.append({
                "target": "mean", "budget": budget, "draws": sum(row["draws"] for row in own),
                **_means(own),
            })  # fmt: skip
    return rows


def _means(parts: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Returns metric -> line -> mean, for the lines that all parts have."""
    names = [name for name in LINES if all(name in part["mape"] for part in parts)]
    return {
        metric: {name: float(np.mean([part[metric][name] for part in parts])) for name in names}
        for metric in _METRICS
    }


def page(cells: list[dict[str, Any]]) -> None:
    """Writes the page of finished cells."""
    rows = summary(cells)
    facts = {
        "tuning": asdict(TUNING), "base": BASE, "passes": PASSES, "targets": TARGETS,
        "rows": rows,
        "cells": [
            {k: v for k, v in cell.items() if k != "stamp"} for cell in cells
        ],
    }  # fmt: skip
    parts = [cell["stamp"] for cell in cells]
    found = stamp("python -m lab run adapting", schemas=PROGRAMS, parts=parts)
    write_page("adapting", markdown(rows, cells), facts, found)


def markdown(rows: list[dict[str, Any]], cells: list[dict[str, Any]]) -> str:
    """Returns the page."""
    wanted = len(TARGETS) * len(BUDGETS) * len(DRAWS)
    draws = ", ".join(map(str, sorted({cell["draw"] for cell in cells})))
    lines = []
    columns = ["unchanged", "nearest_factor", "one_factor", "shrunken", "full", "kept"]
    columns += ["constant", "oracle"]
    for budget in BUDGETS:
        own = [row for row in rows if row["budget"] == budget]
        if not own:
            continue
        cells_of_table = [
            [row["target"], *(percent_text(row["mape"].get(name)) for name in columns)]
            for row in own
        ]
        for metric, title in _BESIDE.items():
            values = [own[-1][metric].get(name) for name in columns]
            texts = ["-" if value is None else f"{value:.2f}" for value in values]
            cells_of_table.append([title, *texts])
        heads = ["target", *(_NAMES[name] for name in columns)]
        table = markdown_table(heads, cells_of_table, "lr")
        lines += [f"## {_TITLES.get(budget, f'{budget} tasks')}", "", table, ""]
    count = f"{len(cells)} of {wanted} cells (draws {draws})"
    return sections("adapting", cells=count, budgets="\n".join(lines).rstrip())
