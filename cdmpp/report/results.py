"""Results of a suite over seeds: a tidy CSV, a JSON with its origin, Markdown and one HTML page."""

from __future__ import annotations

import csv
import io
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdmpp.metrics import METRIC_NAMES
from cdmpp.report.page import NOTES, Page, render_page
from cdmpp.report.tables import COLUMNS, Group, markdown_table, metric_group
from cdmpp.training._files import write_json, write_text
from cdmpp.training.benchmark import GridResult
from cdmpp.training.run import versions

CSV_COLUMNS = (
    "suite", "dataset", "split", "device", "group", "model", "seed", "metric", "value", "n",
)  # fmt: skip


@dataclass(frozen=True)
class SuiteOrigin:
    """Where a suite's numbers are from.

    Attributes:
        suite: name, e.g. `by-task`.
        dataset: name of the data set's folder.
        data_hash: digest of its tables.
        command: the command line.
        model: kind that is the subject.
    """

    suite: str
    dataset: str
    data_hash: str
    command: str
    model: str


def write_results(grid: GridResult, origin: SuiteOrigin, directory: Path) -> list[Path]:
    """Writes SUITE.csv, .json, .md and .html into `directory` and returns their paths."""
    groups = suite_groups(grid, origin.model)
    paths = [directory / f"{origin.suite}.{suffix}" for suffix in ("csv", "json", "md", "html")]
    write_text(paths[0], _csv(grid, origin))
    write_json(
        paths[1],
        {
            "suite": origin.suite,
            "dataset": origin.dataset,
            "data_hash": origin.data_hash,
            "command": origin.command,
            "commit": _commit(),
            "versions": versions(),
            "machine": _machine(),
            "seeds": list(grid.seeds),
            "splits": grid.splits,
            "parts": grid.parts,
            "training_s": grid.training_s,
            "test": {
                name: dict(zip(map(str, grid.seeds), seeds, strict=True))
                for name, seeds in grid.lines.items()
            },
        },
    )
    write_text(paths[2], _markdown(grid, origin, groups))
    write_text(paths[3], render_page(_page(grid, origin, groups)))
    return paths


def suite_groups(grid: GridResult, model: str) -> list[Group]:
    """Returns mean and 95 % interval over the seeds, all devices together first, then each."""
    devices = sorted(
        {label for seeds in grid.lines.values() for s in seeds for label in s["by_device"]}
    )
    groups = [metric_group("all devices", grid.lines, model=model)]
    for device in devices:
        lines = {
            name: [seed["by_device"][device] for seed in seeds if device in seed["by_device"]]
            for name, seeds in grid.lines.items()
        }
        groups.append(metric_group(device, lines, model=model))
    return groups


def _csv(grid: GridResult, origin: SuiteOrigin) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for name, seeds in grid.lines.items():
        for seed, values, split in zip(grid.seeds, seeds, grid.splits, strict=True):
            for device, metrics in [("all", values), *values["by_device"].items()]:
                for metric in (*METRIC_NAMES[1:], "pairwise_accuracy"):
                    value = metrics[metric]
                    writer.writerow(
                        [
                            origin.suite, origin.dataset, split["kind"], device, "test", name, seed,
                            metric, "" if value is None else repr(value), metrics["n"],
                        ]
                    )  # fmt: skip
    return text.getvalue()


def _markdown(grid: GridResult, origin: SuiteOrigin, groups: Sequence[Group]) -> str:
    lines = [
        f"# {origin.suite}: {origin.dataset}",
        "",
        _table_note(grid),
        "",
        f"Made by `{origin.command}`, data hash `{origin.data_hash[:16]}`.",
        "",
    ]
    for group in groups:
        lines += [f"## {group.title}", "", markdown_table(group), ""]
    lines += ["## How to read it", "", *(f"- {note}" for note in NOTES)]
    lines.append("- Values are means over the seeds ± the half width of their 95 % interval.")
    return "\n".join(lines) + "\n"


def _page(grid: GridResult, origin: SuiteOrigin, groups: Sequence[Group]) -> Page:
    own = next(row for row in groups[0].rows if row.role == "model")
    texts = {column.key: cell.text for column, cell in zip(COLUMNS, own.cells, strict=True)}
    minutes = sum(sum(values) for values in grid.training_s.values()) / 60
    return Page(
        title=f"{origin.suite}: {origin.model} on {origin.dataset}",
        lead=f"Mean of {len(grid.seeds)} seeds; every seed draws its own split and its own model.",
        warnings=[],
        tiles=[
            (texts["median_ape"], "median error"),
            (texts["mape"], "mean error (MAPE)"),
            (texts["spearman_by_task"], "Spearman within a task"),
            (texts["top5_score"], "top-5 score"),
        ],
        table_title="Test parts",
        table_note=_table_note(grid),
        groups=groups,
        plots=[],
        command=origin.command,
        facts=[
            ("dataset", origin.dataset),
            ("data hash", origin.data_hash),
            ("seeds", ", ".join(map(str, grid.seeds))),
            ("training time", f"{minutes:.1f} minutes in all"),
            ("commit", _commit() or "unknown"),
            ("versions", ", ".join(f"{k} {v}" for k, v in versions().items())),
            ("machine", ", ".join(f"{k} {v}" for k, v in _machine().items())),
        ],
    )


def _table_note(grid: GridResult) -> str:
    sizes = "; ".join(
        f"seed {seed}: {parts['train']['samples']:,} / {parts['validation']['samples']:,} / "
        f"{parts['test']['samples']:,} samples of {parts['train']['tasks']} / "
        f"{parts['validation']['tasks']} / {parts['test']['tasks']} tasks"
        for seed, parts in zip(grid.seeds, grid.parts, strict=True)
    )
    return (
        f"Split by {grid.splits[0]['kind']}; mean over {len(grid.seeds)} seeds ± half width of "
        f"the 95 % "
        f"interval, n and tasks means too. Training / validation / test: {sizes}."
    )


def _commit() -> str | None:
    """Returns the commit of the checkout that this package is in, if it is in one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _machine() -> dict[str, str]:
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": str(os.cpu_count()),
    }
