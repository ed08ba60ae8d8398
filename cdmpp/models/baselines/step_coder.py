"""Schedules in TLP's input format: one row of numbers per transform step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cdmpp.arrays import Float32Array, IntArray
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.errors import NotApplicableError
from cdmpp.models.nets.step_transformer import StepBatch
from cdmpp.models.parts.leaf_coder import device_rows, fit_devices
from cdmpp.models.parts.normalise import Normalisation
from cdmpp.models.parts.pooling import leaf_matrix, leaf_rows
from cdmpp.models.parts.program_groups import ProgramGroups

#: Codes of Ansor's transform steps.
STEP_CODES = (
    "AN", "FU", "PR", "RE", "SP", "FSP", "FFSP", "SA", "CA", "CI", "CR", "CHR", "CHW", "RF",
)  # fmt: skip
_SCOPES = ("local", "shared", "global")
_UNROLL_STEPS = (0, 16, 64, 512, 1024)
#: Maximum (steps, numbers per step) for CPU programs and for all others; the rest is cut.
_CPU_CROP = (25, 11)
_GPU_CROP = (40, 9)


@dataclass(frozen=True)
class StepCoder:
    """Statistics of the schedules, added columns and devices of a training part.

    Attributes:
        step: statistics of the step rows, padding included.
        context: statistics of the pooled added columns.
        device: statistics of the device vectors.
        crop: maximum (steps, numbers per step); the rest is cut.
        extra_blocks: blocks of added leaf columns to pool; None = all.
    """

    step: Normalisation
    context: Normalisation
    device: Normalisation
    crop: tuple[int, int]
    extra_blocks: tuple[str, ...] | None

    @classmethod
    def fit(cls, train: Samples, extra_blocks: tuple[str, ...] | None) -> StepCoder:
        """Returns the statistics of `train`, each program counted once.

        Raises:
            NotApplicableError: a program has no schedule.
        """
        rows = np.unique(train.program)
        tasks = train.programs.tasks[np.unique(train.task_id)]
        crop = _CPU_CROP if all(str(task).endswith("|llvm") for task in tasks) else _GPU_CROP
        steps = step_rows(train.programs, rows, crop)
        return cls(
            Normalisation.fit(steps.reshape(-1, steps.shape[-1])),
            Normalisation.fit(pooled_extra(train.programs, rows, extra_blocks)),
            fit_devices(train),
            crop,
            extra_blocks,
        )

    def inputs(self, samples: Samples) -> StepInputs:
        """Returns the inputs of samples.

        Raises:
            NotApplicableError: a program has no schedule.
        """
        return StepInputs(samples, self)


class StepInputs:
    """Samples whose batches are schedules; schedules are parsed once."""

    def __init__(self, samples: Samples, coder: StepCoder) -> None:
        self.groups = ProgramGroups(samples)
        self._samples = samples
        self._device = device_rows(samples, coder.device)
        rows = self.groups.program_rows
        steps = step_rows(samples.programs, rows, coder.crop)
        self._steps = coder.step.apply(steps.reshape(-1, steps.shape[-1])).reshape(steps.shape)
        context = pooled_extra(samples.programs, rows, coder.extra_blocks)
        self._context = coder.context.apply(context)

    def batch(self, programs: IntArray) -> StepBatch:
        """Returns the batch of the chosen programs."""
        sample_rows, owner = self.groups.samples_of(programs)
        return StepBatch(
            steps=torch.from_numpy(self._steps[programs]),
            context=torch.from_numpy(self._context[programs]),
            program=torch.from_numpy(owner),
            device=self._device[torch.from_numpy(self._samples.device[sample_rows])],
        )


def step_rows(programs: ProgramArrays, rows: IntArray, crop: tuple[int, int]) -> Float32Array:
    """Returns float32 [len(rows), step, 14 + numbers]: one-hot code of the step, then arguments.

    Arguments are flattened to numbers in order. Scopes are 1 local, 2 shared, 3 global; an unroll
    pragma is the position of its value in 0, 16, 64, 512, 1024, counted from 1. Numbers x become
    sign(x) log2(|x| + 1). Shorter schedules are padded with zeros, longer ones cut.

    Raises:
        NotApplicableError: a program has no schedule.
    """
    step_count, number_count = crop
    encoded = np.zeros((len(rows), step_count, len(STEP_CODES) + number_count), np.float32)
    for place, row in enumerate(rows.tolist()):
        text = programs.schedule_text(row)
        if text is None:
            raise NotApplicableError(
                f"program {programs.program_id[row]} has no schedule steps; TLP reads Ansor's "
                "transform steps, which AutoTVM and MetaSchedule programs do not have; choose "
                "another --model, e.g. gbdt"
            )
        for index, step in enumerate(json.loads(text)[:step_count]):
            code, *arguments = step
            if code in STEP_CODES:
                encoded[place, index, STEP_CODES.index(code)] = 1.0
            numbers = np.array(_numbers(arguments)[:number_count], np.float64)
            first = len(STEP_CODES)
            encoded[place, index, first : first + len(numbers)] = np.sign(numbers) * np.log2(
                np.abs(numbers) + 1.0
            )
    return encoded


def pooled_extra(
    programs: ProgramArrays, rows: IntArray, extra_blocks: tuple[str, ...] | None
) -> Float32Array:
    """Returns float32 [len(rows), 2E]: sum and maximum over the leaves of each added column."""
    counts = np.diff(programs.leaf_offset)[rows]
    leaves = leaf_matrix(programs, leaf_rows(programs, rows), extra_blocks)
    extra = leaves[:, programs.leaf_features.shape[1] :]
    pooled = np.zeros((len(rows), 2 * extra.shape[1]), np.float32)
    occupied = np.flatnonzero(counts > 0)
    if len(occupied) and extra.shape[1]:
        first = np.concatenate([[0], np.cumsum(counts[occupied])[:-1]])
        summed = np.add.reduceat(extra.astype(np.float64), first, axis=0)
        pooled[occupied, : extra.shape[1]] = summed
        pooled[occupied, extra.shape[1] :] = np.maximum.reduceat(extra, first, axis=0)
    return pooled


def _numbers(arguments: list[Any]) -> list[float]:
    """Flattens the arguments of a step to numbers."""
    numbers: list[float] = []
    for argument in arguments:
        if isinstance(argument, list):
            numbers.extend(_numbers(argument))
        elif isinstance(argument, str):
            numbers.append(_word(argument))
        else:
            numbers.append(float(argument or 0))
    return numbers


def _word(text: str) -> float:
    """Returns the number of a scope or an unroll pragma; 0 for other texts."""
    if text in _SCOPES:
        return 1.0 + _SCOPES.index(text)
    value = text.partition("$")[2]
    if value.isdecimal() and int(value) in _UNROLL_STEPS:
        return 1.0 + _UNROLL_STEPS.index(int(value))
    return 0.0
