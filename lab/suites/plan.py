"""The cells of a suite: trainings and evaluations, each planned once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
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
#: Random ranking, without times: the baseline of rank metrics.
RANDOM_LINE = "random-score"
#: Lines out of competition; the last two use the measured values of the test part.
REFERENCES = (RANDOM_LINE, ORACLE_LINE, NOISE_FLOOR)
PRETRAIN = "pretrain"
#: Incremented when cells of older code must not be reused.
_CELL_VERSION = 2


def is_reference(line: str) -> bool:
    """Whether a line is out of competition."""
    return line in REFERENCES


@dataclass(frozen=True)
class DatasetFacts:
    """Facts of a dataset that the plan needs.

    Attributes:
        data_hash: of its tables.
        tasks: device label -> number of its tasks.
    """

    data_hash: str
    tasks: dict[str, int]


@dataclass(frozen=True)
class SuiteCell:
    """One training and evaluation.

    Attributes:
        id: name of its folder.
        dataset: name of the dataset.
        split: `task`, `network` or `device`.
        line: name of the line in the tables.
        kind: registered kind to train; empty for none.
        seed: of the split and the training.
        target: held-out device (split `device`).
        family: of the target.
        sources: training devices (split `device`).
        budget: number of tasks of the target.
        needs: id of the cell whose model this one starts from; empty for none.
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
    """Returns the cells of the datasets in `facts`; a cell comes after the cell that it needs.

    Args:
        facts: by name of the dataset; other datasets are skipped.
        config: YAML of training options for every cell.
        overrides: `NAME=VALUE` for every cell.

    Raises:
        UsageError: an unknown or ill-typed option.
    """
    planner = _Planner(suite, facts, config, overrides)
    cells = planner.cross_model() if suite.protocol == "cross-model" else planner.cross_device()
    return list({cell.id: cell for cell in cells}.values())


def budgets_of(suite: SuiteOptions, facts: DatasetFacts, target: str) -> list[int]:
    """Returns the positive budgets of at most half of the target's tasks."""
    half = facts.tasks.get(target, 0) / 2
    return [budget for budget in sorted(suite.budgets) if 0 < budget <= half]


def headline_budget(suite: SuiteOptions, facts: DatasetFacts, target: str) -> int:
    """Returns the target's largest budget up to `sampler_budget`; 0 if there is none."""
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
        every = [*(SuiteModel(name) for name in REFERENCES), *suite.models]
        for seed in suite.seeds:
            for dataset in self._datasets():
                lines = [one for one in every if dataset.name in (one.datasets or [dataset.name])]
                for split in dataset.splits:
                    for line in lines:
                        yield self._model_cell(dataset, split, line, seed)

    def cross_device(self) -> Iterator[SuiteCell]:
        suite = self.suite
        for seed in suite.seeds:
            for dataset in self._datasets():
                for family in dataset.families:
                    for target in family.targets:
                        yield from self._target_cells(dataset, family, target, seed)

    def _datasets(self) -> list[SuiteDataset]:
        return [dataset for dataset in self.suite.datasets if dataset.name in self.facts]

    def _model_cell(
        self, dataset: SuiteDataset, split: str, line: SuiteModel, seed: int
    ) -> SuiteCell:
        kind = "" if line.name in REFERENCES else line.kind or line.name
        return self._cell(
            dataset, f"{split}-s{seed}-{line.name}", line.name, kind, line.settings,
            self.suite.cpu_s_per_cell, split=split, seed=seed,
            key={
                "devices": list(dataset.devices), "fractions": list(self.suite.fractions),
                "test_networks": [] if split == "task" else list(dataset.test_networks),
            },
        )  # fmt: skip

    def _target_cells(
        self, dataset: SuiteDataset, family: SuiteFamily, target: str, seed: int
    ) -> Iterator[SuiteCell]:
        suite, facts = self.suite, self.facts[dataset.name]
        pretrain = self._pretrain_cell(dataset, family, target, seed)
        zero_shot = [one for one in suite.methods if one.endswith("zero-shot")]
        tuned = [one for one in suite.methods if one.startswith(FINETUNE)]
        if pretrain is not None:
            yield pretrain
        asked = [(line, 0) for line in (*REFERENCES, *zero_shot)]
        asked += [
            (method, budget)
            for budget in budgets_of(suite, facts, target)
            for method in suite.methods
            if method not in (*zero_shot, *tuned[1:])
        ]
        if headline := headline_budget(suite, facts, target):
            asked += [(method, headline) for method in tuned]
        for method, budget in asked:
            yield self._target_cell(dataset, family, target, method, seed, budget, pretrain)

    def _pretrain_cell(
        self, dataset: SuiteDataset, family: SuiteFamily, target: str, seed: int
    ) -> SuiteCell | None:
        """Returns the training on the sources, shared by all targets with the same sources."""
        suite = self.suite
        sources = tuple(sorted(family.sources_of(target)))
        if not sources or not any(_needs_model(method) for method in suite.methods):
            return None
        digest = hashlib.sha256(",".join(sources).encode()).hexdigest()[:6]
        return self._cell(
            dataset, f"{PRETRAIN}-{len(sources)}-devices-{digest}-s{seed}", PRETRAIN,
            suite.subject, (), suite.cpu_s_per_cell, seed=seed, sources=sources,
        )  # fmt: skip

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
        start = pretrain if _needs_model(method) else None
        is_from_sources = _needs_model(method) or method.endswith(ZERO_SHOT_SUFFIX)
        # A result that does not depend on the sources is the same for all families of the target.
        place = f"{family.name}-{target}" if is_from_sources else target
        key: dict[str, Any] = {"finetune": suite.finetune} if method.startswith(FINETUNE) else {}
        if start is not None:
            key["pretrain"] = start.key
        return self._cell(
            dataset, f"{place}-s{seed}-b{budget}-{method}", method,
            _kind_of(method, suite.subject), suite.budget_settings if budget else (),
            suite.cpu_s_per_finetune if budget else suite.cpu_s_per_cell,
            seed=seed, target=target, budget=budget,
            family=family.name if is_from_sources else "",
            sources=family.sources_of(target) if is_from_sources else (),
            needs="" if start is None else start.id, key=key,
        )  # fmt: skip

    def _cell(
        self,
        dataset: SuiteDataset,
        place: str,
        line: str,
        kind: str,
        settings: Sequence[str],
        cpu_s: float,
        *,
        split: str = "device",
        key: Mapping[str, Any] = MappingProxyType({}),
        **fields: Any,
    ) -> SuiteCell:
        """Returns a cell with its options and its key.

        Args:
            place: the rest of its id.
            settings, cpu_s: see `cell_options`.
            key: additional parts of the key.
            fields: other fields of the cell.
        """
        suite, options, own = self.suite, TrainOptions(), None
        if kind:
            options = cell_options(
                suite, kind, settings=settings, config=self.config, overrides=self.overrides,
                cpu_s=cpu_s,
            )  # fmt: skip
            own = own_options(kind, options)
        cell = SuiteCell(
            id=f"{dataset.name}-{place}", dataset=dataset.name, split=split, line=line, kind=kind,
            options=options, **fields,
        )  # fmt: skip
        whole = {
            "version": _CELL_VERSION, "data_hash": self.facts[dataset.name].data_hash,
            "programs_per_device": suite.programs_per_device,
            "few_workloads": suite.few_workloads, "split": split, "kind": kind, "line": line,
            "seed": cell.seed, "target": cell.target, "sources": list(cell.sources),
            "budget": cell.budget, "options": None if own is None else identity(own), **key,
        }  # fmt: skip
        return replace(cell, key=whole)


def _needs_model(method: str) -> bool:
    return method in ("zero-shot", "one-factor") or method.startswith(FINETUNE)


def _kind_of(method: str, subject: str) -> str:
    """Returns the kind that a method trains; empty for references."""
    if method in REFERENCES:
        return ""
    for suffix in (BUDGET_SUFFIX, ZERO_SHOT_SUFFIX):
        if method.endswith(suffix):
            return method.removesuffix(suffix)
    return subject
