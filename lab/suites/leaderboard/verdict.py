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
from lab.suites.leaderboard.difference import METRICS, Metric, common_seeds, difference
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
    """Compares the subject with the best baseline for each metric.

    Baselines are all lines except the references, other variants of the subject's kind, and lines
    with `is_peer` false.
    """
    subject = board.suite.subject
    ours = {line.name for line in board.suite.models if not line.is_peer}
    kinds = {cell.line: cell.kind for cell in board.cells}
    means = scores.device("mean")
    if subject not in means:
        return [Verdict(f"{subject} has no result here.", None, {})]
    peers = [
        name
        for name in means
        if not is_reference(name) and name not in {*ours, subject} and kinds[name] != kinds[subject]
    ]
    found = []
    for metric in METRICS:
        best = _best_peer(subject, peers, means, metric)
        if best is not None:
            goal = board.suite.goals.peer_mape_ratio if metric.key == "mape" else None
            found.append(_against_best(subject, best, scores, metric, goal))
    return found


def transfer_findings(
    scores: FamilyScores, goals: SuiteGoals, methods: Sequence[str]
) -> list[Verdict]:
    """Compares fine-tuning at the headline budgets with its baselines, and the samplers."""
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
    found += _sampler_findings([scores], tuned, methods)
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
    ratios = _ratios(families, tuned, _goals(goals), methods, what)
    return [*(one for _, one in ratios), *_sampler_findings(families, tuned, methods)]


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
        if rival in methods:
            finding = _ratio(line(tuned), line(rival), goal, what, are_devices_drawn=True)
            if finding is not None:
                yield rival, finding


def _target_means(families: Sequence[FamilyScores], tuned: str, line: str) -> Seeds:
    """Returns seed -> mean over held-out devices at their headline budgets."""
    parts = [
        scores.of_target(line, target, scores.headline[target])
        for scores in families
        for target in scores.finished_targets(tuned)
    ]
    return mean_of_common_seeds(parts)


def _sampler_findings(
    families: Sequence[FamilyScores], tuned: str, methods: Sequence[str]
) -> list[Verdict]:
    found = []
    ours = _target_means(families, tuned, tuned)
    for other in methods:
        gap = None
        if other.startswith(FINETUNE) and other != tuned:
            gap = difference(ours, _target_means(families, tuned, other), "mape")
        if gap is not None:
            text = (
                f"Samplers at one budget, {gap.seeds} draws: {tuned} "
                f"{format_value(gap.ours, 'percent')} MAPE, {other} "
                f"{format_value(gap.base, 'percent')}; difference {gap.change('percent')}, "
                f"{gap.certainty}."
            )
            values = {"ours": tuned, "other": other, "difference": gap.mean, "half": gap.half}
            found.append(Verdict(text, gap.mean <= 0, values))
    return found


def _against_best(
    subject: str, best: str, scores: ModelScores, metric: Metric, goal: float | None
) -> Verdict:
    means = scores.device("mean")
    if goal is not None:
        finding = _ratio(
            _Line(subject, means[subject], scores.errors(subject)),
            _Line(f"the best baseline {best}", means[best], scores.errors(best)),
            goal, "mean over devices", are_devices_drawn=False,
        )  # fmt: skip
        if finding is not None:
            return finding
    gap = difference(means[subject], means[best], metric.key)
    assert gap is not None, "the best baseline shares a seed"
    is_ahead = gap.mean < 0 if metric.is_low_good else gap.mean > 0
    text = (
        f"{metric.title}, mean over devices: {subject} {format_value(gap.ours, metric.unit)} is "
        f"{'ahead of' if is_ahead else 'behind'} the best baseline {best} with "
        f"{format_value(gap.base, metric.unit)}; difference {gap.change(metric.unit)}, "
        f"{gap.certainty}."
    )
    values = {"metric": metric.key, "peer": best, "difference": gap.mean, "half": gap.half}
    return Verdict(text, is_ahead, values)


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
) -> Verdict | None:
    gap = difference(ours.means, theirs.means, "mape")
    if gap is None:
        return None
    common = common_seeds(ours.means, theirs.means, "mape")
    mine, other = gap.ours, gap.base
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


def _best_peer(
    subject: str, peers: Sequence[str], lines: Mapping[str, Seeds], metric: Metric
) -> str | None:
    """Returns the baseline with the best mean over its seeds, among those with a seed in common
    with the subject; None if there is none.
    """
    ours, key = lines.get(subject, {}), metric.key
    means = {
        name: float(np.mean([s[key] for s in lines[name].values() if s.get(key) is not None]))
        for name in peers
        if common_seeds(ours, lines.get(name, {}), key)
    }
    if not means:
        return None
    return (min if metric.is_low_good else max)(means, key=lambda name: means[name])


def _is_ahead(scores: FamilyScores, ours: str, rival: str, target: str) -> bool:
    budget = scores.headline[target]
    a, b = (scores.of_target(line, target, budget) for line in (ours, rival))
    gap = difference(a, b, "mape")
    return gap is not None and gap.mean < 0
