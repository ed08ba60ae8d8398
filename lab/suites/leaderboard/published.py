"""Scores of whole held-out networks, in both definitions in use, beside published ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from cdmpp.files.places import package_folder
from cdmpp.metrics import mean_metrics
from cdmpp.report.page import Section
from cdmpp.report.tables import Column, Table, metric_table, plain_table
from lab.suites.leaderboard.board import Board, ModelScores
from lab.suites.plan import REFERENCES

#: Split whose cells have scores of networks.
TEST_TASKS = "test-tasks"
#: Key of a cell's metrics that holds them (`lab.suites.judge.judge_networks`).
NETWORKS = "test_networks"
SCORE_COLUMNS = (
    Column("seeds", "seeds", "count", None),
    Column("n", "n", "count", None),
    Column("tasks", "tasks", "count", None),
    Column("mean_top1", "top-1, mean", "ratio", "high"),
    Column("mean_top5", "top-5, mean", "ratio", "high"),
    Column("pooled_top1", "top-1, pooled", "ratio", "high"),
    Column("pooled_top5", "top-5, pooled", "ratio", "high"),
)
_NOTE = (
    "Two definitions are in use and are not comparable: the unweighted mean of the networks' "
    "scores (Tenset), and one sum of latencies over all networks above, one below (TLP). Both are "
    "here. A score says how near the best of a task's programs the k predicted fastest come, so it "
    "depends on how many programs a task has: others drew from about 4,000, and what few programs "
    "allow is what the line `constant` reaches, which ranks at random."
)


def published_section(board: Board, scores: ModelScores) -> Section:
    """Returns the section of a split by test tasks: means over devices, what others report, a
    table a device.
    """
    means = {
        line: [
            mean_metrics(
                [{n: v for n, v in one.items() if n != "networks"} for one in found.values()]
            )
            for value in seeds.values()
            if (found := value["metrics"].get(NETWORKS))
        ]
        for line, seeds in scores.results.items()
    }
    tables = [
        metric_table(
            "Mean over devices", {line: found for line, found in means.items() if found},
            model=board.suite.subject, references=REFERENCES, columns=SCORE_COLUMNS,
            note=f"Every device counts the same: {', '.join(scores.devices())}.",
        ),
        _published_table(),
    ]  # fmt: skip
    for label in scores.devices():
        lines = {
            line: found
            for line, seeds in scores.results.items()
            if (
                found := [
                    one
                    for value in seeds.values()
                    if (one := value["metrics"].get(NETWORKS, {}).get(label))
                ]
            )
        }
        if lines:
            tables.append(
                metric_table(
                    f"Networks on {label}", lines, model=board.suite.subject,
                    references=REFERENCES, columns=SCORE_COLUMNS, note=_networks_text(lines),
                )
            )  # fmt: skip
    return Section(f"{scores.dataset}: scores of the test networks", _NOTE, tables=tables)


def _networks_text(lines: Mapping[str, list[dict[str, Any]]]) -> str:
    networks = next(iter(lines.values()))[0]["networks"]
    return ", ".join(f"{name} ({entry['tasks']} tasks)" for name, entry in networks.items())


def published_lines() -> list[dict[str, Any]]:
    """Returns what others published: `device`, `line`, `top1`, `top5` and `source`; `definition`
    where it is known.
    """
    path = package_folder("lab.suites.leaderboard") / "published.yaml"
    lines: list[dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))
    return lines


def _published_table() -> Table:
    def score(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    return plain_table(
        ["", "device", "top-1", "top-5", "definition", "source"],
        [
            [entry["line"], entry["device"], score(entry["top1"]), score(entry.get("top5")),
             entry.get("definition", "not known"), entry["source"]]
            for entry in published_lines()
        ],
        title="Published",
        note="Trained and tested on the same five networks, on other devices and far more "
        "programs; differences of 0.01 are noise of training.",
    )  # fmt: skip
