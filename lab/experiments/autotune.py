"""What tuning gives, beside random search with the same budget: a resumable grid of studies.

Every study is one `cdmpp autotune`, in a folder of its own; a study that was cut off goes on where
it was. What a finished one printed is kept in `data/autotune-studies`, so that it is not repeated
on another machine either. One worker each, so that a seed says what is drawn. Budgets are CPU time:
other work on the machine makes a study longer, not worse.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder
from lab.journal import Journal
from lab.pages import filled, write_page
from lab.paths import RESULTS, ROOT
from lab.stamp import PROGRAMS, stamp

_CONFIG = "configs/autotune/tenset-cpu.yaml"
#: Trials of a study with and without ending trials early, which has no other budget.
_PRUNING_TRIALS = 20
_SEEDS = (0, 1, 2)
FINISHED = ROOT / "data" / "autotune-studies" / "studies.jsonl"


@dataclass(frozen=True)
class Study:
    """One study: what is compared, the sampler's seed and the options of the command."""

    group: str
    seed: int
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its folder and in its storage."""
        return f"{self.group}-{self.seed}"

    def command(self, out: Path) -> list[str]:
        """Returns the command line."""
        return [
            sys.executable, "-m", "cdmpp.cli.main", "autotune", *self.options, "--seed",
            str(self.seed), "--set", f"name={self.name}", "--out", str(out / self.name), "--json",
        ]  # fmt: skip


def studies() -> list[Study]:
    """Returns all studies, seed by seed."""
    config = ("--config", _CONFIG)
    endless = (*config, "--trials", str(_PRUNING_TRIALS), "--set", "cpu_minutes=0", "--no-train")
    found = []
    for seed in _SEEDS:
        found.append(Study("tpe", seed, config))
        found.append(Study("random", seed, (*config, "--sampler", "random")))
    for seed in _SEEDS:
        found.append(Study("ended-early", seed, endless))
        found.append(Study("never-ended", seed, (*endless, "--pruner", "none")))
    found.append(Study("gbdt", 0, ("--config", "configs/autotune/gbdt.yaml")))
    return found


def experiment(
    work: Path = ROOT / "runs" / "autotune-campaign",
    finished: Path = FINISHED,
    cells: tuple[str, ...] = ("*",),
) -> None:
    """Runs the studies that are not finished, trains what they begin with, and writes the page.

    Args:
        cells: names of studies (* ?), only these.
    """
    make_folder(work, what="studies")
    journal = Journal(finished)
    for study in studies():
        if any(fnmatch(study.name, pattern) for pattern in cells):
            value = journal.cell(study.name, partial(_finished, study, work))
            print(f"{study.name}: {value['best']['values'][0]:.4f}", flush=True)
    report({(one["group"], one["seed"]): one for one in journal.cells().values()})


def _finished(study: Study, work: Path) -> dict[str, Any]:
    done = subprocess.run(
        study.command(work), capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    (work / f"{study.name}.log").write_text(done.stderr, encoding="utf-8")
    if done.returncode:
        raise DataError(f"{study.name}: exit code {done.returncode}; {done.stderr[-300:]}")
    origin = stamp("", schemas=PROGRAMS)
    return {
        **_facts(json.loads(done.stdout)), "stamp": origin, "group": study.group,
        "seed": study.seed,
    }  # fmt: skip


def report(found: Mapping[tuple[str, int], dict[str, Any]], folder: Path = RESULTS) -> None:
    """Writes the page of finished studies, by group and seed."""
    tables = "\n".join([*_budget(found), *_pruning(found), *_trees(found)]).rstrip()
    text = filled("autotune", studies=tables)
    values = {f"{group}-{seed}": _facts(v) for (group, seed), v in sorted(found.items())}
    parts = [value.get("stamp") for value in found.values()]
    origin = stamp("python -m lab run autotune", schemas=PROGRAMS, parts=parts)
    rows = list(_rows(found))
    write_page("autotune", text, {"studies": values}, origin, rows=rows, folder=folder)


def _budget(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[str]:
    lines = [
        "## The same budget: TPE and random search", "",
        "| sampler | seed | CPU minutes | trials: done / begun | validation: beginning | best | "
        "better by | test of the winner: MAPE / median APE / Spearman |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for group in ("tpe", "random"):
        rows = [found[group, seed] for seed in _SEEDS if (group, seed) in found]
        for value in rows:
            first, best = _beginning(value), value["best"]["values"][0]
            lines.append(
                f"| {group} | {value['seed']} | {value['cpu_s'] / 60:.1f} | {value['done']} / "
                f"{value['trials']} | {first:.1%} | {best:.1%} | {1 - best / first:.1%} | "
                f"{_test(value)} |"
            )
        if rows:
            gains = [1 - row["best"]["values"][0] / _beginning(row) for row in rows]
            tests = [row["test"]["mape"] for row in rows if row["test"]]
            best = np.mean([row["best"]["values"][0] for row in rows])
            lines.append(
                f"| **{group}** | mean of {len(rows)} | | | | **{best:.1%}** | "
                f"**{np.mean(gains):.1%}** | **{np.mean(tests):.1%}** |"
            )
    return [*lines, ""]


def _pruning(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[str]:
    pairs: list[tuple[Any, ...]] = [
        (seed, found["ended-early", seed], found["never-ended", seed])
        for seed in _SEEDS
        if ("ended-early", seed) in found and ("never-ended", seed) in found
    ]
    if not pairs:
        return []
    lines = [
        f"## Ending trials early ({_PRUNING_TRIALS} trials, no other budget, same seeds)", "",
        "| seed | optimiser steps: ended early | never ended | saved | best validation: ended "
        "early | never ended |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for seed, early, never in pairs:
        lines.append(
            f"| {seed} | {early['steps']:,} | {never['steps']:,} | "
            f"{1 - early['steps'] / never['steps']:.0%} | {early['best']['values'][0]:.1%} | "
            f"{never['best']['values'][0]:.1%} |"
        )
    if len(pairs) > 1:
        saved = np.mean([1 - early["steps"] / never["steps"] for _, early, never in pairs])
        means = " | ".join(
            f"**{np.mean([pair[place]['best']['values'][0] for pair in pairs]):.1%}**"
            for place in (1, 2)
        )
        lines.append(f"| **mean** | | | **{saved:.0%}** | {means} |")
    return [*lines, ""]


def _trees(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[str]:
    value = found.get(("gbdt", 0))
    if value is None:
        return []
    return [
        "## The trees, by the same command", "",
        f"`configs/autotune/gbdt.yaml`, {value['cpu_s'] / 60:.1f} CPU minutes, {value['trials']} "
        f"trials: validation {_beginning(value):.1%} -> {value['best']['values'][0]:.1%}, test "
        f"{_test(value)}.", "",
    ]  # fmt: skip


def _beginning(value: Mapping[str, Any]) -> float:
    return float(value["first"]["values"][0])


def _test(value: Mapping[str, Any]) -> str:
    test = value["test"]
    if not test:
        return "-"
    return f"{test['mape']:.1%} / {test['median_ape']:.1%} / {test['spearman_by_task']:.2f}"


def _facts(value: Mapping[str, Any]) -> dict[str, Any]:
    names = ("best", "first", "trials", "done", "cpu_s", "steps", "test")
    return {name: value[name] for name in names}


def _rows(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for (group, seed), value in sorted(found.items()):
        model = value["best"]["model"]
        numbers = {
            "validation_mape_first": _beginning(value),
            "validation_mape_best": value["best"]["values"][0],
            "cpu_s": value["cpu_s"],
            "steps": value["steps"],
            "test_mape": value["test"]["mape"] if value["test"] else None,
        }
        place = ("autotune", "tenset-cpu", "task", "all", group, model, seed)
        for metric, number in numbers.items():
            if number is not None:
                yield *place, metric, number, value["trials"]
