"""Accuracy gain of features of the compiled code on programs of unseen tasks.

Trains an ensemble on a part of `data/tenset-cpu` (by task, all eight labels, twenty passes) if it
is missing, and a model of machine code on the same parts. Then repeats this with the labels of one
of the two chips held out, and tests on that chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.config import from_dict, to_dict
from cdmpp.conformal import owner_means
from cdmpp.datasets.budget import of_tasks
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sampling import choose_tasks, untouched_tasks
from cdmpp.datasets.selection import of_devices
from cdmpp.datasets.sources import extracted_folder
from cdmpp.datasets.splits import split
from cdmpp.files.atomic import make_folder, write_columns
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.models.options import EnsembleOptions
from cdmpp.predict.estimates import STRANGE_FACTOR, TrainedModel, load_trained
from cdmpp.predict.machine_code.known import code_columns
from cdmpp.predict.machine_code.model import CodeModel, CodeRows
from cdmpp.predict.saved_model import ModelCard
from cdmpp.text import markdown_table
from cdmpp.training.finetune.adapt import adapt, comparable
from cdmpp.training.finetune.adapted_code import adapted_code
from cdmpp.training.finetune.one_factor import as_device, fit_one_factor, with_devices
from cdmpp.training.run_folder import save_trained, split_facts
from lab.experiments.adapting import TUNING
from lab.figures import (
    Columns,
    between,
    device_figures,
    geometric_mean,
    is_inside,
    read_columns,
    spread,
)
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import COMPILED, stamp

SEEDS = (0, 1, 2)
FRACTIONS = (0.6, 0.2, 0.2)
PASSES = 20
_FILE, _ADAPTED_FILE = "compiled.parquet", "adapted.parquet"
LINES = {
    "model": "fast tier: the ensemble, nothing compiled",
    "compiled": "compiled tier: the ensemble with both",
}
#: The line that the others are compared with, per task.
_BASE = "model"
#: Prefixes of the labels of each chip.
CHIPS = ("xeon", "epyc")
#: The chip that a model of the other chip is adapted to: more of its tasks are in no part.
NEW_CHIP = "xeon"
ADAPTED_TASKS = 10
ADAPTED_LINES = {
    "one_factor": "one factor (the nearest known device)",
    "model": "the adapted model, nothing compiled",
    "compiled": "the adapted model, compiled",
}


def experiment(
    work: Path = ROOT / "runs" / "measured-elsewhere", cache: Path = ROOT / "cache"
) -> None:
    """Trains and predicts what is missing (three seeds, 10 minutes each); writes the page."""
    folder = extracted_folder(ROOT / "data" / "tenset-cpu", None, cache_dir=cache)
    samples, code = load_samples(folder), code_by_label(folder)
    for seed in SEEDS:
        run(samples, code, seed, work / f"seed-{seed}")
        for chip in CHIPS:
            left_out(samples, code, seed, chip, work / f"without-{chip}-{seed}")
        adapted(samples, code, seed, work / f"without-{NEW_CHIP}-{seed}")
    page(work)


Code = Mapping[str, Mapping[str, NDArray[np.float32]]]


def code_by_label(folder: Path) -> Code:
    """Returns label -> program id -> float32 [columns]."""
    return {label: table.columns for table in read_machine_code(folder) for label in table.targets}


def run(samples: Samples, code: Code, seed: int, folder: Path) -> None:
    """Trains if needed, and predicts the test part."""
    if not (folder / _FILE).is_file():
        trained, own = _trained_in(folder, samples, seed)
        _predict(folder / _FILE, trained, own, own[2], code, seed)


def left_out(samples: Samples, code: Code, seed: int, chip: str, folder: Path) -> None:
    """Trains on the other chip, and predicts this chip's programs of other tasks."""
    if (folder / _FILE).is_file():
        return
    trained, own, asked = without_chip(samples, chip, folder, seed)
    _predict(folder / _FILE, trained, own, asked, code, seed)


def adapted(samples: Samples, code: Code, seed: int, folder: Path) -> None:
    """Adapts the other chip's model to some tasks per label of this chip; predicts the rest."""
    if (folder / _ADAPTED_FILE).is_file():
        return
    _, _, asked = without_chip(samples, NEW_CHIP, folder, seed)
    trained = load_trained(folder, with_code=True)
    assert trained.code is not None
    asked = trained.card.as_told(asked)
    columns: list[dict[str, NDArray[Any]]] = []
    for label in sorted({asked.devices[index].name for index in np.unique(asked.device)}):
        own = of_devices(asked, [label])
        tasks = choose_tasks(own, ADAPTED_TASKS, seed=seed)
        budget, test = of_tasks(own, tasks), of_tasks(own, untouched_tasks(own, tasks))
        found = adapt(trained.model, budget, trained.card.devices, options=TUNING, seed=seed)
        assert found.held_out is not None
        table = MachineCode({label: "{}"}, dict(code[label]))
        held_out_s = found.held_out_s[found.choice.kept]
        reader = adapted_code(trained.code, [table], found.held_out, held_out_s)
        assert reader is not None
        kept_s = found.model.predict(test)
        log_s, half_width = reader.estimate(CodeRows.of(test, code_columns(test, table), kept_s))
        known = trained.card.devices
        nearest, factor = fit_one_factor(
            trained.model, with_devices(budget, known), comparable(budget, known)
        )
        there = as_device(with_devices(test, known), nearest)
        columns.append({
            "task": np.asarray(test.programs.tasks, object)[test.task_id],
            "device": np.full(len(test), label, object), "measured_s": test.latency_s,
            "one_factor": factor * trained.model.predict(there), "model": kept_s,
            "compiled": np.exp(log_s), "low_s": np.exp(log_s - half_width),
            "high_s": np.exp(log_s + half_width),
        })  # fmt: skip
    write_columns(
        folder / _ADAPTED_FILE,
        {name: np.concatenate([one[name] for one in columns]) for name in columns[0]},
    )


def without_chip(
    samples: Samples, chip: str, folder: Path, seed: int
) -> tuple[TrainedModel, list[Samples], Samples]:
    """Returns an ensemble of the other chip, its parts, and this chip's samples of tasks that are
    in no training or validation part.
    """
    labels = {spec.name for spec in samples.devices}
    own_labels = {label for label in labels if label.startswith(chip)}
    trained, own = _trained_in(folder, of_devices(samples, labels - own_labels), seed)
    met = {task for part in own[:2] for task in part.programs.tasks[np.unique(part.task_id)]}
    asked = of_devices(samples, own_labels)
    is_new = np.array([task not in met for task in asked.programs.tasks], bool)
    return trained, own, asked.take(is_new[asked.task_id])


def _trained_in(folder: Path, samples: Samples, seed: int) -> tuple[TrainedModel, list[Samples]]:
    """Returns the ensemble of a seed, trained if missing, and its parts."""
    parts = split(samples, "task", seed=seed, fractions=FRACTIONS)
    own = [samples.take(rows) for rows in (parts.train, parts.validation, parts.test)]
    if not (folder / "model.json").is_file():
        train, validation = own[:2]
        values = to_dict(EnsembleOptions())
        for name in ("transformer", "perceptron"):
            values[name]["loop"]["epochs"] = PASSES
        model = EnsembleCostModel(from_dict(EnsembleOptions, values))
        model.fit(train, validation, seed=seed)
        make_folder(folder, what="run")
        card = ModelCard.of("ensemble", train, split_facts("task", seed, parts.description))
        save_trained(model, folder, card, train=train, validation=validation)
    return load_trained(folder), own


def _predict(
    file: Path,
    trained: TrainedModel,
    own: Sequence[Samples],
    asked: Samples,
    code: Code,
    seed: int,
) -> None:
    """Trains a machine-code model on an ensemble's parts; writes the predictions of all lines.

    Args:
        own: training, calibration and test part.
        asked: programs to predict.
    """
    train, validation, known_test, test = (
        CodeRows.of(part, _code_of(part, code), trained.model.predict(part))
        for part in (*own, asked)
    )
    schema = dict(asked.programs.feature_schema)
    found = CodeModel.fit(
        (train, validation, known_test), feature_schema=schema, seed=seed,
        targets={spec.name: "{}" for spec in trained.card.devices},
    )  # fmt: skip
    found.save(file.parent)
    log_s, half_width = found.estimate(test)
    is_known = np.isin(test.device, list(found.targets))
    half_width = np.where(is_known, 1.0, STRANGE_FACTOR) * half_width
    write_columns(
        file,
        {
            "task": test.task.astype(object), "device": test.device.astype(object),
            "measured_s": asked.latency_s, "model": np.exp(test.model_log_s),
            "compiled": np.exp(log_s), "low_s": np.exp(log_s - half_width),
            "high_s": np.exp(log_s + half_width),
        },
    )  # fmt: skip


def _code_of(samples: Samples, code: Code) -> NDArray[np.float32]:
    names = samples.programs.program_id[samples.program]
    labels = [one.name for one in samples.devices]
    return np.stack(
        [code[labels[place]][str(name)] for place, name in zip(samples.device, names, strict=True)]
    )


def page(work: Path) -> None:
    """Writes the page."""
    tables = [read_columns(work / f"seed-{seed}" / _FILE) for seed in SEEDS]
    texts, own = _part(tables, LINES)
    facts: dict[str, Any] = {**own, "left_out": {}}
    for chip in CHIPS:
        left = [read_columns(work / f"without-{chip}-{seed}" / _FILE) for seed in SEEDS]
        of_chip, facts["left_out"][chip] = _part(left, LINES)
        texts |= {f"{chip}_{key}": text for key, text in of_chip.items()}
    new = [read_columns(work / f"without-{NEW_CHIP}-{seed}" / _ADAPTED_FILE) for seed in SEEDS]
    of_new, facts["adapted"] = _part(new, ADAPTED_LINES)
    texts |= {f"adapted_{key}": text for key, text in of_new.items()}
    found = stamp("python -m lab run compiled", schemas=COMPILED)
    write_page("compiled", sections("compiled", **texts), facts, found)


def _part(tables: list[Columns], lines: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    inside = [float(np.mean(is_inside(one))) for one in tables]
    table, values = _lines(tables, lines)
    return {"table": table}, {"interval_coverage": inside, "lines": values}


def _lines(tables: list[Columns], lines: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    values = {name: _judged(tables, name) for name in lines}
    rows = []
    for name, words in lines.items():
        one = values[name]
        ratio = between(one["ratio"], *one["ratio_interval"]) if name != _BASE else "1"
        rows.append([
            words, *(spread(one[key]) for key in ("mape", "median_ape")),
            *(f"{np.mean(one[key]):.2f}" for key in ("mean_log_error", "median_ratio", "spearman")),
            ratio,
        ])  # fmt: skip
    heads = ["what is said", "MAPE", "median APE", "log error", "median ratio",
             "Spearman within a task", "error of a task, over the fast tier's"]  # fmt: skip
    return markdown_table(heads, rows), values


def _judged(tables: list[Columns], name: str) -> dict[str, Any]:
    """Returns the figures of a line: per seed, means over labels. The ratio of a task's error to
    the fast tier's is a geometric mean over the tasks of all seeds.
    """
    found: dict[str, Any] = {
        key: [] for key in ("mape", "median_ape", "mean_log_error", "median_ratio", "spearman")
    }
    ratios: list[float] = []
    for table in tables:
        log_ratio = np.log(table[name].astype(float) / table["measured_s"].astype(float))
        error = np.abs(np.expm1(log_ratio))
        _, task = np.unique(table["task"], return_inverse=True)
        figures = {
            **device_figures(table, name, error, task),
            "mean_log_error": float(np.abs(log_ratio).mean()),
            "median_ratio": float(np.exp(np.median(log_ratio))),
        }
        for key, values in found.items():
            values.append(figures[key])
        base = np.abs(table[_BASE] / table["measured_s"] - 1.0)
        ratios += np.log(owner_means(error, task) / owner_means(base, task)).tolist()
    found["ratio"], *found["ratio_interval"] = geometric_mean(ratios)
    return found
