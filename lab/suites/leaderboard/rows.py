"""The tidy table of a suite: one value per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lab.suites.leaderboard.board import (
    Board,
    FamilyScores,
    ModelScores,
    family_scores,
    model_scores,
)

#: Metrics of operator kinds and latency decades.
_GROUP_METRICS = ("mape", "median_ape", "within_20pct", "spearman_by_task", "top1_score")
#: Counts are not metrics; they have their own column.
_COUNTS = ("n", "tasks")
_COSTS = ("training_cpu_s", "predictions_per_cpu_s")

Row = tuple[str, str, str, str, str, str, int, str, float | None, int]


def tidy_rows(board: Board) -> Iterator[Row]:
    """Yields rows with the columns of `TIDY_COLUMNS`; an undefined value is None.

    Cross-model: `device` is a label, `all` (pooled) or `mean` (equal weight for every device);
    `group` is `test`, `operator:KIND`, `latency:DECADE` or `cost`. Cross-device: `split` is
    `leave-one-out:FAMILY`, `device` the target or `mean`, `group` is `budget:TASKS`, also with
    `/operator:KIND` or `/latency:DECADE`; `budget:headline` is each target's headline budget.
    """
    if board.suite.protocol == "cross-model":
        for scores in model_scores(board):
            for line, seeds in scores.results.items():
                for seed, value in seeds.items():
                    yield from _cell_rows(board.suite.name, scores, line, seed, value)
    for family in family_scores(board):
        yield from _family_rows(board, family)


def _cell_rows(
    suite: str, scores: ModelScores, line: str, seed: int, value: Mapping[str, Any]
) -> Iterator[Row]:
    def place(device: str, group: str) -> tuple[str, str, str, str, str]:
        return (suite, scores.dataset, scores.split, device, group)

    metrics = value["metrics"]
    places = {"all": metrics["all"], "mean": metrics["mean"], **metrics["by_device"]}
    for device, found in places.items():
        yield from _rows(place(device, "test"), line, seed, found)
    for group, found in metrics["by_group"].items():
        yield from _rows(place("all", group), line, seed, found, _GROUP_METRICS)
    if "training_cpu_s" in value:
        costs = {"n": value["parts"]["train"]["samples"], **{name: value[name] for name in _COSTS}}
        yield from _rows(place("all", "cost"), line, seed, costs)


def _family_rows(board: Board, scores: FamilyScores) -> Iterator[Row]:
    split = f"leave-one-out:{scores.family.name}"

    def place(device: str, group: str) -> tuple[str, str, str, str, str]:
        return (board.suite.name, scores.dataset, split, device, group)

    for line, by_budget in scores.results.items():
        for budget, by_target in by_budget.items():
            for target, seeds in by_target.items():
                for seed, value in seeds.items():
                    metrics = value["metrics"]
                    group = f"budget:{budget}"
                    yield from _rows(place(target, group), line, seed, metrics["all"])
                    if budget not in (0, scores.headline[target]):
                        continue
                    for name, found in metrics["by_group"].items():
                        at = place(target, f"{group}/{name}")
                        yield from _rows(at, line, seed, found, _GROUP_METRICS)
            targets = scores.targets_with(budget)
            for seed, found in scores.mean_over_targets(line, budget, targets).items():
                yield from _rows(place("mean", f"budget:{budget}"), line, seed, found)
        means = scores.mean_over_targets(line, None, scores.targets_with(None))
        for seed, found in means.items():
            yield from _rows(place("mean", "budget:headline"), line, seed, found)


def _rows(
    place: tuple[str, str, str, str, str],
    line: str,
    seed: int,
    values: Mapping[str, Any],
    names: tuple[str, ...] | None = None,
) -> Iterator[Row]:
    for name in names or tuple(values):
        if name not in _COUNTS:
            yield (*place, line, seed, name, values.get(name), values["n"])
