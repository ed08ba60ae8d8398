"""Sections of a leaderboard: tables and plots of a data set and split, or of a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cdmpp.metrics import mean_and_interval
from cdmpp.report.page import Section
from cdmpp.report.tables import Table, metric_table, plain_table
from lab.suites.leaderboard.board import (
    LEADERBOARD_COLUMNS,
    Board,
    FamilyScores,
    ModelScores,
    Seeds,
    model_scores,
)
from lab.suites.leaderboard.matrix import matrix_table
from lab.suites.leaderboard.plots import Estimate, budget_curves, line_bars
from lab.suites.leaderboard.verdict import Verdict
from lab.suites.options import BUDGET_SUFFIX, FINETUNE
from lab.suites.plan import REFERENCES, is_reference


def overall_section(board: Board) -> Section:
    """Returns one matrix with the mean over devices of every data set and split."""
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
    """Returns the section of a data set and split of a cross-model suite."""
    title = f"{scores.dataset}, by {scores.split}"
    tables = [
        _metrics(board, scores.device(label), name, _sizes(scores, board))
        for label, name in (("mean", "Mean over devices"), ("all", "All devices pooled"))
    ]
    note = f"MAPE / Spearman within a task, by {scores.split}; {_n_text(scores.device('all'))}."
    for prefix, name in (("operator:", "By operator kind"), ("latency:", "By measured latency")):
        groups = {
            f"{group.removeprefix(prefix)} (n {_mean_n(scores.group(group))})": scores.group(group)
            for group in scores.groups(prefix)
        }
        if groups:
            tables.append(
                matrix_table(name, note, list(scores.results), groups, subject=board.suite.subject)
            )
    tables += [
        _metrics(board, scores.device(label), label, _sizes(scores, board))
        for label in scores.devices()
    ]
    costs = {line: list(seeds.values()) for line, seeds in scores.results.items()}
    tables.append(_cost_table(costs))
    return Section(
        title=title,
        note=_split_note(scores),
        verdict=[finding.text for finding in findings if "place" not in finding.values],
        folded=("Where a baseline is ahead", [f.text for f in findings if "place" in f.values]),
        plots=_bars(board, scores),
        tables=tables,
    )


def family_section(board: Board, scores: FamilyScores, findings: Sequence[Verdict]) -> Section:
    """Returns the section of a family of a cross-device suite."""
    family = scores.family
    lines = list(scores.results)
    headline = scores.targets_with(None)
    tables = []
    subject = next((name for name in lines if name.startswith(FINETUNE)), "")
    budgets: list[int | None] = [None, *_budgets(scores)]
    for budget in budgets:
        targets = scores.targets_with(budget)
        found = {
            line: seeds
            for line in lines
            if (seeds := scores.mean_over_targets(line, budget, targets))
            and (budget != 0 or _is_without_budget(line))
        }
        name = "Headline budget of each target" if budget is None else f"{budget} tasks"
        if found and targets:
            note = f"Mean over {len(targets)} targets: " + ", ".join(
                f"{t} ({scores.headline[t]} tasks)" if budget is None else t for t in targets
            )
            tables.append(_metrics(board, found, name, note, subject=subject))
    plots = [_mean_curve(scores, lines)] if headline else []
    for target in family.targets:
        groups = {
            f"{budget} tasks": {line: scores.of_target(line, target, budget) for line in lines}
            for budget in [0, *scores.budgets[target]]
        }
        if not any(any(lines_of.values()) for lines_of in groups.values()):
            continue
        note = (
            f"MAPE ± 95 % interval / Spearman; trained on {', '.join(family.sources_of(target))}; "
            f"{_n_text(groups['0 tasks'])}. Lines without a budget are the same in all columns."
        )
        tables.append(matrix_table(f"Target {target}", note, lines, groups, subject=subject))
        plots.append(_target_curve(scores, lines, target))
    costs = {
        line: [
            value
            for by_target in by_budget.values()
            for seeds in by_target.values()
            for value in seeds.values()
        ]
        for line, by_budget in scores.results.items()
    }
    tables.append(_cost_table(costs))
    return Section(
        title=f"{scores.dataset}, leave one out of {family.name}",
        note=(
            f"Targets {', '.join(family.targets)}; each is left out of the sources "
            f"{', '.join(family.sources or family.targets)}."
        ),
        verdict=[finding.text for finding in findings],
        plots=plots,
        tables=tables,
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


def _sizes(scores: ModelScores, board: Board) -> str:
    few = board.suite.few_workloads
    return (
        f"Split by {scores.split}, seeds {_seeds_text(board.suite.seeds)}; devices with fewer than "
        f"{few} tested workloads are not in the mean"
    )


def _split_note(scores: ModelScores) -> str:
    values = next(iter(scores.results.values()))
    return " ".join(f"Seed {seed}: {value['split']}." for seed, value in sorted(values.items()))


def _n_text(lines: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
    seeds = next((s for s in lines.values() if s), {})
    counts = ", ".join(f"{values['n']:,}" for _, values in sorted(seeds.items()))
    return f"n = {counts} by seed"


def _mean_n(lines: Mapping[str, Seeds]) -> str:
    seeds = next((s for s in lines.values() if s), {})
    return f"{np.mean([values['n'] for values in seeds.values()]):,.0f}" if seeds else "0"


def _seeds_text(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _cost_table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Returns what training and prediction cost.

    Args:
        results: line -> what cell.json holds, one entry a cell.
    """
    rows = []
    for line, cells in results.items():
        values = [value for value in cells if "training_cpu_s" in value]
        if not values:
            continue
        training = [value["training_cpu_s"] for value in values]
        speed = float(np.mean([value["predictions_per_cpu_s"] for value in values]))
        # A budget counts whole: what is held out of it has been measured too.
        parts = [
            value["budget"].values() if "budget" in value else [value["parts"].get("train", {})]
            for value in values
        ]
        samples = float(np.mean([sum(p.get("samples", 0) for p in part) for part in parts]))
        rows.append(
            [line, f"{len(values)}", f"{samples:,.0f}" if samples else "-",
             f"{np.mean(training):.1f}", f"{max(training):.1f}", f"{speed:,.0f}"]
        )  # fmt: skip
    header = (
        "", "cells", "training samples", "CPU s of training", "longest", "predictions per CPU s",
    )  # fmt: skip
    note = (
        "CPU seconds of the process, one thread; predictions are of the test part, features read "
        "from disk. Zero-shot lines cost a training once for all their targets."
    )
    return plain_table(header, rows, title="Cost", note=note)


def _bars(board: Board, scores: ModelScores) -> list[tuple[str, str]]:
    plots = []
    means = scores.device("mean")
    for metric, label, is_percent in (
        ("mape", "MAPE (%), mean over devices", True),
        ("spearman_by_task", "Spearman within a task, mean over devices", False),
    ):
        values = _estimates(means, metric)
        if values:
            svg = line_bars(
                values,
                subject=board.suite.subject,
                references=[line for line in values if is_reference(line)],
                label=label,
                is_percent=is_percent,
            )
            cut = " Very long bars are cut." if is_percent else ""
            plots.append((f"{label}; 95 % interval over seeds.{cut}", svg))
    return plots


def _estimates(lines: Mapping[str, Seeds], metric: str) -> dict[str, Estimate]:
    found = {}
    for line, seeds in lines.items():
        values = [entry[metric] for entry in seeds.values() if entry.get(metric) is not None]
        if values:
            found[line] = mean_and_interval(values)
    return found


def _budgets(scores: FamilyScores) -> list[int]:
    return sorted({0, *(b for budgets in scores.budgets.values() for b in budgets)})


def _is_without_budget(line: str) -> bool:
    return not (
        line in ("scratch", "one-factor") or line.startswith(FINETUNE) or BUDGET_SUFFIX in line
    )


def _mean_curve(scores: FamilyScores, lines: Sequence[str]) -> tuple[str, str]:
    ticks = {
        budget: f"{budget}\n({len(scores.targets_with(budget))} targets)"
        for budget in _budgets(scores)
    }
    curves: dict[str, dict[int, Estimate]] = {}
    for line in lines:
        if line in REFERENCES or (line.endswith("zero-shot") and line != "zero-shot"):
            continue
        for budget in ticks:
            if (budget == 0) != (line == "zero-shot"):
                continue
            found = scores.mean_over_targets(line, budget, scores.targets_with(budget))
            if found:
                values = [seed["mape"] for seed in found.values()]
                curves.setdefault(line, {})[budget] = mean_and_interval(values)
    return (
        "Error against budget, mean over the targets that allow the budget; 95 % interval over "
        "seeds.",
        budget_curves(_from_zero_shot(curves), {}, title=scores.family.name, ticks=ticks),
    )


def _target_curve(scores: FamilyScores, lines: Sequence[str], target: str) -> tuple[str, str]:
    ticks = {budget: str(budget) for budget in [0, *scores.budgets[target]]}
    curves: dict[str, dict[int, Estimate]] = {}
    levels: dict[str, float] = {}
    for line in lines:
        for budget in ticks:
            seeds = scores.results[line].get(budget, {}).get(target, {})
            values = [
                value["metrics"]["all"]["mape"]
                for value in seeds.values()
                if value["metrics"]["all"]["mape"] is not None
            ]
            if not values:
                continue
            if line in REFERENCES:
                levels[line] = mean_and_interval(values)[0]
            elif not (line.endswith("zero-shot") and line != "zero-shot"):
                curves.setdefault(line, {})[budget] = mean_and_interval(values)
    svg = budget_curves(_from_zero_shot(curves), levels, title=target, ticks=ticks)
    return f"Error against budget on {target}.", svg


def _from_zero_shot(
    curves: dict[str, dict[int, Estimate]],
) -> dict[str, dict[int, Estimate]]:
    """Starts the curves of the fine-tuned lines at the zero-shot error, which they start from."""
    start = curves.get("zero-shot", {}).get(0)
    if start is None:
        return curves
    return {
        line: {0: start, **curve} if line.startswith(FINETUNE) and len(curve) > 1 else curve
        for line, curve in curves.items()
    }
