"""Writes a suite's leaderboard: SUITE.csv, .json and .md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.config import to_dict
from cdmpp.report.page import Page, Section
from cdmpp.report.tables import plain_table
from lab.pages import write_page
from lab.stamp import PROGRAMS, stamp
from lab.suites.leaderboard.board import Board, family_scores, model_scores
from lab.suites.leaderboard.rows import tidy_rows
from lab.suites.leaderboard.sections import family_section, model_section, overall_section
from lab.suites.leaderboard.verdict import (
    Verdict,
    overall_transfer_findings,
    peer_findings,
    transfer_findings,
)
from lab.suites.noise_floor import FORMULA

_NOTES = (
    "APE is |predicted - measured| / measured. MAPE is its mean, which a few tiny operators can "
    "dominate; the median APE is the typical error. Look at both.",
    "Spearman is the rank correlation of predicted and measured latency among the programs of one "
    "task on one device, averaged over tasks with at least four programs; pairs is the share of "
    "pairs of such programs in the right order.",
    "top-k is the summed latency of the best programs over that of the best among the k predicted "
    "fastest, weighted by how often the networks call each task; 1 is perfect. regret is how much "
    "longer the program predicted fastest takes than the best of its task, on average over tasks.",
    "oracle-task-median looks at the answers: it knows each test task's median latency on the "
    "device, and nothing of its schedules. It and the noise floor are out of competition.",
    FORMULA,
    "constant: median latency of the training part on that device. roofline: max(operations / "
    "peak, bytes / bandwidth) times one factor per device.",
    "transformer-0-layers is the transformer without its encoder: what attention is worth.",
    "random-score ranks at random and has no times: what a ranking is worth that knows nothing. It "
    "is out of competition too.",
    "The interval of a ratio of MAPEs, which decides whether a goal is met, is over other tasks "
    "(networks where they are held out; on left-out devices also over devices) and seeds, drawn "
    "with replacement: the whole of it must be below the goal.",
    "Values are means over seeds ± the half width of their 95 % interval (Student's t); n and "
    "tasks are means too. A seed draws its own split and its own model.",
)
_MODEL_NOTES = (
    "Mean over devices: every device counts the same, whatever its number of programs; devices "
    "with too few tested workloads are left out of it (the tables say how many are asked for).",
)
_DEVICE_NOTES = (
    "The tasks of the left-out device are halved by the seed: a budget is chosen from one half, "
    "the other half judges every method. The sources may hold the same programs on other devices.",
    "zero-shot: pre-trained on the sources, nothing measured on the target. finetune-SAMPLER: the "
    "same model adapted to the budget's tasks as SAMPLER chose them. scratch: the same kind of "
    "model on the budget alone. one-factor: the zero-shot predictions of the nearest source device "
    "times the median ratio on the budget; nearest is the one that fits the budget best. "
    "KIND-budget: that kind on the budget alone. KIND-zero-shot: that kind trained on the sources.",
    "Methods other than finetune-* use the tasks that kmeans chooses, so all see the same budget. "
    "scratch and KIND-budget hold out a fifth of a budget to know when to stop, from five tasks on "
    "whole tasks; fine-tuning holds out parts of it in turn.",
)


@dataclass(frozen=True)
class Leaderboard:
    """A board with its page.

    Attributes:
        board: its results.
        page: the page.
        findings: title of a section -> its verdicts.
    """

    board: Board
    page: Page
    findings: dict[str, list[Verdict]]


def leaderboard(board: Board) -> Leaderboard:
    """Returns the page of a board; the page lists what is missing."""
    sections: list[Section] = []
    findings: dict[str, list[Verdict]] = {}
    suite = board.suite
    if suite.protocol == "cross-model":
        for scores in model_scores(board):
            found = peer_findings(board, scores)
            section = model_section(board, scores, found)
            sections.append(section)
            findings[section.title] = found
    else:
        families = family_scores(board)
        for family in families:
            found = transfer_findings(family, suite.goals, suite.methods)
            section = family_section(board, family, found)
            sections.append(section)
            findings[section.title] = found
        if len(families) > 1:
            found = overall_transfer_findings(families, suite.goals, suite.methods)
            note = "Every family below, each left-out device at its headline budget."
            sections.insert(0, Section("All families", note, [one.text for one in found]))
            findings["All families"] = found
    if suite.protocol == "cross-model" and len(findings) > 1:
        sections.insert(0, overall_section(board))
    page = Page(
        title=f"Leaderboard: {suite.name}",
        lead=_lead(board),
        warnings=_warnings(board),
        sections=[*sections, *_problems(board)],
        notes=(*_NOTES, *(_MODEL_NOTES if suite.protocol == "cross-model" else _DEVICE_NOTES)),
        facts=_facts(board),
    )
    return Leaderboard(board, page, findings)


def write_leaderboard(found: Leaderboard, directory: Path) -> list[Path]:
    """Writes the three files and returns their paths.

    Raises:
        DataError: a file cannot be written.
    """
    name = found.board.suite.name
    paths = [directory / f"{name}.{suffix}" for suffix in ("csv", "json", "md")]
    hashes = {name: facts.data_hash for name, facts in found.board.facts.items()}
    cells = [result.value.get("stamp") for result in found.board.results.values()]
    origin = stamp(found.board.command, schemas=PROGRAMS, data=hashes, parts=cells)
    write_page(
        name, found.page, board_json(found), origin, rows=tidy_rows(found.board), folder=directory
    )
    return paths


def board_json(found: Leaderboard) -> dict[str, Any]:
    """Returns the options, the verdict and the state of every cell."""
    board = found.board
    return {
        "suite": board.suite.name,
        "skipped_datasets": _skipped(board),
        "seeds": list(board.suite.seeds),
        "options": to_dict(board.suite),
        "missing_cells": [cell.id for cell in board.missing],
        "verdict": {
            title: [finding.to_json() for finding in entries]
            for title, entries in found.findings.items()
        },
        "cells": [
            {
                "id": result.cell.id,
                "status": result.status,
                "reason": result.reason,
                **{
                    name: result.value.get(name)
                    for name in ("cpu_s", "training_cpu_s", "predictions_per_cpu_s")
                },
                "parts": result.value.get("parts"),
            }
            for result in board.results.values()
        ],
    }


def _lead(board: Board) -> str:
    suite = board.suite
    done = len(board.results)
    limits = []
    if suite.programs_per_device:
        limits.append(f"at most {suite.programs_per_device:,} programs a device")
    if suite.cpu_s_per_cell:
        limits.append(f"at most {suite.cpu_s_per_cell:.0f} CPU seconds a training")
    text = f"{done} of {len(board.cells)} cells; seeds {', '.join(map(str, suite.seeds))}"
    return f"{'; '.join([text, *limits])}."


def _warnings(board: Board) -> list[str]:
    warnings = []
    if board.missing:
        warnings.append(
            f"{len(board.missing)} of {len(board.cells)} cells are missing (not run, or run with "
            "other options or data): means are over what is finished."
        )
    if skipped := _skipped(board):
        warnings.append(f"Data sets left out because no folder was given: {', '.join(skipped)}.")
    failed = sum(result.status == "failed" for result in board.problems())
    if failed:
        warnings.append(f"{failed} cells failed; the reasons are at the end.")
    return warnings


def _skipped(board: Board) -> list[str]:
    return [entry.name for entry in board.suite.datasets if entry.name not in board.facts]


def _problems(board: Board) -> list[Section]:
    grouped: dict[tuple[str, str, str, str], int] = {}
    for result in board.problems():
        cell = result.cell
        place = f"{cell.dataset}, {cell.target or cell.split}"
        key = (cell.line, result.status, place, result.reason)
        grouped[key] = grouped.get(key, 0) + 1
    if not grouped:
        return []
    rows = [
        [line, status, place, str(count), reason]
        for (line, status, place, reason), count in grouped.items()
    ]
    table = plain_table(["", "status", "where", "cells", "reason"], rows)
    return [Section("Cells without numbers", "Not applicable or failed.", tables=[table])]


def _facts(board: Board) -> list[tuple[str, str]]:
    cpu_s = sum(float(result.value.get("cpu_s", 0.0)) for result in board.results.values())
    return [
        ("seeds", ", ".join(map(str, board.suite.seeds))),
        ("CPU time of all cells", f"{cpu_s / 60:.1f} minutes"),
    ]
