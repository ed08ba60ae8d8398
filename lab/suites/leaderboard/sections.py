"""Sections of a leaderboard: tables of a dataset and split, or of a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp.report.page import Section
from cdmpp.report.tables import Table, metric_table
from lab.suites.leaderboard.board import (
    LEADERBOARD_COLUMNS,
    Board,
    FamilyScores,
    ModelScores,
    Seeds,
    model_scores,
)
from lab.suites.leaderboard.matrix import matrix_table
from lab.suites.leaderboard.verdict import Verdict
from lab.suites.options import FINETUNE
from lab.suites.plan import is_reference


def overall_section(board: Board) -> Section:
    """Returns one matrix with the mean over devices of every dataset and split."""
    every = model_scores(board)
    groups = {f"{s.dataset}, by {s.split}": s.device("mean") for s in every}
    table = matrix_table(
        "Mean over devices",
        f"MAPE ± 95 % interval over seeds, and Spearman within a task; seeds "
        f"{_seeds_text(board.suite.seeds)}; n of every column is in its own section.",
        board.lines(),
        groups,
        subject=board.suite.subject,
    )
    return Section("All data sets", "The sections below have every metric.", tables=[table])


def model_section(board: Board, scores: ModelScores, findings: Sequence[Verdict]) -> Section:
    """Returns the section of a dataset and split of a cross-model suite."""
    few = board.suite.few_workloads
    note = (
        f"Split by {scores.split}, seeds {_seeds_text(board.suite.seeds)}; devices with fewer than "
        f"{few} tested workloads are not in the mean"
    )
    return Section(
        title=f"{scores.dataset}, by {scores.split}",
        note=_split_note(scores),
        verdict=[finding.text for finding in findings],
        tables=[_metrics(board, scores.device("mean"), "Mean over devices", note)],
    )


def family_section(board: Board, scores: FamilyScores, findings: Sequence[Verdict]) -> Section:
    """Returns the section of a family of a cross-device suite."""
    family, targets = scores.family, scores.targets_with(None)
    found = {
        line: seeds
        for line in scores.results
        if (seeds := scores.mean_over_targets(line, None, targets))
    }
    budgets = ", ".join(f"{target} ({scores.headline[target]} tasks)" for target in targets)
    note = f"Mean over {len(targets)} targets: {budgets}"
    subject = next((name for name in scores.results if name.startswith(FINETUNE)), "")
    title = "Headline budget of each target"
    return Section(
        title=f"{scores.dataset}, leave one out of {family.name}",
        note=(
            f"Targets {', '.join(family.targets)}; each is left out of the sources "
            f"{', '.join(family.sources or family.targets)}."
        ),
        verdict=[finding.text for finding in findings],
        tables=[_metrics(board, found, title, note, subject=subject)] if found else [],
    )


def _metrics(
    board: Board, lines: Mapping[str, Seeds], title: str, note: str, *, subject: str = ""
) -> Table:
    return metric_table(
        title,
        {line: list(seeds.values()) for line, seeds in lines.items()},
        model=subject or board.suite.subject,
        references=[line for line in lines if is_reference(line)],
        columns=LEADERBOARD_COLUMNS,
        note=f"{note}; {_n_text(lines)}.",
    )


def _split_note(scores: ModelScores) -> str:
    values = next(iter(scores.results.values()))
    return " ".join(f"Seed {seed}: {value['split']}." for seed, value in sorted(values.items()))


def _n_text(lines: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
    seeds = next((s for s in lines.values() if s), {})
    counts = ", ".join(f"{values['n']:,}" for _, values in sorted(seeds.items()))
    return f"n = {counts} by seed"


def _seeds_text(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
