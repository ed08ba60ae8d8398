"""The cells of a suite: what is trained and judged, each of them once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cdmpp.datasets.samples import Samples
from cdmpp.models.nets.options import identity
from cdmpp.training.options import TrainOptions
from lab.suites.noise_floor import NOISE_FLOOR
from lab.suites.options import (
    BUDGET_SUFFIX,
    FINETUNE,
    ZERO_SHOT_SUFFIX,
    SuiteDataset,
    SuiteFamily,
    SuiteModel,
    SuiteOptions,
    cell_options,
    own_options,
)

ORACLE_LINE = "oracle-task-median"
#: Ranks at random and has no times: what a ranking is worth that knows nothing.
RANDOM_LINE = "random-score"
#: Lines out of competition: the last ones look at the answers.
REFERENCES = (RANDOM_LINE, ORACLE_LINE, NOISE_FLOOR)
PRETRAIN = "pretrain"
#: Changes when cells computed by older code must not be used again.
_CELL_VERSION = 2


@dataclass(frozen=True)
class DatasetFacts:
    """What the plan needs to know of a data set.

    Attributes:
        data_hash: of its tables.
        tasks: device label -> number of its tasks.
    """

    data_hash: str
    tasks: dict[str, int]


@dataclass(frozen=True)
class SuiteCell:
    """One training and judgement.

    Attributes:
        id: name of its folder.
        dataset: name of the data set.
        split: `task`, `network` or `device`.
        line: name of the line in the tables.
        kind: registered kind that is trained; empty where nothing is.
        seed: of the split, the training and the draws.
        target: device that is left out (split `device`).
        family: of the target.
        sources: devices trained on (split `device`).
        budget: tasks of the target.
        needs: id of the cell whose model this one starts from; empty = none.
        options: training options.
        key: everything that the result depends on, as JSON values.
    """

    id: str
    dataset: str
    split: str
    line: str
    kind: str
    seed: int
    target: str = ""
    family: str = ""
    sources: tuple[str, ...] = ()
    budget: int = 0
    needs: str = ""
    options: TrainOptions = field(default_factory=TrainOptions)
    key: dict[str, Any] = field(default_factory=dict)


def dataset_facts(samples: Samples) -> DatasetFacts:
    """Returns the facts of loaded samples."""
    tasks = {
        spec.name: len(set(samples.task_id[samples.device == index].tolist()))
        for index, spec in enumerate(samples.devices)
    }
    return DatasetFacts(samples.programs.data_hash, tasks)


def plan_cells(
    suite: SuiteOptions,
    facts: Mapping[str, DatasetFacts],
    *,
    config: Path | None = None,
    overrides: Sequence[str] = (),
) -> list[SuiteCell]:
    """Returns the cells of the data sets that `facts` knows; a cell comes after what it needs.

    Args:
        facts: by name of the data set; others are left out.
        config: YAML of training options, for every cell.
        overrides: `NAME=VALUE`, for every cell.

    Raises:
        UsageError: an unknown or ill-typed option.
    """
    planner = _Planner(suite, facts, config, overrides)
    cells = planner.cross_model() if suite.protocol == "cross-model" else planner.cross_device()
    return list({cell.id: cell for cell in cells}.values())


def budgets_of(suite: SuiteOptions, facts: DatasetFacts, target: str) -> list[int]:
    """Returns the budgets above 0 that are at most half of the target's tasks."""
    half = facts.tasks.get(target, 0) / 2
    return [budget for budget in sorted(suite.budgets) if 0 < budget <= half]


def headline_budget(suite: SuiteOptions, facts: DatasetFacts, target: str) -> int:
    """Returns the target's largest budget up to `sampler_budget`; 0 where there is none."""
    possible = [b for b in budgets_of(suite, facts, target) if b <= suite.sampler_budget]
    return max(possible, default=0)


@dataclass(frozen=True)
class _Planner:
    suite: SuiteOptions
    facts: Mapping[str, DatasetFacts]
    config: Path | None
    overrides: Sequence[str]

    def cross_model(self) -> Iterator[SuiteCell]:
        suite = self.suite
        lines = [*(SuiteModel(name) for name in REFERENCES), *suite.models]
        seeds = dict.fromkeys([*suite.seeds, *(s for line in lines for s in line.seeds)])
        for seed in seeds:
            for dataset in self._datasets():
                for split in dataset.splits:
                    for line in lines:
                        if seed not in (line.seeds or suite.seeds):
                            continue
                        if line.datasets and dataset.name not in line.datasets:
                            continue
                        yield self._model_cell(dataset, split, line, seed)
                yield from self._left_out_cells(dataset, seed)

    def cross_device(self) -> Iterator[SuiteCell]:
        suite = self.suite
        for seed in dict.fromkeys([*suite.seeds, *suite.draws]):
            for dataset in self._datasets():
                for family in dataset.families:
                    for target in family.targets:
                        yield from self._target_cells(dataset, family, target, seed)

    def _left_out_cells(self, dataset: SuiteDataset, seed: int) -> Iterator[SuiteCell]:
        """Yields the lines of a cross-model suite trained on all devices of a family but one."""
        for family in dataset.families:
            for target in family.targets:
                for line in self.suite.models:
                    if seed not in (line.seeds or self.suite.seeds):
                        continue
                    if line.datasets and dataset.name not in line.datasets:
                        continue
                    kind = line.kind or line.name
                    cpu_s = self.suite.cpu_s_per_cell * line.cpu_factor
                    cell = SuiteCell(
                        id=f"{dataset.name}-{family.name}-{target}-s{seed}-{line.name}",
                        dataset=dataset.name,
                        split="device",
                        line=line.name,
                        kind=kind,
                        seed=seed,
                        target=target,
                        family=family.name,
                        sources=family.sources_of(target),
                        options=self._options(kind, line.settings, cpu_s),
                    )
                    yield self._with_key(cell, {"is_zero_shot": True})

    def _datasets(self) -> list[SuiteDataset]:
        return [dataset for dataset in self.suite.datasets if dataset.name in self.facts]

    def _model_cell(
        self, dataset: SuiteDataset, split: str, line: SuiteModel, seed: int
    ) -> SuiteCell:
        kind = "" if line.name in REFERENCES else line.kind or line.name
        options = self._options(kind, line.settings, self.suite.cpu_s_per_cell * line.cpu_factor)
        cell = SuiteCell(
            id=f"{dataset.name}-{split}-s{seed}-{line.name}",
            dataset=dataset.name,
            split=split,
            line=line.name,
            kind=kind,
            seed=seed,
            options=options,
        )
        return self._with_key(
            cell,
            {
                "devices": list(dataset.devices),
                "fractions": list(self.suite.fractions),
                "test_networks": [] if split == "task" else list(dataset.test_networks),
            },
        )

    def _target_cells(
        self, dataset: SuiteDataset, family: SuiteFamily, target: str, seed: int
    ) -> Iterator[SuiteCell]:
        suite = self.suite
        facts = self.facts[dataset.name]
        headline = headline_budget(suite, facts, target)
        pretrain = self._pretrain_cell(dataset, family, target, seed)
        methods = suite.methods
        first = next((method for method in methods if method.startswith(FINETUNE)), "")
        if pretrain is not None:
            yield pretrain
        if seed in suite.seeds:
            for line in REFERENCES:
                yield self._target_cell(dataset, family, target, line, seed, 0, None)
            for method in methods:
                if method == "zero-shot" or method.endswith(ZERO_SHOT_SUFFIX):
                    yield self._target_cell(dataset, family, target, method, seed, 0, pretrain)
            for budget in budgets_of(suite, facts, target):
                for method in methods:
                    if method.endswith("zero-shot"):
                        continue
                    if method.startswith(FINETUNE) and method != first:
                        continue
                    yield self._target_cell(dataset, family, target, method, seed, budget, pretrain)
        if seed in suite.draws and headline:
            for method in methods:
                if method.startswith(FINETUNE):
                    yield self._target_cell(
                        dataset, family, target, method, seed, headline, pretrain
                    )

    def _pretrain_cell(
        self, dataset: SuiteDataset, family: SuiteFamily, target: str, seed: int
    ) -> SuiteCell | None:
        """Returns the training on the sources, shared by all targets with the same sources."""
        suite = self.suite
        if seed not in suite.seeds:  # a further draw starts from one of the models that are there
            seed = suite.seeds[seed % len(suite.seeds)]
        sources = family.sources_of(target)
        if not sources or not any(_needs_model(method) for method in suite.methods):
            return None
        digest = hashlib.sha256(",".join(sorted(sources)).encode()).hexdigest()[:6]
        cell = SuiteCell(
            id=f"{dataset.name}-{PRETRAIN}-{len(sources)}-devices-{digest}-s{seed}",
            dataset=dataset.name,
            split="device",
            line=PRETRAIN,
            kind=suite.subject,
            seed=seed,
            sources=tuple(sorted(sources)),
            options=self._options(suite.subject, (), suite.cpu_s_per_cell),
        )
        return self._with_key(cell, {})

    def _target_cell(
        self,
        dataset: SuiteDataset,
        family: SuiteFamily,
        target: str,
        method: str,
        seed: int,
        budget: int,
        pretrain: SuiteCell | None,
    ) -> SuiteCell:
        suite = self.suite
        kind = _kind_of(method, suite.subject)
        cpu_s = suite.cpu_s_per_finetune if budget else suite.cpu_s_per_cell
        is_from_sources = _needs_model(method) or method.endswith(ZERO_SHOT_SUFFIX)
        # What does not look at the sources is the same for all families of the target.
        place = f"{family.name}-{target}" if is_from_sources else target
        needs = pretrain.id if pretrain is not None and _needs_model(method) else ""
        cell = SuiteCell(
            id=f"{dataset.name}-{place}-s{seed}-b{budget}-{method}",
            dataset=dataset.name,
            split="device",
            line=method,
            kind=kind,
            seed=seed,
            target=target,
            family=family.name if is_from_sources else "",
            sources=family.sources_of(target) if is_from_sources else (),
            budget=budget,
            needs=needs,
            options=self._options(kind, suite.budget_settings if budget else (), cpu_s),
        )
        extra: dict[str, Any] = {}
        if method.startswith(FINETUNE):
            extra["finetune"] = suite.finetune
        if needs and pretrain is not None:
            extra["pretrain"] = pretrain.key
        return self._with_key(cell, extra)

    def _options(self, kind: str, settings: Sequence[str], cpu_s: float) -> TrainOptions:
        if not kind:
            return TrainOptions()
        return cell_options(
            self.suite,
            kind,
            settings=settings,
            config=self.config,
            overrides=self.overrides,
            cpu_s=cpu_s,
        )

    def _with_key(self, cell: SuiteCell, extra: dict[str, Any]) -> SuiteCell:
        own = own_options(cell.kind, cell.options) if cell.kind else None
        key = {
            "version": _CELL_VERSION,
            "data_hash": self.facts[cell.dataset].data_hash,
            "programs_per_device": self.suite.programs_per_device,
            "few_workloads": self.suite.few_workloads,
            "split": cell.split,
            "kind": cell.kind,
            "line": cell.line,
            "seed": cell.seed,
            "target": cell.target,
            "sources": list(cell.sources),
            "budget": cell.budget,
            "options": None if own is None else identity(own),
            **extra,
        }
        return replace(cell, key=key)


def facts_to_json(facts: Mapping[str, DatasetFacts]) -> dict[str, Any]:
    """Returns facts as JSON values."""
    return {name: asdict(entry) for name, entry in facts.items()}


def facts_from_json(value: Mapping[str, Any]) -> dict[str, DatasetFacts]:
    """Returns what `facts_to_json` took.

    Raises:
        KeyError: a field is missing.
    """
    return {
        name: DatasetFacts(entry["data_hash"], dict(entry["tasks"]))
        for name, entry in value.items()
    }


def _needs_model(method: str) -> bool:
    return method in ("zero-shot", "one-factor") or method.startswith(FINETUNE)


def _kind_of(method: str, subject: str) -> str:
    """Returns the kind that a method trains; empty for the references."""
    if method in REFERENCES:
        return ""
    for suffix in (BUDGET_SUFFIX, ZERO_SHOT_SUFFIX):
        if method.endswith(suffix):
            return method.removesuffix(suffix)
    return subject
