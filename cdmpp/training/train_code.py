"""Trains a model of machine code on top of a trained model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError, UsageError
from cdmpp.models.parts.checks import as_learned, as_read_by
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.machine_code.cold_memory import (
    KernelInNetwork,
    NetworkWidths,
    fitted_cold_s_per_byte,
    network_widths,
    read_in_network,
)
from cdmpp.predict.machine_code.known import code_columns, has_code
from cdmpp.predict.machine_code.model import LEAST_MEASURED, CodeModel, CodeRows, check_fastest
from cdmpp.predict.saved_model import task_digest
from cdmpp.programs.code_layout import CodeKind

#: Parts of the tasks, see `part_of_task`.
PARTS = ("training", "validation", "test")
#: Parts of tasks that a model did not learn from, by a hash: held-out ones, and those of new data.
_HELD_OUT = ("test", "validation", "validation")
_NEW = ("validation", "test", "training", "training", "training")


def train_code(
    model_dir: Path,
    folders: Sequence[Path],
    *,
    cache_dir: Path,
    further: Sequence[Path] = (),
    searched: Sequence[Path] = (),
) -> CodeModel:
    """Trains a model of machine code on extracted datasets, and saves it in the model's folder.

    It learns from the training tasks of the model. Of the other tasks, two thirds (by a hash)
    calibrate it and the rest is the test part.

    Args:
        cache_dir: folder for the arrays of the datasets.
        further: datasets that the model did not learn from. Three fifths of their tasks (by a hash)
            are learned from, a fifth each calibrates and tests.
        searched: datasets of programs that searches measured. The fastest program of each task
            calibrates and tests the predictions for fastest programs on its device; nothing is
            trained on them. If they were also timed in their networks (`in_network.json`), the
            extra time is fitted.

    Raises:
        UsageError: no dataset is given.
        DataError: a dataset has no machine code, the datasets mix CPUs and GPUs, a device has
            several targets, a searched device is not in `folders`, or all tasks are training tasks
            of the model.
    """
    if not folders:
        raise UsageError("no dataset given; expected --data DIR with machine code")
    trained = load_trained(model_dir)
    parts, fastest = _Parts(trained, cache_dir), _Parts(trained, cache_dir)
    for folder in folders:
        parts.add(folder)
    for folder in further:
        parts.add(folder, shares=_NEW)
    for folder in searched:
        fastest.add(folder, chosen=_fastest)
    for label in parts.targets:
        found = parts.targets[label] | fastest.targets.get(label, set())
        if len(found) != 1:
            text = ", ".join(sorted(found))
            raise DataError(
                f"programs of {len(found)} targets ({text}) for {label}; expected those of one"
            )
    if strange := sorted(fastest.targets.keys() - parts.targets.keys()):
        raise DataError(
            f"searches of {', '.join(strange)}; expected searches of devices in --data "
            f"({', '.join(sorted(parts.targets))})"
        )
    if len(parts.kinds | fastest.kinds) != 1:
        raise DataError(
            f"{', '.join(map(str, folders))}: programs of CPUs and of GPUs; expected those of one "
            "kind, extracted into folders of their own: cdmpp dataset extract --device LABEL"
        )
    in_network = _in_network(searched, cache_dir)
    train, validation, test = (parts.of(name) for name in PARTS)
    train = train.take(~np.isin(train.task, [*validation.task, *test.task]))
    asked = [fastest.of(name) for name in ("validation", "test")] if searched else []
    asked = [part.take(~np.isin(part.task, train.task)) for part in asked]
    if searched:  # fitting takes minutes: what is wrong is said before
        check_fastest(*asked)
    code_model = CodeModel.fit(
        (train, validation, test),
        targets={label: found.pop() for label, found in parts.targets.items()},
        feature_schema=parts.schema, seed=int(trained.card.split["seed"]),
        kind=next(iter(parts.kinds)),
    )  # fmt: skip
    code_model.added_tasks = (
        frozenset(map(task_digest, set(train.task.tolist()))) - trained.card.training_tasks
    )
    if searched:
        code_model.calibrate_fastest(*asked)
        code_model.cold_s_per_byte, code_model.network_widths = in_network
    code_model.save(model_dir)
    return code_model


class _Parts:
    """Compiled programs of datasets by part (`PARTS`).

    Attributes:
        targets: label of each device -> the targets of its programs.
        schema: versions of the leaf columns.
        kinds: kinds of the devices.
    """

    def __init__(self, trained: TrainedModel, cache_dir: Path) -> None:
        self._trained, self._cache_dir = trained, cache_dir
        self._rows: dict[str, list[CodeRows]] = {name: [] for name in PARTS}
        self.targets: dict[str, set[str]] = {}
        self.schema: dict[str, int] = {}
        self.kinds: set[CodeKind] = set()

    def add(
        self,
        folder: Path,
        *,
        shares: tuple[str, ...] = _HELD_OUT,
        chosen: Callable[[Samples], NDArray[np.bool_]] | None = None,
    ) -> None:
        """Adds a dataset.

        Args:
            shares: of `part_of_task`.
            chosen: selects programs; None = all.

        Raises:
            DataError: the dataset has no machine code.
        """
        found = load_samples(folder, cache_dir=self._cache_dir)
        tables = read_machine_code(folder)
        if not tables:
            raise DataError(
                f"{folder}: has no machine code; add it with: cdmpp measure --machine-code --out "
                f"{folder}, of records with: cdmpp dataset extract --machine-code"
            )
        known = as_learned(self._trained.card.feature_schema, found)
        self.schema = self.schema or dict(found.programs.feature_schema)
        everything = as_read_by(self.schema, replace(known, programs=found.programs))
        learned = self._trained.learned_tasks
        names = [part_of_task(learned, str(task), shares) for task in everything.programs.tasks]
        part_of = np.array(names)[everything.task_id]
        is_wanted = np.ones(len(everything), bool) if chosen is None else chosen(everything)
        for code in tables:
            self.kinds.add(code.kind)
            is_known = is_wanted & has_code(everything, code)
            samples, part = everything.take(is_known), part_of[is_known]
            for place in np.unique(samples.device):
                label = samples.devices[place].name
                target = json.dumps(json.loads(code.targets[label]), sort_keys=True)
                self.targets.setdefault(label, set()).add(target)
            for name, rows in self._rows.items():
                rows.append(_rows(self._trained, samples.take(part == name), code))

    def of(self, name: str) -> CodeRows:
        """Returns the rows of a part."""
        return CodeRows.joined(self._rows[name])


def _fastest(samples: Samples) -> NDArray[np.bool_]:
    """Returns bool [N], True for the fastest program of each task with enough measurements."""
    order = np.lexsort((samples.latency_s, samples.task_id))
    _, first, measured = np.unique(samples.task_id[order], return_index=True, return_counts=True)
    is_fastest = np.zeros(len(samples), bool)
    is_fastest[order[first[measured >= LEAST_MEASURED]]] = True
    return is_fastest


def _in_network(
    folders: Sequence[Path], cache_dir: Path
) -> tuple[dict[str, float], NetworkWidths | None]:
    """Returns `cold_s_per_byte` and `network_widths` of `CodeModel`; {} and None if no kernel was
    timed in its network.
    """
    pairs: list[tuple[str, float, KernelInNetwork]] = []
    for folder in folders:
        kernels = read_in_network(folder)
        samples = load_samples(folder, cache_dir=cache_dir)
        if kernels and len(samples.devices) != 1:
            names = ", ".join(one.name for one in samples.devices)
            raise DataError(f"{folder}: timings in networks of {names}; expected one device")
        tasks = np.array([str(task).rpartition("|")[0] for task in samples.programs.tasks])
        least_s = np.full(len(tasks), np.inf)
        np.minimum.at(least_s, samples.task_id, samples.latency_s)
        alone_s = dict(zip(tasks, least_s, strict=True))
        pairs += [
            (samples.devices[0].name, float(alone_s[one.workload_key]), one)
            for one in kernels
            if math.isfinite(alone_s.get(one.workload_key, math.inf))
        ]
    if not pairs:
        return {}, None
    device = np.array([label for label, _, _ in pairs])
    alone = np.array([seconds for _, seconds, _ in pairs])
    size = np.array([one.argument_bytes for _, _, one in pairs])
    measured = np.array([one.latency_s for _, _, one in pairs])
    cold_s_per_byte = {
        label: fitted_cold_s_per_byte(*(one[device == label] for one in (alone, size, measured)))
        for label in np.unique(device).tolist()
    }
    task = np.array([one.workload_key for _, _, one in pairs])
    return cold_s_per_byte, network_widths(
        alone, size, measured, task,
        cold_s_per_byte=np.array([cold_s_per_byte[label] for label in device.tolist()]),
    )  # fmt: skip


def part_of_task(learned: frozenset[str], task: str, shares: tuple[str, ...] = _HELD_OUT) -> str:
    """Returns `training` for a task that a model learned from, else one of `shares`, chosen by a
    hash of the task.

    Args:
        learned: digests (`task_digest`) of these tasks.
    """
    digest = task_digest(task)
    return "training" if digest in learned else shares[int(digest, 16) % len(shares)]


def _rows(trained: TrainedModel, samples: Samples, code: MachineCode) -> CodeRows:
    told = trained.card.as_told(samples)
    return CodeRows.of(told, code_columns(told, code), trained.predict(samples), kind=code.kind)
