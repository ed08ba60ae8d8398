"""Draws the splits of a training and counts tasks, programs and networks in two parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.audit.facts import Facts
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.datasets.splits import Split, SplitKind, network_family, split
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError


def audit_splits(facts: Facts, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """Returns the sizes and leaks of every kind of split but `test-tasks`, and seed.

    Keys: `kind`, `seed`, `sizes` (part -> samples), `leaks` (whether the kind leaks by design),
    `tasks_in_two_parts`, `programs_in_two_parts`, `networks_in_two_parts` (training families with
    a task in the test part; None if the kind does not hold out networks) and
    `test_samples_seen_in_training` (test samples with the features of a training sample; None if
    features are unknown). If a split cannot be drawn, `impossible` is the reason.
    """
    samples, rows = _samples(facts)
    if not len(samples):
        return []
    result: list[dict[str, Any]] = []
    kinds: tuple[SplitKind, ...] = ("task", "network", "record")
    for kind in kinds:
        for seed in seeds:
            entry: dict[str, Any] = {"kind": kind, "seed": seed}
            try:
                parts = split(samples, kind, seed=seed)
            except DataError as error:
                result.append(entry | {"impossible": str(error)})
                continue
            result.append(entry | _describe(facts, samples, rows, parts))
    return result


def _samples(facts: Facts) -> tuple[Samples, NDArray[np.int64]]:
    """Returns samples for a split, with empty feature arrays, and each program's row in `facts`.

    Programs without features are left out, as in training.
    """
    is_usable = np.ones(len(facts.task), bool)
    if facts.layout == "extracted":
        is_usable = facts.content != 0
    rows = np.flatnonzero(is_usable).astype(np.int64)
    new_row = np.full(len(facts.task), -1, np.int64)
    new_row[rows] = np.arange(len(rows))
    good = np.flatnonzero((facts.program >= 0) & np.isfinite(facts.latency_s))
    program = new_row[facts.program[good]]
    good, program = good[program >= 0], program[program >= 0]
    # Measurements of one program on one device are pooled into one sample.
    pairs = np.unique(np.stack([facts.device[good], program]), axis=1)
    count = len(rows)
    programs = ProgramArrays(
        program_id=np.array([facts.program_hex(int(row)) for row in rows], dtype=object),
        task_id=facts.task[rows].astype(np.int64),
        tasks=np.array([task.name for task in facts.tasks], dtype=object),
        operator=np.array([facts.tasks[task].operator for task in facts.task[rows]], dtype=object),
        networks=[list(task.networks) for task in facts.tasks],
        flop_count=np.full(count, np.nan),
        leaf_offset=np.zeros(count + 1, np.int64),
        leaf_features=np.zeros((0, 164), np.float32),
        leaf_extra=np.zeros((0, 0), np.float32),
        leaf_position=np.zeros(0, np.int32),
        data_hash="",
        feature_schema={},
        tree_offset=np.zeros(count + 1, np.int64),
        tree=np.zeros(0, np.int32),
        schedule_offset=np.zeros(count + 1, np.int64),
        schedule=np.zeros(0, np.uint8),
    )
    number = pairs.shape[1]
    samples = Samples(
        programs=programs,
        devices=tuple(DeviceSpec(name=label, kind="cpu") for label in facts.devices),
        program=pairs[1].astype(np.int64),
        device=pairs[0].astype(np.int64),
        latency_s=np.ones(number),
        latency_std_s=np.zeros(number),
    )
    return samples, rows


def _describe(
    facts: Facts, samples: Samples, rows: NDArray[np.int64], parts: Split
) -> dict[str, Any]:
    indices = {"train": parts.train, "validation": parts.validation, "test": parts.test}
    task = samples.task_id
    seen_in_training: int | None = None
    if facts.layout == "extracted":
        content = facts.content[rows[samples.program]]
        seen_in_training = int(np.isin(content[parts.test], content[parts.train]).sum())
    return {
        "sizes": {name: len(index) for name, index in indices.items()},
        "leaks": parts.leaks,
        "tasks_in_two_parts": _in_two([task[index] for index in indices.values()]),
        "programs_in_two_parts": _in_two([samples.program[index] for index in indices.values()]),
        "networks_in_two_parts": _networks_in_two(samples, parts),
        "test_samples_seen_in_training": seen_in_training,
    }


def _in_two(parts: list[NDArray[np.int64]]) -> int:
    """Returns the number of values that are in more than one part."""
    every = np.concatenate([np.unique(part) for part in parts])
    _, counts = np.unique(every, return_counts=True)
    return int((counts > 1).sum())


def _networks_in_two(samples: Samples, parts: Split) -> int | None:
    """Returns the number of training network families with a task in the test part.

    None if the split does not hold out networks.
    """
    if parts.kind != "network":
        return None
    networks = samples.programs.networks
    held_out = set(parts.test_networks) | set(parts.validation_networks)
    trained = {
        network_family(name)
        for task in np.unique(samples.task_id[parts.train])
        for name, _ in networks[task]
    } - held_out
    tested = [
        {network_family(name) for name, _ in networks[task]}
        for task in np.unique(samples.task_id[parts.test])
    ]
    return len({family for families in tested for family in families & trained})
