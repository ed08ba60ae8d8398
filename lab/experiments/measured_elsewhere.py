"""What a time on another device is worth.

An ensemble is trained on a part of `data/tenset-cpu` (by task, all eight labels, twenty passes).
For every ordered pair of labels the programs of the test part are told for the second from their
measured times on the first.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.calibration.transfer import Transfer, fit_transfer, on_device, relation
from cdmpp.config import from_dict, to_dict
from cdmpp.conformal import owner_means
from cdmpp.datasets.budget import of_tasks
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sampling import choose_tasks
from cdmpp.datasets.selection import of_devices
from cdmpp.datasets.sources import extracted_folder
from cdmpp.datasets.splits import split
from cdmpp.files.atomic import make_folder, write_columns, write_json
from cdmpp.metrics import Judged, mean_and_interval, summarise
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.models.options import EnsembleOptions
from cdmpp.models.parts.labels import least_mape_factor
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.saved_model import ModelCard, load_model, write_transfer
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.text import markdown_table, percent_text
from cdmpp.training.finetune.adapt import TriedFits, comparable
from cdmpp.training.finetune.elsewhere import times_elsewhere
from cdmpp.training.finetune.one_factor import as_device, fit_one_factor, with_devices
from cdmpp.training.run_folder import save_trained, split_facts
from cdmpp.training.transferred import transfer_dataset
from lab.experiments.adapting import DRAWS, TARGETS, TUNING, base_model
from lab.figures import (
    Columns,
    between,
    geometric_mean,
    is_inside,
    read_columns,
    rows_of,
    spread,
)
from lab.pages import filled, write_page
from lab.paths import ROOT
from lab.stamp import COMPILED, stamp
from lab.suites.target_parts import target_parts

SEEDS = (0, 1, 2)
#: A fifth of the tasks is held back for the shares: only 100 tasks were measured on both CPUs.
FRACTIONS = (0.6, 0.2, 0.2)
PASSES = 20
LINES = {
    "model": "the model alone",
    "source": "the time on the other, as it is",
    "one_factor": "that times the factor that fits these very programs best",
    "transferred": "the model, with the time on the other",
    "constant": "one latency for every label (their median, known only afterwards)",
    "oracle": "the median of the program's own task and label (known only afterwards)",
}
METRICS = {
    "mape": "MAPE", "median_ape": "median APE", "mean_log_error": "log error",
    "median_ratio": "median ratio",
}  # fmt: skip
ADAPTED = {
    "nearest_factor": "one factor (the nearest known device)",
    "kept": "the adapted model",
    "source_factor": "the time on the other, times the factor of the ten tasks",
    "elsewhere": "the adapted model, with the time on the other",
}
#: Another label of the same chip (threads, instruction set); the other chip.
RELATIONS = ("same_cpu", "other_cpu")


def experiment(
    work: Path = ROOT / "runs" / "measured-elsewhere", cache: Path = ROOT / "cache"
) -> None:
    """Runs what is missing (three seeds, 3 minutes each; ten tasks of five new devices), and writes
    the page.
    """
    samples = load_samples(extracted_folder(ROOT / "data" / "tenset-cpu", None, cache_dir=cache))
    for seed in SEEDS:
        run(samples, seed, work / f"seed-{seed}")
    for target, draw in itertools.product(TARGETS, DRAWS):
        adapted(samples, target, draw, work)
    page(work)


def run(samples: Samples, seed: int, folder: Path) -> None:
    """Trains, and tells every label's test programs for every other label."""
    if (folder / "pairs.parquet").is_file():
        return
    trained = trained_in(folder, samples, seed)
    test = samples.take(split(samples, "task", seed=seed, fractions=FRACTIONS).test)
    rows: list[dict[str, NDArray[Any]]] = []
    for source, target in itertools.permutations(samples.devices, 2):
        found = transfer_dataset(trained, test, source, target)
        known = np.flatnonzero(np.isfinite(found.samples.latency_s))
        measured_s, source_s = found.samples.latency_s[known], found.source_s[known]
        factor = least_mape_factor(source_s, measured_s)
        rows.append({
            "relation": np.full(len(known), str(relation(source, target)), object),
            "pair": np.full(len(known), f"{source.name} {target.name}", object),
            "task": test.programs.tasks[found.samples.task_id[known]],
            "measured_s": measured_s, "source": source_s, "one_factor": factor * source_s,
            "model": found.alone.latency_s[known], "transferred": found.found.latency_s[known],
            "low_s": found.found.low_s[known], "high_s": found.found.high_s[known],
        })  # fmt: skip
    write_json(
        folder / "shares.json", trained.card.transfer.shares if trained.card.transfer else {}
    )
    write_columns(
        folder / "pairs.parquet",
        {name: np.concatenate([one[name] for one in rows]) for name in rows[0]},
    )


def adapted(samples: Samples, target: str, draw: int, work: Path) -> None:
    """Adapts the other machine's model to ten tasks of a target and tells the programs of its
    judging tasks, as `lab.experiments.adapting` does, of those that both machines have measured.
    """
    file = work / "adapted" / f"{target}-{draw}.parquet"
    if file.is_file():
        return
    source = target.replace(target.split("-")[0], TARGETS[target])
    model, card = load_model(base_model(TARGETS[target], samples, work))
    elsewhere = times_elsewhere(samples, source, [target], card)
    both = of_devices(samples, [target])
    parts = target_parts(both.take(elsewhere.known(both)), seed=draw)
    budget = of_tasks(parts.candidates, choose_tasks(parts.candidates, 10, seed=draw))
    fits = TriedFits(model, budget, card.devices, options=TUNING, seed=draw)
    kept, held_out = fits.choice.kept, fits.held_out
    assert held_out is not None
    (pair,) = elsewhere.pairs(model, held_out, fits.held_out_s[kept])
    test = parts.test
    source_s, budget_s = (elsewhere.latency_s[one.program] for one in (test, budget))
    own_s, there_s = (
        fits.model(kept).predict(test),
        model.predict(on_device(test, elsewhere.device)),
    )
    nearest, factor = fit_one_factor(
        model, with_devices(budget, card.devices), comparable(budget, card.devices)
    )
    known = as_device(with_devices(test, card.devices), nearest)
    logs = (np.log(own_s), np.log(there_s), np.log(source_s))
    make_folder(file.parent, what="results")
    write_columns(file, {
        "task": test.programs.tasks[test.task_id], "measured_s": test.latency_s,
        "nearest_factor": factor * model.predict(known), "kept": own_s,
        "source_factor": float(np.nanmedian(budget.latency_s / budget_s)) * source_s,
        "elsewhere": np.exp(pair.log_s(*logs)),
    })  # fmt: skip
    print(f"{file.stem}: ratio {pair.ratio:.2f}, share {pair.share:.2f}", flush=True)


def trained_in(folder: Path, samples: Samples, seed: int) -> TrainedModel:
    """Returns the ensemble of a seed, trained where it is not there yet."""
    if not (folder / "model.json").is_file():
        parts = split(samples, "task", seed=seed, fractions=FRACTIONS)
        train, validation = samples.take(parts.train), samples.take(parts.validation)
        values = to_dict(EnsembleOptions())
        for name in ("transformer", "perceptron"):
            values[name]["loop"]["epochs"] = PASSES
        model = EnsembleCostModel(from_dict(EnsembleOptions, values))
        model.fit(train, validation, seed=seed)
        make_folder(folder, what="run")
        card = ModelCard.of("ensemble", train, split_facts("task", seed, parts.description))
        save_trained(model, folder, card, train=train, validation=validation)
    return load_trained(folder)


def package(cache: Path = ROOT / "cache") -> None:
    """Adds to the packaged model what its validation tasks of the shipped data sets say of two
    devices; of a relation the last set that has it.
    """
    folder = model_folder(PRETRAINED)
    model, card = load_model(folder)
    fractions = tuple(card.split["fractions"])
    assert len(fractions) == 3
    whole = Transfer({}, {})
    for name in ("tenset-cpu", "ansor-gpu"):
        samples = load_samples(extracted_folder(ROOT / "data" / name, None, cache_dir=cache))
        parts = split(samples, "task", seed=card.split["seed"], fractions=fractions)
        validation = samples.take(parts.validation)
        found = fit_transfer(validation, model.predict(validation)) or Transfer({}, {})
        whole = Transfer(whole.shares | found.shares, whole.intervals | found.intervals)
    write_transfer(folder, whole)


def page(work: Path) -> None:
    """Writes the page."""
    folders = [work / f"seed-{seed}" for seed in SEEDS]
    tables = [read_columns(folder / "pairs.parquet") for folder in folders]
    shares = [json.loads((folder / "shares.json").read_text("utf-8")) for folder in folders]
    values: dict[str, Any] = {}
    texts = {}
    for name in RELATIONS:
        own = [rows_of(table, table["relation"] == name) for table in tables]
        values[name] = {**_judged(own), "share": [share[name] for share in shares]}
        texts[name] = _text(values[name])
    values["new_device"] = _new_devices(work / "adapted")
    texts["new_device"] = values["new_device"].pop("text")
    found = stamp("python -m lab run measured-elsewhere", schemas=COMPILED)
    write_page("measured-elsewhere", filled("measured-elsewhere", **texts), values, found)


def _new_devices(folder: Path) -> dict[str, Any]:
    """Returns the errors on targets that ten tasks were measured on, and their table."""
    rows, ratios, means, logs = [], [], [], []
    for target in TARGETS:
        tables = [read_columns(folder / f"{target}-{draw}.parquet") for draw in DRAWS]
        error = {
            name: [np.abs(table[name] / table["measured_s"] - 1.0) for table in tables]
            for name in ADAPTED
        }
        means.append([float(np.mean([one.mean() for one in error[name]])) for name in ADAPTED])
        logs.append(
            [
                float(np.mean([np.abs(np.log(t[name] / t["measured_s"])).mean() for t in tables]))
                for name in ADAPTED
            ]
        )
        programs = [len(table["task"]) for table in tables]
        rows.append([target, *map(percent_text, means[-1]), f"{np.mean(programs):,.0f}"])
        for table, new, old in zip(
            tables, error["elsewhere"], error["nearest_factor"], strict=True
        ):
            ratios += np.log(_by_task(table, new) / _by_task(table, old)).tolist()
    whole = np.mean(means, axis=0).tolist()
    rows.append(["mean", *map(percent_text, whole), ""])
    mean_logs = np.mean(logs, axis=0).tolist()
    rows.append(["mean log error", *(f"{value:.2f}" for value in mean_logs), ""])
    by_task = geometric_mean(ratios)
    heads = ["target", *ADAPTED.values(), "programs of a draw"]
    text = (
        f"{markdown_table(heads, rows)}\n\nThe last line over one factor: "
        f"{whole[-1] / whole[0]:.2f} (means over targets); a task's error over that of one factor "
        f"{between(*by_task)} (geometric mean over the tasks of all targets and draws, 95 % "
        "interval)."
    )
    return {
        "lines": dict(zip(ADAPTED, whole, strict=True)),
        "log_errors": dict(zip(ADAPTED, mean_logs, strict=True)),
        "by_task": list(by_task),
        "text": text,
    }  # fmt: skip


def _by_task(table: Columns, values: NDArray[Any]) -> NDArray[np.float64]:
    _, owner = np.unique(table["task"], return_inverse=True)
    return owner_means(values.astype(np.float64), owner)


def _medians(values: NDArray[Any], owner: NDArray[Any]) -> NDArray[np.float64]:
    """Returns float64 [N], the median of the values that have the same owner."""
    _, place = np.unique(owner.astype(str), return_inverse=True)
    medians = [np.median(values[place == one]) for one in range(place.max() + 1)]
    return np.array(medians, np.float64)[place]


def _judged(tables: list[Columns]) -> dict[str, Any]:
    lines: dict[str, Any] = {name: {metric: [] for metric in METRICS} for name in LINES}
    ratios: dict[str, list[float]] = {"model": [], "one_factor": []}
    inside = []
    for table in tables:
        _, task = np.unique(table["task"].astype(str), return_inverse=True)
        _, pair = np.unique(table["pair"].astype(str), return_inverse=True)
        target = np.array([text.split()[1] for text in table["pair"]], object)
        whose = {"constant": target, "oracle": target + " " + table["task"].astype(object)}
        guesses = {name: _medians(table["measured_s"], owner) for name, owner in whose.items()}
        found = {name: table[name] if name in table else guesses[name] for name in LINES}
        error = {name: np.abs(found[name] / table["measured_s"] - 1.0) for name in LINES}
        for name in LINES:
            values = summarise(
                Judged(table["measured_s"], found[name], task, pair, np.ones(task.max() + 1))
            )
            for metric in METRICS:
                lines[name][metric].append(values[metric])
        own = _by_task(table, error["transferred"])
        for name, logs in ratios.items():
            logs += np.log(own / _by_task(table, error[name])).tolist()
        inside.append(float(_by_task(table, is_inside(table)).mean()))
    return {
        "n": [len(table["task"]) for table in tables],
        "tasks": [len(np.unique(table["task"])) for table in tables],
        "lines": lines,
        "ratio_by_task": {name: mean_and_interval(found) for name, found in ratios.items()},
        "interval_coverage": inside,
    }


def _text(values: dict[str, Any]) -> str:
    rows = []
    for name, words in LINES.items():
        line = values["lines"][name]
        errors = [spread(line[key]) for key in ("mape", "median_ape")]
        others = [f"{np.mean(line[key]):.2f}" for key in ("mean_log_error", "median_ratio")]
        rows.append([words, *errors, *others])
    table = markdown_table(["what is said", *METRICS.values()], rows)
    ratios = []
    for name, (mean, half) in values["ratio_by_task"].items():
        ends = np.exp([mean, mean - (half or 0.0), mean + (half or 0.0)])
        ratios.append(f"{between(*ends)} of that of *{LINES[name]}*")
    shares = ", ".join(f"{share:.2f}" for share in values["share"])
    return (
        f"{table}\n\nA task's error is {' and '.join(ratios)} (geometric mean over tasks of three "
        f"seeds, 95 % interval over tasks). Share {shares}. In the 90 % interval: "
        f"{spread(values['interval_coverage'])} of a task's programs. "
        f"{', '.join(f'{n:,}' for n in values['n'])} programs of "
        f"{', '.join(map(str, values['tasks']))} tasks, all pairs of labels."
    )
