"""Trains by the names of devices in a fresh clone.

The checkout is cloned (nothing is beside the clone, this Python runs in it), `python
scripts/train.py --device LABEL` runs for each label, and wall and CPU time are kept with what
metrics.json says; a training that was stopped continues.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from cdmpp.machine import processor_name
from cdmpp.text import markdown_table, percent_text
from lab.journal import Journal
from lab.pages import filled, write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp

_METRICS = {
    "mape": "MAPE", "median_ape": "median APE", "mean_log_error": "log error",
    "median_ratio": "median ratio", "spearman_by_task": "Spearman", "top1_score": "top-1",
    "top5_score": "top-5",
}  # fmt: skip


def experiment(
    labels: tuple[str, ...] = ("v100", "k80", "mi50", "a100", "t4"),
    fetched: str = "",
    work: Path = ROOT / "cache" / "data-by-name",
) -> None:
    """Trains for every label that is not done, and writes the page of all.

    Args:
        fetched: mirror of the T4's logs: its records are fetched first (`cdmpp dataset fetch t4
            --from MIRROR`), in a clone of its own; empty = not.
    """
    journal = Journal(work / "trainings.jsonl")
    for label in labels:
        journal.cell(label, partial(run, label, work))
    if fetched:
        journal.cell("t4-fetched", partial(run, "t4", work, fetched))
    report(list(journal.cells().values()))


def run(label: str, work: Path, fetched: str = "") -> dict[str, Any]:
    """Trains for one label in a fresh clone and returns what came of it."""
    name = f"{label}-fetched" if fetched else label
    clone = work.resolve() / ("clone-fetched" if fetched else "clone")
    if not clone.is_dir():
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    commands = [["scripts/train.py", "--device", label, "--out", f"runs/{name}"]]
    if fetched:
        commands.insert(0, ["-m", "cdmpp.cli.main", "dataset", "fetch", label, "--from", fetched])
    steps = [timed(command, clone) for command in commands]
    metrics = json.loads((clone / "runs" / name / "metrics.json").read_text("utf-8"))
    origin = stamp("", schemas=PROGRAMS)
    return {"label": label, "steps": steps, "metrics": metrics, "stamp": origin}


def timed(command: list[str], clone: Path) -> dict[str, Any]:
    """Runs a command of the clone; returns it with its output, wall and CPU seconds."""
    environment = {
        **os.environ, "PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1",
        "CDMPP_LEGACY_ENV": str(clone / ".venv-legacy"),
    }  # fmt: skip
    load, before, began = os.getloadavg()[0], _cpu_s(), time.monotonic()
    done = subprocess.run(
        [sys.executable, *command], cwd=clone, env=environment, text=True, capture_output=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return {
        "command": f"python {' '.join(command)}", "wall_s": time.monotonic() - began,
        "cpu_s": _cpu_s() - before, "load_before": load, "load_after": os.getloadavg()[0],
        "stdout": done.stdout.replace(f"{clone}/", ""),
        "stderr": done.stderr.replace(f"{clone}/", ""),
    }  # fmt: skip


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(found: list[dict[str, Any]]) -> None:
    """Writes the page of what is done."""
    found.sort(key=lambda one: ("unmeasured" in one["metrics"], len(one["steps"]), one["label"]))
    texts = [_table(found), *(_left_out(one) for one in found if "unmeasured" in one["metrics"])]
    texts += [_transcript(one) for one in found if len(one["steps"]) > 1]
    parts = [one["stamp"] for one in found]
    origin = stamp("python -m lab run data-by-name", schemas=PROGRAMS, parts=parts)
    values = {"runs": [_without_text(one) for one in found]}
    machine = f"{processor_name()}, {os.cpu_count()} cores"
    text = filled("data-by-name", machine=machine, runs="\n\n".join(texts))
    write_page("data-by-name", text, values, origin)


def _table(found: list[dict[str, Any]]) -> str:
    titles = ["command", "wall", "CPU", "load", "judged on", "n", "model", *_METRICS.values()]
    rows = []
    for one in found:
        metrics, last = one["metrics"], one["steps"][-1]
        unmeasured = metrics.get("unmeasured")
        lines = unmeasured["mean"] if unmeasured else metrics["test"]
        judged = f"{len(unmeasured['left_out'])} devices left out" if unmeasured else "new tasks"
        wall, cpu = (sum(step[key] for step in one["steps"]) for key in ("wall_s", "cpu_s"))
        head = [
            f"`--device {one['label']}`{' after its fetch' if len(one['steps']) > 1 else ''}",
            f"{wall / 60:.0f} min", f"{cpu / 60:.1f} min",
            f"{last['load_before']:.0f} to {last['load_after']:.0f}", judged,
        ]  # fmt: skip
        for line, values in lines.items():
            rows.append([*head, f"{values['n']:,}", line, *_cells(values)])
            head = [""] * len(head)
    return markdown_table(titles, rows)


def _left_out(one: dict[str, Any]) -> str:
    facts, model = one["metrics"]["unmeasured"], one["metrics"]["model"]
    titles = ["left out", "n", "model", *_METRICS.values(), "in the interval", "a factor each way"]
    rows = []
    for label, left_out in facts["left_out"].items():
        for line, values in left_out["test"].items():
            width = left_out["interval_log_width"] if line == model else None
            held = left_out["interval_coverage"] if line == model else None
            rows.append([
                label, f"{values['n']:,}", line, *_cells(values), percent_text(held),
                "-" if width is None else f"{2.718281828 ** (width / 2):.1f}",
            ])  # fmt: skip
    return (
        f"## What is said of {', '.join(facts['devices'])}\n\nTrained on all programs of "
        f"{', '.join(facts['sources'])}; judged on each while it was left out, by a training on at "
        f"most {facts['programs_per_device']:,} programs of each other device and on none of the "
        "tasks that judge. Intervals are those that the other left-out devices give.\n\n"
        + markdown_table(titles, rows)
    )


def _transcript(one: dict[str, Any]) -> str:
    text = []
    for step in one["steps"]:
        text += [f"$ {step['command']}", *_some(step["stderr"]), step["stdout"].rstrip(), ""]
    body = "\n".join(text)
    return f"## {one['label']} fetched, the whole way\n\n```\n{body}```"


def _some(stderr: str) -> list[str]:
    """Returns the lines of progress without those in between."""
    lines = stderr.splitlines()
    heads = [line.split(":")[0] for line in lines]
    return [
        line
        for number, line in enumerate(lines)
        if number + 1 == len(lines) or heads[number] != heads[number + 1]
    ]


def _cells(values: dict[str, Any]) -> list[str]:
    return [
        percent_text(values[key]) if key in ("mape", "median_ape") else f"{values[key]:.3f}"
        for key in _METRICS
    ]


def _without_text(one: dict[str, Any]) -> dict[str, Any]:
    keys = ("command", "wall_s", "cpu_s", "load_before", "load_after")
    return {**one, "steps": [{key: step[key] for key in keys} for step in one["steps"]]}
