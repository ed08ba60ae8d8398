"""Searches that build four times what they run, and such that run all."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.files.atomic import read_json
from cdmpp.metrics import mean_and_interval
from cdmpp.pretrained import PRETRAINED
from cdmpp.text import markdown_table
from lab.experiments import search
from lab.experiments.search_timing import journal_entries, timed_in_turns
from lab.figures import ratio_text
from lab.pages import filled, write_page
from lab.paths import ROOT
from lab.shell import cdmpp
from lab.stamp import PROGRAMS, stamp

#: Chosen before any search ran.
TASKS = {name: search.TASKS[name] for name in ("conv2d", "batch_matmul", "softmax")}
SEEDS = (0, 1, 2)
#: Built for each that is run.
METHODS = (1, 4)
TRIALS, PER_ROUND, CHECKPOINTS = 32, 8, (8, 16, 32)
DEVICE = "this-cpu"
SETTINGS = ("population=128", "search_threads=1", "final_repeats=1", "machine_code=true")
#: So many programs of the kept searches in a row stand for a draft.
DRAFT = METHODS[-1] * PER_ROUND
_DRAWS = 500
_KEPT = {
    "by_code": "the model with machine code", "alone": "the model alone", "chance": "at random",
    "first": "those that were measured first",
}  # fmt: skip


def experiment(
    work: Path = ROOT / "runs" / "search-verify",
    searched: Path = ROOT / "cache" / "data" / "metaschedule-cpu-searched",
) -> None:
    """Runs the searches that are not there yet (one that was cut off goes on), times the winners in
    turns, lets the model choose among kept searches (after `make tables`), and writes the page.
    """
    for seed, task, verify in itertools.product(SEEDS, TASKS, METHODS):
        folder = _folder(work, task, seed, verify)
        if (folder / "summary.json").is_file():
            continue
        started = time.time()
        cdmpp(
            "search", out=folder, device=DEVICE, task=TASKS[task], trials=TRIALS,
            trials_per_round=PER_ROUND, seed=seed, json=True, quiet=True,
            set=[*SETTINGS, f"verify={verify}"],
        )  # fmt: skip
        print(f"{folder.name}: {time.time() - started:.0f} s", flush=True)
    report(work, remeasured(work), kept(searched))


def remeasured(work: Path) -> dict[str, Any]:
    """Returns task -> its winners timed in turns, and what the model says of what was measured."""
    from tvm_helper.search.tasks import named_tasks
    from tvm_helper.search.verifier import Verifier

    target, verifier = _verifier()
    assert isinstance(verifier, Verifier)
    found = {}
    for name in _tasks(work):
        (task,) = named_tasks([TASKS[name]])
        programs: dict[str, Any] = {}
        cells = []
        seeds = [seed for task_name, seed in _pairs(work) if task_name == name]
        for seed, verify in itertools.product(seeds, METHODS):
            folder = _folder(work, name, seed, verify)
            trials = journal_entries(folder)
            winners = {}
            for count in CHECKPOINTS:
                place = min(range(count), key=[_cost_s(one) for one in trials].__getitem__)
                winners[str(count)] = trials[place]["program_id"]
                programs[trials[place]["program_id"]] = trials[place]["record"][1][0]
            ranks = _rank_correlations(task.module, folder, trials, verifier)
            cells.append({"seed": seed, "verify": verify, "winners": winners, **ranks})
        seconds = timed_in_turns(task.module["main"], programs, target)
        found[name] = {"cells": cells, "seconds": seconds}
        print(f"{name}: {len(programs)} winners timed", flush=True)
    return found


def _verifier() -> tuple[Any, Any]:
    from cdmpp.predict.estimates import load_trained
    from cdmpp.pretrained import model_folder
    from tvm_helper.measure.options import TrialOptions
    from tvm_helper.measure.target import measure_target
    from tvm_helper.search.verifier import Verifier

    target = measure_target(TrialOptions(device=DEVICE)).tvm_target()
    trained = load_trained(model_folder("pretrained"), with_code=True)
    return target, Verifier(trained, DEVICE, target)


def _rank_correlations(
    module: Any, folder: Path, trials: Sequence[Mapping[str, Any]], verifier: Any
) -> dict[str, list[float]]:
    """Returns Spearman's correlation with the measured latency, a number a round: of what the model
    of machine code predicts, and of the place that the cost model gave (where all are run).
    """
    from scipy.stats import spearmanr

    from cdmpp.datasets.extraction.machine_code import read_machine_code
    from tvm_helper.tasks.schedule_of_trace import schedule_of

    (table,) = read_machine_code(folder)
    found: dict[str, list[float]] = {"by_code": [], "by_place": []}
    for number in sorted({one["round"] for one in trials}):
        own = [one for one in trials if one["round"] == number and one["costs_s"]]
        columns = [table.columns[one["program_id"]].tolist() for one in own]
        modules = [schedule_of(module, one["record"][1][0]).mod for one in own]
        cost_s = [_cost_s(one) for one in own]
        found["by_code"].append(float(spearmanr(verifier.latency_s(modules, columns), cost_s)[0]))
        found["by_place"].append(float(spearmanr(range(len(own)), cost_s)[0]))
    return found


def kept(searched: Path) -> dict[str, Any]:
    """Returns how the model chooses 8 of 32 programs that searches on its own device measured."""
    from scipy.stats import spearmanr

    from cdmpp.datasets.cache import load_samples
    from cdmpp.datasets.extraction.machine_code import read_machine_code
    from cdmpp.predict.corrections import MachineCodeCorrection
    from cdmpp.predict.estimates import load_trained
    from cdmpp.predict.machine_code.known import code_columns, has_code
    from cdmpp.predict.saved_model import task_digest
    from cdmpp.pretrained import model_folder

    trained = load_trained(model_folder("pretrained"), with_code=True)
    samples = load_samples(searched, cache_dir=ROOT / "cache")
    (table,) = read_machine_code(searched)
    digests = [task_digest(str(task)) for task in samples.programs.tasks]
    is_new = np.array([one not in trained.card.training_tasks for one in digests])
    samples = samples.take(has_code(samples, table) & is_new[samples.task_id])
    names = samples.programs.program_id[samples.program]
    place = {one["program_id"]: number for number, one in enumerate(journal_entries(searched))}
    code = code_columns(samples, table)
    alone = trained.estimate(samples)
    orders = {
        "first": np.array([float(place[str(name)]) for name in names]),
        "alone": alone.latency_s,
        "by_code": trained.estimate(samples, [MachineCodeCorrection(code)]).latency_s,
    }
    rng = np.random.default_rng(0)
    rows = []
    for task in np.unique(samples.task_id):
        own = np.flatnonzero(samples.task_id == task)
        own = own[np.argsort(orders["first"][own])]
        drafts = [own[start : start + DRAFT] for start in range(0, len(own) - DRAFT + 1, DRAFT)]
        chosen = [_chosen(one, samples.latency_s[one], orders, rng) for one in drafts]
        if chosen:
            rows.append({"drafts": len(drafts), **{key: _mean([one[key] for one in chosen])
                                                   for key in _KEPT}})  # fmt: skip
            for key in orders:
                ranks = [spearmanr(orders[key][one], samples.latency_s[one])[0] for one in drafts]
                rows[-1][f"{key}_rank"] = float(np.mean(ranks))
    return {"dataset": searched.name, "tasks": rows}


def _chosen(
    own: Any, cost_s: Any, orders: Mapping[str, Any], rng: np.random.Generator
) -> dict[str, float]:
    """Returns the best of 8 programs over the best of all, by what chose the 8."""
    best_s = cost_s.min()
    found = {
        key: float(cost_s[np.argsort(values[own], kind="stable")[:PER_ROUND]].min() / best_s)
        for key, values in orders.items()
    }
    drawn = [rng.permutation(len(own))[:PER_ROUND] for _ in range(_DRAWS)]
    return {**found, "chance": _mean([float(cost_s[one].min() / best_s) for one in drawn])}


def report(work: Path, timed: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Writes the tables of the page; its text is in the page."""
    pairs = _pairs(work)
    summaries = {
        (*pair, verify): read_json(
            _folder(work, *pair, verify) / "summary.json", what="summary", hint="run it again"
        )
        for pair, verify in itertools.product(pairs, METHODS)
    }
    best_s = {
        (task, cell["seed"], cell["verify"], int(count)): float(np.median(one["seconds"][program]))
        for task, one in timed.items()
        for cell in one["cells"]
        for count, program in cell["winners"].items()
    }
    few, all_trials = CHECKPOINTS[0], CHECKPOINTS[-1]
    rows = [
        [f"after {count} measured programs of both",
         ratio_text([best_s[*p, 4, count] / best_s[*p, 1, count] for p in pairs])]
        for count in CHECKPOINTS
    ]  # fmt: skip
    rows.append(
        [f"4 after {few} measured (of {4 * few} built), 1 after {all_trials} measured and built",
         ratio_text([best_s[*p, 4, few] / best_s[*p, 1, all_trials] for p in pairs])]
    )  # fmt: skip
    by_task = [
        [task, str(count),
         *(f"{1e6 * _mean([best_s[*p, v, count] for p in pairs if p[0] == task]):.1f}"
           for v in METHODS),
         ratio_text([best_s[*p, 4, count] / best_s[*p, 1, count] for p in pairs if p[0] == task])]
        for task in _tasks(work)
        for count in CHECKPOINTS
    ]  # fmt: skip
    costs = [[str(verify), *_costs([summaries[*p, verify] for p in pairs])] for verify in METHODS]
    searched = [
        [text, ratio_text([one[name] for one in found["tasks"]]),
         "-" if name == "chance" else _interval([one[f"{name}_rank"] for one in found["tasks"]])]
        for name, text in _KEPT.items()
    ]  # fmt: skip
    facts = {"kept": found, "timed": timed,
             "summaries": [{"task": t, "seed": s, "verify": v, **{k: one[k] for k in
                            ("drafted", "built", "trials", "failed", "seconds")}}
                           for (t, s, v), one in summaries.items()]}  # fmt: skip
    tables = "\n\n".join(
        [markdown_table(["latency of verify=4 over verify=1", "ratio"], rows),
         markdown_table(["task", "measured", "verify=1 (µs)", "verify=4 (µs)", "ratio"], by_task),
         markdown_table(["verify", "drafted", "built", "measured", "failed", "wall", "drawing and "
                         "cost model", "building", "verifying", "running"], costs),
         markdown_table(["within a round of 8 of verify=1", "Spearman"], _ranks(timed)),
         markdown_table([f"8 of {DRAFT} programs ({len(found['tasks'])} tasks)",
                         "best of them over best of all", "Spearman"], searched)]
    )  # fmt: skip
    origin = stamp("python -m lab run search-verify", schemas=PROGRAMS, models=[PRETRAINED])
    write_page("search-verify", filled("search-verify", tables=tables), facts, origin)


def _ranks(timed: Mapping[str, Any]) -> list[list[str]]:
    """Returns mean and interval over searches that ran all they drafted."""
    cells = [cell for one in timed.values() for cell in one["cells"] if cell["verify"] == 1]
    rows = []
    for name, key in (("prediction by machine code", "by_code"),
                      ("order of the cost model", "by_place")):  # fmt: skip
        rows.append([name, _interval([float(np.nanmean(cell[key])) for cell in cells])])
    return rows


def _interval(values: Sequence[float]) -> str:
    """Returns the mean of correlations that are no NaN, with its 95 % interval from three on."""
    known = [value for value in values if not math.isnan(value)]
    mean, half = mean_and_interval(known)
    return (
        f"{mean:.2f}"
        if half is None or len(known) < 3
        else f"{mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"
    )


def _costs(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = [
        f"{np.mean([one[name] for one in summaries]):.0f}"
        for name in ("drafted", "built", "trials", "failed")
    ]
    seconds = [one["seconds"] for one in summaries]
    parts = (("wall",), ("draw", "cost_model"), ("build",), ("verify",), ("run",))
    return counts + [
        f"{np.mean([sum(one[name] for name in names) for one in seconds]):.0f} s" for names in parts
    ]


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _pairs(out: Path) -> list[tuple[str, int]]:
    """Returns task and seed of what was searched in both ways."""
    return [
        (task, seed)
        for task, seed in itertools.product(TASKS, SEEDS)
        if all((_folder(out, task, seed, one) / "summary.json").is_file() for one in METHODS)
    ]


def _tasks(out: Path) -> list[str]:
    return list(dict.fromkeys(task for task, _ in _pairs(out)))


def _folder(out: Path, task: str, seed: int, verify: int) -> Path:
    return Path(out) / f"{task}--{seed}--{verify}"


def _cost_s(entry: Mapping[str, Any]) -> float:
    return float(np.mean(entry["costs_s"])) if entry["costs_s"] else math.inf
