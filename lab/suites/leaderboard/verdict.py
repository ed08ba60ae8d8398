"""Sentences of the verdict: which line is better, by how much, and whether a goal is met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cdmpp.report.tables import format_value
from lab.suites.leaderboard.board import (
    Board,
    FamilyScores,
    ModelScores,
    Seeds,
    mean_of_common_seeds,
)
from lab.suites.leaderboard.other_tasks import Errors, ratio_interval
from lab.suites.options import FINETUNE, SuiteGoals
from lab.suites.plan import is_reference


@dataclass(frozen=True)
class Verdict:
    """One comparison.

    Attributes:
        text: the sentence.
        is_met: whether the goal is met; None without a goal or without a comparison.
        values: the compared values.
    """

    text: str
    is_met: bool | None
    values: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Returns the verdict as JSON values."""
        return asdict(self)


def peer_findings(board: Board, scores: ModelScores) -> list[Verdict]:
    """Compares the subject's MAPE with that of the best baseline.

    Baselines are all lines except the references, other variants of the subject's kind, and lines
    with `is_peer` false.
    """
    subject = board.suite.subject
    ours = {line.name for line in board.suite.models if not line.is_peer}
    kinds = {cell.line: cell.kind for cell in board.cells}
    means = scores.device("mean")
    if subject not in means:
        return [Verdict(f"{subject} has no result here.", None, {})]
    peers = {
        name: _mape(means[name], _common_seeds(means[name], means[name]))
        for name in means
        if not is_reference(name)
        and name not in {*ours, subject}
        and kinds[name] != kinds[subject]
        and _common_seeds(means[subject], means[name])
    }
    if not peers:
        return []
    best = min(peers, key=peers.__getitem__)
    ours_line, best_line = (
        _Line(title, means[name], scores.errors(name))
        for title, name in ((subject, subject), (f"the best baseline {best}", best))
    )
    goal = board.suite.goals.peer_mape_ratio
    return [_ratio(ours_line, best_line, goal, "mean over devices", are_devices_drawn=False)]


def transfer_findings(
    scores: FamilyScores, goals: SuiteGoals, methods: Sequence[str]
) -> list[Verdict]:
    """Compares fine-tuning at the headline budgets with its baselines."""
    tuned = next((method for method in methods if method.startswith(FINETUNE)), None)
    if tuned is None:
        return [Verdict("The suite has no method that fine-tunes.", None, {})]
    possible = scores.targets_with(None)
    if not possible:
        return [Verdict("No target has enough tasks for a budget.", None, {})]
    targets = scores.finished_targets(tuned)
    if not targets:
        return []
    found = []
    others = [*(name for name in methods if name.endswith("-budget")), "zero-shot"]
    rivals = {**_goals(goals), **dict.fromkeys(others)}
    what = f"mean over {len(targets)} targets"
    for rival, finding in _ratios([scores], tuned, rivals, methods, what):
        wins = [t for t in targets if _is_ahead(scores, tuned, rival, t)]
        text = f"{finding.text} It is ahead on {len(wins)} of {len(targets)} targets"
        behind = [t for t in targets if t not in wins]
        text += f", not on {', '.join(behind)}." if behind else "."
        found.append(Verdict(text, finding.is_met, {**finding.values, "behind": behind}))
    budgets = ", ".join(f"{target} {scores.headline[target]}" for target in targets)
    text = f"Budgets of this verdict (tasks): {budgets}."
    waiting = [target for target in possible if target not in targets]
    text += f" Not run yet: {', '.join(waiting)}." if waiting else ""
    return [*found, Verdict(text, None, {"waiting": waiting})]


def overall_transfer_findings(
    families: Sequence[FamilyScores], goals: SuiteGoals, methods: Sequence[str]
) -> list[Verdict]:
    """Compares fine-tuning with its baselines over the held-out devices of all families, with equal
    weight for each (family, device).
    """
    tuned = next((method for method in methods if method.startswith(FINETUNE)), None)
    if tuned is None:
        return []
    count = sum(len(scores.finished_targets(tuned)) for scores in families)
    possible = sum(len(scores.targets_with(None)) for scores in families)
    what = f"mean over {'all ' if count == possible else ''}{count} left-out devices"
    return [one for _, one in _ratios(families, tuned, _goals(goals), methods, what)]


def _goals(goals: SuiteGoals) -> dict[str, float | None]:
    return {"scratch": goals.scratch_mape_ratio, "one-factor": goals.factor_mape_ratio}


def _ratios(
    families: Sequence[FamilyScores],
    tuned: str,
    rivals: Mapping[str, float | None],
    methods: Sequence[str],
    what: str,
) -> Iterator[tuple[str, Verdict]]:
    """Yields the comparison with each rival of the suite, over all held-out devices.

    Args:
        rivals: line -> its goal.
    """

    def line(name: str) -> _Line:
        means = _target_means(families, tuned, name)
        parts = [one.errors_at_headline(name, one.finished_targets(tuned)) for one in families]
        errors = {
            seed: {k: v for part in parts for k, v in part.get(seed, {}).items()} for seed in means
        }
        return _Line(name, means, errors)

    for rival, goal in rivals.items():
        if rival in methods and _common_seeds((ours := line(tuned)).means, line(rival).means):
            yield rival, _ratio(ours, line(rival), goal, what, are_devices_drawn=True)


def _target_means(families: Sequence[FamilyScores], tuned: str, line: str) -> Seeds:
    """Returns seed -> mean over held-out devices at their headline budgets."""
    parts = [
        scores.of_target(line, target, scores.headline[target])
        for scores in families
        for target in scores.finished_targets(tuned)
    ]
    return mean_of_common_seeds(parts)


@dataclass(frozen=True)
class _Line:
    """A line's means and the errors behind them, by seed."""

    name: str
    means: Seeds
    errors: Mapping[int, Errors]


def _ratio(
    ours: _Line,
    theirs: _Line,
    goal: float | None,
    what: str,
    *,
    are_devices_drawn: bool,
) -> Verdict:
    """Returns the comparison of two lines with a seed in common."""
    common = _common_seeds(ours.means, theirs.means)
    mine, other = (_mape(line.means, common) for line in (ours, theirs))
    ratio = mine / other
    ends = ratio_interval(
        *([line.errors[seed] for seed in common] for line in (ours, theirs)),
        are_devices_drawn=are_devices_drawn,
    )
    is_met, judged = None, ""
    if goal is not None:
        is_met = ends is not None and ends[1] <= goal
        words = "met" if is_met else "not met" if ratio > goal else "not beyond the 95 % interval"
        judged = f" (goal at most {goal:g}: {words})"
    spread = "" if ends is None else f" [{ends[0]:.2f}, {ends[1]:.2f}]"
    text = (
        f"MAPE, {what}, {len(common)} seeds: {ours.name} {format_value(mine, 'percent')} against "
        f"{format_value(other, 'percent')} of {theirs.name}: "
        f"ratio {ratio:.2f}{spread}{judged}."
    )
    values = {"subject": ours.name, "rival": theirs.name, "mape": mine, "rival_mape": other}
    return Verdict(text, is_met, {**values, "ratio": ratio, "interval": ends, "goal": goal,
                                  "seeds": len(common)})  # fmt: skip


def _is_ahead(scores: FamilyScores, ours: str, rival: str, target: str) -> bool:
    a, b = (scores.of_target(line, target, scores.headline[target]) for line in (ours, rival))
    common = _common_seeds(a, b)
    return bool(common) and _mape(a, common) < _mape(b, common)


def _common_seeds(ours: Seeds, theirs: Seeds) -> list[int]:
    """Returns the seeds for which both lines have a MAPE."""
    return [
        seed
        for seed in sorted(set(ours) & set(theirs))
        if ours[seed].get("mape") is not None and theirs[seed].get("mape") is not None
    ]


def _mape(line: Seeds, seeds: Sequence[int]) -> float:
    return float(np.mean([line[seed]["mape"] for seed in seeds]))
