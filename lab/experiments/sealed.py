"""The shipped model on kernels that no choice has seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.metrics import mean_and_interval
from cdmpp.predict.corrections import MachineCodeCorrection
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.saved_model import task_digest
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.text import markdown_table, percent_text
from lab.pages import filled, write_page
from lab.paths import ROOT
from lab.stamp import COMPILED, stamp

LINES = {
    "constant": "one latency for everything (their own median, known only afterwards)",
    "fast": "fast tier: the shipped model, nothing compiled",
    "compiled": "compiled tier: the shipped model and the machine code",
}
#: Upper ends of ranges of measured seconds, and their names.
_RANGES = (
    (0.0, ""), (1e-5, "under 10 µs"), (1e-4, "10 to 100 µs"), (1e-3, "0.1 to 1 ms"),
    (1e-2, "1 to 10 ms"), (math.inf, "over 10 ms"),
)  # fmt: skip


def experiment(
    campaign: Path = ROOT / "cache" / "data" / "sealed2-cpu",
    opened: Path = ROOT / "cache" / "data" / "sealed-cpu",
) -> None:
    """Writes the page (after `make sealed`).

    Args:
        campaign: kernels that no choice has seen.
        opened: such that an earlier model was judged by.
    """
    sealed, before = _section(campaign), _section(opened)
    text = filled(
        "sealed", table=sealed["table"], by_time=sealed["by_time"],
        opened_table=before["table"], opened_by_time=before["by_time"],
    )  # fmt: skip
    found = stamp("python -m lab run sealed", schemas=COMPILED, models=[PRETRAINED])
    write_page("sealed", text, {**sealed, "opened": before}, found)


def _section(campaign: Path) -> dict[str, Any]:
    said, facts = predicted(campaign)
    lines = {name: judged(said["measured"], said[name]) for name in LINES}
    for name in ("fast", "compiled"):
        inside = (said[f"{name}_low"] <= said["measured"]) & (
            said["measured"] <= said[f"{name}_high"]
        )
        lines[name]["coverage"] = float(inside.mean())
    heads = ["what is said", "MAPE", "median APE", "log error", "median ratio", "in its interval"]
    rows = [
        [words, *shown(lines[name]),
         percent_text(lines[name]["coverage"]) if "coverage" in lines[name] else "-"]
        for name, words in LINES.items()
    ]  # fmt: skip
    by_time = markdown_table(["measured", "programs", "fast tier, MAPE", "compiled tier, MAPE"],
                             list(rows_by_time(said)))  # fmt: skip
    return {**facts, "lines": lines, "table": markdown_table(heads, rows), "by_time": by_time}


def predicted(campaign: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Returns seconds, measured and said, of every program of a task that the model has not learned
    from, and how many there are.
    """
    trained = load_trained(model_folder("pretrained"), with_code=True)
    samples = load_samples(campaign)
    names = samples.programs.tasks
    is_new = np.array(
        [
            task_digest(str(names[task])) not in trained.card.training_tasks
            for task in samples.task_id
        ]
    )
    (table,) = read_machine_code(campaign)
    programs = samples.programs.program_id[samples.program]
    is_compiled = np.array([str(name) in table.columns for name in programs])
    samples, programs = samples.take(is_new & is_compiled), programs[is_new & is_compiled]
    code = np.array([table.columns[str(name)] for name in programs], np.float32)
    fast = trained.estimate(samples)
    compiled = MachineCodeCorrection(code).apply(trained, samples, fast)
    facts = {
        "programs": len(samples), "tasks": len(np.unique(samples.task_id)),
        "known": int((~is_new).sum()), "device": samples.devices[0].name,
    }  # fmt: skip
    said = {
        "measured": samples.latency_s,
        "constant": np.full(len(samples), np.median(samples.latency_s)),
        "fast": fast.latency_s, "compiled": compiled.latency_s,
        "fast_low": fast.low_s, "fast_high": fast.high_s,
        "compiled_low": compiled.low_s, "compiled_high": compiled.high_s,
    }  # fmt: skip
    return said, facts


def judged(measured_s: NDArray[Any], said_s: NDArray[Any]) -> dict[str, Any]:
    """Returns the figures of a line, with 95 % intervals over programs (one of each task)."""
    log_ratio = np.log(said_s / measured_s)
    return {
        "mape": _interval(np.abs(np.expm1(log_ratio))),
        "median_ape": float(np.median(np.abs(np.expm1(log_ratio)))),
        "mean_log_error": _interval(np.abs(log_ratio)),
        "median_ratio": float(np.exp(np.median(log_ratio))),
    }


def rows_by_time(said: dict[str, NDArray[Any]]) -> Iterator[list[str]]:
    """Yields a row a range of measured times."""
    for (low_s, _), (high_s, name) in pairwise(_RANGES):
        rows = (low_s <= said["measured"]) & (said["measured"] < high_s)
        shares = (_mape(said[line][rows], said["measured"][rows]) for line in ("fast", "compiled"))
        yield [name, str(int(rows.sum())), *map(percent_text, shares)]


def _mape(said_s: NDArray[Any], measured_s: NDArray[Any]) -> float:
    return float(np.abs(said_s / measured_s - 1.0).mean())


def _interval(values: NDArray[Any]) -> list[float]:
    mean, half = mean_and_interval(values.tolist())
    return [mean, mean - (half or 0.0), mean + (half or 0.0)]


def shown(line: dict[str, Any]) -> Sequence[str]:
    """Returns the cells of a line."""
    mape, log_error = line["mape"], line["mean_log_error"]
    return [
        f"{percent_text(mape[0])} [{percent_text(mape[1])}, {percent_text(mape[2])}]",
        percent_text(line["median_ape"]),
        f"{log_error[0]:.3f} [{log_error[1]:.3f}, {log_error[2]:.3f}]",
        f"{line['median_ratio']:.2f}",
    ]
