"""Sentences that follow from the numbers: who is ahead, by how much, and whether a goal is met."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cdmpp.metrics import mean_and_interval, mean_metrics
from cdmpp.report.tables import format_value
from lab.suites.leaderboard.board import Board, FamilyScores, ModelScores, Seeds
from lab.suites.leaderboard.other_tasks import Errors, ratio_interval
from lab.suites.options import FINETUNE, SuiteGoals
from lab.suites.plan import REFERENCES

#: (metric, unit, whether low is good, name), compared line by line.
_METRICS = (
    ("mape", "percent", True, "MAPE"),
    ("median_ape", "percent", True, "median APE"),
    ("spearman_by_task", "ratio", False, "Spearman"),
    ("top1_score", "ratio", False, "top-1 score"),
)


@dataclass(frozen=True)
class Verdict:
    """One comparison.

    Attributes:
        text: the sentence.
        is_met: whether the goal is met; None where there is no goal or nothing to compare.
        values: what was compared.
    """

    text: str
    is_met: bool | None
    values: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Returns the finding as JSON values."""
        return asdict(self)


def peer_findings(board: Board, scores: ModelScores) -> list[Verdict]:
    """Compares the subject with the best peer of each metric, then says where a peer is ahead.

    Peers are all lines but the references, other variants of the subject's kind and those that the
    suite says are none.
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
        if name not in {*REFERENCES, *ours, subject} and kinds[name] != kinds[subject]
    ]
    found = []
    for metric, unit, is_low, title in _METRICS:
        best = _best_peer(subject, peers, means, metric, is_low)
        if best is not None:
            goal = board.suite.goals.peer_mape_ratio if metric == "mape" else None
            found.append(_against_best(subject, best, scores, metric, unit, is_low, title, goal))
    return [*found, *_where_behind(subject, peers, scores)]


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
    budgets = ", ".join(f"{target} {scores.headline[target]}" for target in targets)
    found = []
    for rival, goal in (
        ("scratch", goals.scratch_mape_ratio),
        ("one-factor", goals.factor_mape_ratio),
        *((name, None) for name in methods if name.endswith("-budget")),
        ("zero-shot", None),
    ):
        if rival not in methods:
            continue
        ours, theirs = (
            _Line(
                name,
                scores.mean_over_targets(name, None, targets),
                scores.errors_at_headline(name, targets),
            )
            for name in (tuned, rival)
        )
        what = f"mean over {len(targets)} targets"
        finding = _ratio(ours, theirs, goal, what, are_devices_drawn=True)
        if finding is not None:
            wins = [t for t in targets if _is_ahead(scores, tuned, rival, t)]
            text = f"{finding.text} It is ahead on {len(wins)} of {len(targets)} targets"
            behind = [t for t in targets if t not in wins]
            text += f", not on {', '.join(behind)}." if behind else "."
            found.append(Verdict(text, finding.is_met, {**finding.values, "behind": behind}))
    found += _sampler_findings(
        tuned, methods, lambda line: scores.mean_over_targets(line, None, targets)
    )
    text = f"Budgets of this verdict (tasks): {budgets}."
    waiting = [target for target in possible if target not in targets]
    text += f" Not run yet: {', '.join(waiting)}." if waiting else ""
    return [*found, Verdict(text, None, {"waiting": waiting})]


def overall_transfer_findings(
    families: Sequence[FamilyScores], goals: SuiteGoals, methods: Sequence[str]
) -> list[Verdict]:
    """Compares fine-tuning with its baselines over the left-out devices of all families, each
    (family, device) counting the same.
    """
    tuned = next((method for method in methods if method.startswith(FINETUNE)), None)
    if tuned is None:
        return []

    def means(line: str) -> Seeds:
        parts = [
            scores.of_target(line, target, scores.headline[target])
            for scores in families
            for target in scores.finished_targets(tuned)
        ]
        common = set.intersection(*(set(part) for part in parts)) if parts else set()
        return {seed: mean_metrics([part[seed] for part in parts]) for seed in sorted(common)}

    def of(line: str) -> _Line:
        found = means(line)
        parts = [
            scores.errors_at_headline(line, scores.finished_targets(tuned)) for scores in families
        ]
        errors = {
            seed: {k: v for part in parts for k, v in part.get(seed, {}).items()} for seed in found
        }
        return _Line(line, found, errors)

    count = sum(len(scores.finished_targets(tuned)) for scores in families)
    possible = sum(len(scores.targets_with(None)) for scores in families)
    what = f"mean over {'all ' if count == possible else ''}{count} left-out devices"
    ours = of(tuned)
    ratios = [
        _ratio(ours, of(rival), goal, what, are_devices_drawn=True)
        for rival, goal in (
            ("scratch", goals.scratch_mape_ratio),
            ("one-factor", goals.factor_mape_ratio),
        )
        if rival in methods
    ]
    samplers = _sampler_findings(tuned, methods, means)
    return [*(finding for finding in ratios if finding is not None), *samplers]


def _sampler_findings(
    tuned: str, methods: Sequence[str], means: Callable[[str], Seeds]
) -> list[Verdict]:
    found = []
    ours = means(tuned)
    for other in methods:
        if not other.startswith(FINETUNE) or other == tuned:
            continue
        theirs = means(other)
        common = sorted(set(ours) & set(theirs))
        if not common:
            continue
        mean, half = mean_and_interval([ours[s]["mape"] - theirs[s]["mape"] for s in common])
        values = {"ours": tuned, "other": other, "difference": mean, "half": half}
        found.append(
            Verdict(
                f"Samplers at one budget, {len(common)} draws: {tuned} "
                f"{_mean_text(ours, 'mape', common)} MAPE, {other} "
                f"{_mean_text(theirs, 'mape', common)}; difference {_points(mean, half)}, "
                f"{_certainty(mean, half)}.",
                mean <= 0,
                values,
            )
        )
    return found


def _against_best(
    subject: str,
    best: str,
    scores: ModelScores,
    metric: str,
    unit: str,
    is_low: bool,
    title: str,
    goal: float | None,
) -> Verdict:
    means = scores.device("mean")
    ours, theirs = means[subject], means[best]
    if goal is not None:
        finding = _ratio(
            _Line(subject, ours, scores.errors(subject)),
            _Line(f"the best peer {best}", theirs, scores.errors(best)),
            goal, "mean over devices", are_devices_drawn=False,
        )  # fmt: skip
        if finding is not None:
            return finding
    common = _common(ours, theirs, metric)
    mean, half = mean_and_interval([ours[s][metric] - theirs[s][metric] for s in common])
    is_ahead = mean < 0 if is_low else mean > 0
    difference = _points(mean, half) if unit == "percent" else _plain(mean, half)
    verb = "ahead of" if is_ahead else "behind"
    text = (
        f"{title}, mean over devices: {subject} {_mean_text(ours, metric, common, unit)} is {verb} "
        f"the best peer {best} with {_mean_text(theirs, metric, common, unit)}; difference "
        f"{difference}, {_certainty(mean, half)}."
    )
    return Verdict(
        text, is_ahead, {"metric": metric, "peer": best, "difference": mean, "half": half}
    )


@dataclass(frozen=True)
class _Line:
    """A line's means and what they are made of, by seed."""

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
    common = _common(ours.means, theirs.means, "mape")
    if not common:
        return None
    mine, other = (
        float(np.mean([line.means[seed]["mape"] for seed in common])) for line in (ours, theirs)
    )
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


def _where_behind(subject: str, peers: Sequence[str], scores: ModelScores) -> list[Verdict]:
    """Returns how often a peer is ahead, and one sentence a place (device, operator kind, latency
    decade) with a better peer, which names the place in its values.
    """
    places = {label: scores.device(label) for label in ["all", *scores.devices()]}
    for prefix in ("operator:", "latency:"):
        places |= {name: scores.group(name) for name in scores.groups(prefix)}
    found = []
    asked = behind = sure = 0
    for place, lines in places.items():
        ours = lines.get(subject, {})
        parts = []
        for metric, unit, is_low, title in _METRICS:
            best = _best_peer(subject, peers, lines, metric, is_low)
            if best is None:
                continue
            asked += 1
            common = _common(ours, lines[best], metric)
            mean, half = mean_and_interval(
                [ours[seed][metric] - lines[best][seed][metric] for seed in common]
            )
            if mean > 0 if is_low else mean < 0:
                behind += 1
                sure += half is not None and abs(mean) > half
                parts.append(
                    f"{title} {_mean_text(lines[best], metric, common, unit)} of {best} against "
                    f"{_mean_text(ours, metric, common, unit)} ({_certainty(mean, half)})"
                )
        if parts:
            found.append(
                Verdict(f"A peer is ahead on {place}: {'; '.join(parts)}.", None, {"place": place})
            )
    if not found:
        return [Verdict("No peer is ahead on any device or group.", None, {})]
    text = (
        f"By device, operator kind and latency decade a peer is ahead in {behind} of {asked} "
        f"comparisons, in {sure} beyond the 95 % interval."
    )
    counts = {"asked": asked, "behind": behind, "beyond_interval": sure}
    return [Verdict(text, None, counts), *found]


def _best_peer(
    subject: str, peers: Sequence[str], lines: Mapping[str, Seeds], metric: str, is_low: bool
) -> str | None:
    """Returns the peer with the best mean over its seeds, of those that share a seed with the
    subject; None when there is none.
    """
    ours = lines.get(subject, {})
    means = {
        name: float(np.mean(values))
        for name in peers
        if _common(ours, lines.get(name, {}), metric)
        and (values := [s[metric] for s in lines[name].values() if s.get(metric) is not None])
    }
    if not means:
        return None
    return (min if is_low else max)(means, key=lambda name: means[name])


def _common(ours: Seeds, theirs: Seeds, metric: str) -> list[int]:
    return [
        seed
        for seed in sorted(set(ours) & set(theirs))
        if ours[seed].get(metric) is not None and theirs[seed].get(metric) is not None
    ]


def _is_ahead(scores: FamilyScores, ours: str, rival: str, target: str) -> bool:
    budget = scores.headline[target]
    a, b = (scores.of_target(line, target, budget) for line in (ours, rival))
    common = _common(a, b, "mape")
    return bool(common) and float(np.mean([a[s]["mape"] - b[s]["mape"] for s in common])) < 0


def _mean_text(seeds: Seeds, metric: str, common: Sequence[int], unit: str = "percent") -> str:
    return format_value(float(np.mean([seeds[seed][metric] for seed in common])), unit)


def _certainty(mean: float, half: float | None) -> str:
    if half is None:
        return "one seed"
    return "beyond the 95 % interval" if abs(mean) > half else "within the 95 % interval"


def _points(mean: float, half: float | None) -> str:
    text = f"{100 * mean:+.1f}"
    return f"{text} points" if half is None else f"{text} ± {100 * half:.1f} points"


def _plain(mean: float, half: float | None) -> str:
    return f"{mean:+.3f}" if half is None else f"{mean:+.3f} ± {half:.3f}"
