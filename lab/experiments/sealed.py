"""The shipped model on kernels that no choice has seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.machine_code.known import has_code
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.report.tier_tables import ERRORS, INTERVALS, error_cells, interval_cells
from cdmpp.text import markdown_table
from cdmpp.training.evaluate import held_out_part
from cdmpp.training.tiers import judge_tiers, tier_figures
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import COMPILED, stamp

LINES = {
    "constant": "one latency for everything (their own median, known only afterwards)",
    "fast": "fast tier: the shipped model, nothing compiled",
    "compiled": "compiled tier: the shipped model and the machine code",
}


#: Folder of `data/` -> name of its sections.
CAMPAIGNS = {
    "sealed9-cpu": "newest_kernels", "pasted-cpu-sealed9": "newest_pasted",
    "icelake-kernels": "icelake_kernels", "icelake-pasted": "icelake_pasted",
    "sealed3-cpu": "kernels", "pasted-cpu-sealed": "pasted",
}  # fmt: skip


def experiment(tables: Path = ROOT / "cache" / "data") -> None:
    """Writes the page (after `make tables`).

    Args:
        tables: folder with the campaigns' tables.
    """
    facts = {name: _facts(tables / folder) for folder, name in CAMPAIGNS.items()}
    texts = {name: one.pop("table") for name, one in facts.items()}
    found = stamp("python -m lab run sealed", schemas=COMPILED, models=[PRETRAINED])
    write_page("sealed", sections("sealed", **texts), facts, found)


def _facts(campaign: Path) -> dict[str, Any]:
    lines, facts = judged_lines(campaign)
    heads = ["what is said", *ERRORS, *INTERVALS]
    rows = [
        [words, *error_cells(lines[name]), *interval_cells(lines[name])]
        for name, words in LINES.items()
    ]
    kept = {name: _kept(line) for name, line in lines.items()}
    table = (
        f"{facts['programs']:,} programs of {facts['tasks']:,} tasks on `{facts['device']}`; "
        f"{facts['known']} more are of tasks that the model knows.\n\n"
    )
    table += markdown_table(heads, rows)
    return {**facts, "lines": kept, "table": table}


def judged_lines(campaign: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Returns the figures of each line, of every compiled program of a task that the model has not
    learned from, and how many there are.
    """
    trained = load_trained(model_folder("pretrained"), with_code=True)
    every, code = load_samples(campaign), read_machine_code(campaign)
    samples = held_out_part(trained, every)
    is_compiled = np.any([has_code(samples, table) for table in code], axis=0)
    known, samples = len(every) - len(samples), samples.take(is_compiled)
    fast = trained.estimate(samples)
    unknown = np.full(len(samples), np.nan)
    median_s = np.full(len(samples), np.median(samples.latency_s))
    constant = replace(fast, latency_s=median_s, low_s=unknown, high_s=unknown, is_far=None)
    facts = {
        "programs": len(samples), "tasks": len(np.unique(samples.task_id)),
        "known": known, "device": samples.devices[0].name,
    }  # fmt: skip
    tiers = judge_tiers(trained, samples, code, fast)
    return {"constant": tier_figures(samples, constant), **tiers}, facts


def _kept(line: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of a line as the page keeps them: with 95 % intervals over tasks."""
    found = {key: [line[key], *line[f"{key}_interval"]] for key in ("mape", "mean_log_error")}
    found |= {key: line[key] for key in ("median_ape", "median_ratio")}
    coverage = line["inside_interval"]
    return found if coverage is None else {**found, "coverage": coverage}
