"""A suite's results as input of the tables and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cdmpp.metrics import mean_metrics
from cdmpp.report.tables import COLUMNS, Column
from lab.suites.cell_store import CellResult
from lab.suites.leaderboard.other_tasks import Errors
from lab.suites.options import SuiteFamily, SuiteOptions
from lab.suites.plan import (
    PRETRAIN,
    REFERENCES,
    DatasetFacts,
    SuiteCell,
    budgets_of,
    headline_budget,
)

#: Metrics of one line: seed -> metrics.
Seeds: TypeAlias = dict[int, dict[str, Any]]

_EXTRA = {
    "spearman_by_task": Column("pairwise_accuracy", "pairs", "ratio", "high"),
    "top5_score": Column("top1_regret", "regret", "percent", "low"),
}
#: Columns of the leaderboards: the common ones, the seeds, ordered pairs and the regret.
LEADERBOARD_COLUMNS: tuple[Column, ...] = (
    Column("seeds", "seeds", "count", None),
    *(
        column
        for known in COLUMNS
        for column in (known, *([_EXTRA[known.key]] if known.key in _EXTRA else []))
    ),
    Column("interval_coverage", "in 90 % interval", "percent", None),
)


def mean_of_common_seeds(parts: Sequence[Seeds]) -> Seeds:
    """Returns seed -> mean of the parts' metrics, for the seeds of all parts."""
    common = set.intersection(*(set(part) for part in parts)) if parts else set()
    return {seed: mean_metrics([part[seed] for part in parts]) for seed in sorted(common)}


@dataclass(frozen=True)
class Board:
    """A planned suite with its finished results.

    Attributes:
        suite: its options.
        facts: datasets of the plan.
        cells: the planned cells.
        results: of the finished cells, by id.
        command: the command line.
    """

    suite: SuiteOptions
    facts: Mapping[str, DatasetFacts]
    cells: Sequence[SuiteCell]
    results: Mapping[str, CellResult]
    command: str

    @property
    def missing(self) -> list[SuiteCell]:
        """Cells without a result."""
        return [cell for cell in self.cells if cell.id not in self.results]

    def problems(self) -> list[CellResult]:
        """Returns the cells that failed or do not apply."""
        return [result for result in self.results.values() if result.status != "ok"]

    def finished(self) -> Iterator[CellResult]:
        """Yields the results with metrics, in the order of the plan."""
        for cell in self.cells:
            result = self.results.get(cell.id)
            if result is not None and result.status == "ok" and cell.line != PRETRAIN:
                yield result

    def lines(self) -> list[str]:
        """Returns the names of the lines in the order of the tables: the subject first, references
        last.
        """
        names = dict.fromkeys(cell.line for cell in self.cells if cell.line != PRETRAIN)
        suite = self.suite
        first = suite.subject if suite.protocol == "cross-model" else ""
        order = suite.methods if suite.protocol == "cross-device" else tuple(names)
        middle = [name for name in order if name in names and name not in REFERENCES]
        whole = sorted(middle, key=lambda name: name != first)
        return [*whole, *(name for name in REFERENCES if name in names)]


@dataclass(frozen=True)
class ModelScores:
    """Results of one dataset and split of a cross-model suite.

    Attributes:
        dataset: its name.
        split: `task` or `network`.
        results: line -> seed -> content of cell.json.
    """

    dataset: str
    split: str
    results: dict[str, dict[int, dict[str, Any]]]

    def device(self, label: str) -> dict[str, Seeds]:
        """Returns line -> seed -> metrics of a device, `all` (pooled) or `mean` (of devices)."""
        found: dict[str, Seeds] = {}
        for line, seeds in self.results.items():
            for seed, value in seeds.items():
                metrics = value["metrics"]
                chosen = (
                    metrics[label] if label in ("all", "mean") else metrics["by_device"].get(label)
                )
                if chosen is not None and chosen["n"]:
                    found.setdefault(line, {})[seed] = chosen
        return found

    def errors(self, line: str) -> dict[int, Errors]:
        """Returns seed -> errors by unit on the devices of the mean over devices."""
        return {
            seed: {name: value["errors"][name] for name in value["metrics"]["mean_devices"]}
            for seed, value in self.results[line].items()
        }


def model_scores(board: Board) -> list[ModelScores]:
    """Returns the results by dataset and split, in the order of the suite."""
    found: dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]] = {}
    order = board.lines()
    for result in board.finished():
        cell = result.cell
        lines = found.setdefault((cell.dataset, cell.split), {})
        lines.setdefault(cell.line, {})[cell.seed] = result.value
    wanted = [(d.name, split) for d in board.suite.datasets for split in d.splits]
    return [
        ModelScores(*place, {line: found[place][line] for line in order if line in found[place]})
        for place in wanted
        if place in found
    ]


@dataclass(frozen=True)
class FamilyScores:
    """Results of one family of a cross-device suite.

    Attributes:
        dataset: its name.
        family: the devices.
        results: line -> budget -> target -> seed -> content of cell.json.
        budgets: target -> its possible budgets above 0.
        headline: target -> the budget of the headline; 0 if none is possible.
    """

    dataset: str
    family: SuiteFamily
    results: dict[str, dict[int, dict[str, dict[int, dict[str, Any]]]]]
    budgets: dict[str, list[int]]
    headline: dict[str, int]

    def of_target(self, line: str, target: str, budget: int) -> Seeds:
        """Returns seed -> metrics of a line; without a budget they are equal for all budgets."""
        values = self._values(line, target, budget)
        return {seed: value["metrics"]["all"] for seed, value in values.items()}

    def errors_at_headline(self, line: str, targets: Sequence[str]) -> dict[int, Errors]:
        """Returns seed -> errors by unit on each `FAMILY/TARGET`, for the seeds of all targets."""
        parts = {t: self._values(line, t, self.headline[t]) for t in targets}
        common = set.intersection(*(set(part) for part in parts.values())) if parts else set()
        return {
            seed: {f"{self.family.name}/{t}": part[seed]["errors"][t] for t, part in parts.items()}
            for seed in sorted(common)
        }

    def _values(self, line: str, target: str, budget: int) -> dict[int, dict[str, Any]]:
        by_budget = self.results.get(line, {})
        at = budget if budget in by_budget and target in by_budget[budget] else 0
        return by_budget.get(at, {}).get(target, {})

    def mean_over_targets(self, line: str, budget: int | None, targets: Sequence[str]) -> Seeds:
        """Returns seed -> mean over targets, for the seeds of all targets.

        Args:
            budget: None for the headline budget of each target.
        """
        parts = [
            self.of_target(line, target, self.headline[target] if budget is None else budget)
            for target in targets
        ]
        return mean_of_common_seeds(parts)

    def finished_targets(self, line: str) -> list[str]:
        """Returns the targets for which a line has a result at the headline budget."""
        return [t for t in self.targets_with(None) if self.of_target(line, t, self.headline[t])]

    def targets_with(self, budget: int | None) -> list[str]:
        """Returns the targets for which a budget is possible; None: any headline budget."""
        if budget is None:
            return [target for target in self.family.targets if self.headline.get(target)]
        return [t for t in self.family.targets if budget == 0 or budget in self.budgets.get(t, [])]


def family_scores(board: Board) -> list[FamilyScores]:
    """Returns the results by dataset and family, in the order of the suite."""
    found = []
    order = board.lines()
    for dataset in board.suite.datasets:
        if dataset.name not in board.facts:
            continue
        facts = board.facts[dataset.name]
        for family in dataset.families:
            results: dict[str, dict[int, dict[str, dict[int, dict[str, Any]]]]] = {
                line: {} for line in order
            }
            for result in board.finished():
                cell = result.cell
                if cell.dataset != dataset.name or cell.target not in family.targets:
                    continue
                if cell.family not in ("", family.name):
                    continue
                by_target = results[cell.line].setdefault(cell.budget, {})
                by_target.setdefault(cell.target, {})[cell.seed] = result.value
            scores = FamilyScores(
                dataset.name,
                family,
                {line: values for line, values in results.items() if values},
                {t: budgets_of(board.suite, facts, t) for t in family.targets},
                {t: headline_budget(board.suite, facts, t) for t in family.targets},
            )
            if scores.results:
                found.append(scores)
    return found
