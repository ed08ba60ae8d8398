"""Adapts the machine-code model to a device, together with its cost model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.conformal import least_owners
from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.files.boosted_trees import ask_trees, grow_trees, tree_rows
from cdmpp.models.parts.checks import check_schema
from cdmpp.predict.corrections import MachineCodeCorrection
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.machine_code.expected_error import COVERAGE, calibrated_width
from cdmpp.predict.machine_code.known import code_columns, has_code
from cdmpp.predict.machine_code.model import (
    NEW_DEVICE_SHARES,
    CodeCalibration,
    CodeModel,
    CodeRows,
    mixed_log_s,
    tried_shares,
)
from cdmpp.training.finetune.adapt import Adapted
from cdmpp.training.finetune.choice import centred_factor, standard_error

#: Chosen on campaigns of a Zen 5 and an Ice Lake (`docs/lab/experiments.md`).
_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 4,
    "eta": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.2,
    "min_child_weight": 5,
    "nthread": 1,
    "seed": 0,
}
_TREES, _FOLDS = 150, 5
#: Weight of `NEW_DEVICE_SHARES`, in tasks.
_PRIOR_TASKS = 10.0

#: Log seconds of trees and perceptron, float64 [N] each.
_Parts = tuple[FloatArray, FloatArray]


def adapted_code(
    reader: CodeModel,
    tables: Sequence[MachineCode],
    held_out: Samples,
    held_out_s: FloatArray,
) -> CodeModel | None:
    """Adapts a machine-code model to the devices of measured programs.

    Trees and perceptron are unchanged. Their shares are fitted to the programs, and a shift of the
    logarithm. Boosted trees over the same columns correct what is left, where that lowers the error
    of held-out tasks by more than a standard error. Intervals are calibrated on held-out tasks.

    Args:
        reader: machine-code model of the original model.
        tables: machine code of the measured dataset.
        held_out: measured programs, with the leaf columns that `reader` reads.
        held_out_s: float64 [N], cross-validated predictions of the adapted model, in seconds.

    Returns:
        The adapted model; None if no device has code of enough tasks to calibrate intervals.
    """
    found = reader
    for index in np.unique(held_out.device).tolist():
        label = held_out.devices[index].name
        table = next((t for t in tables if label in t.targets and t.kind == reader.kind), None)
        if table is None:
            continue
        is_known = has_code(held_out, table) & (held_out.device == index)
        samples = held_out.take(is_known)
        if len(np.unique(samples.task_id)) < least_owners(COVERAGE):
            continue
        code = code_columns(samples, table)
        rows = CodeRows.of(samples, code, held_out_s[is_known], kind=reader.kind)
        known, trees = _calibrated(reader, rows)
        found = found.adapted(label, table.targets[label], known, trees)
    return None if found is reader else found


def save_adapted_code(
    folder: Path,
    reader: CodeModel | None,
    tables: Sequence[MachineCode],
    adapted: Adapted,
    programs: ProgramArrays,
) -> bool:
    """Adapts the machine-code model and saves it with the adapted model.

    Returns whether it was saved: there has to be a machine-code model, and enough measured tasks.

    Args:
        folder: run folder of the saved adapted model.
        reader: machine-code model of the original model; None without one.
        tables: machine code of the measured dataset.
        adapted: the adapted model with its cross-validated predictions.
        programs: programs of its samples, with the leaf columns that the machine-code model reads.

    Raises:
        DataError: a file cannot be written, or the programs lack these columns.
    """
    if adapted.held_out is None or reader is None:
        return False
    held_out_s = adapted.held_out_s[adapted.choice.kept]
    held_out = check_schema(reader.feature_schema, replace(adapted.held_out, programs=programs))
    found = adapted_code(reader, tables, held_out, held_out_s)
    if found is not None:
        found.save(folder)
    return found is not None


def compiled_s(
    trained: TrainedModel, samples: Samples, tables: Sequence[MachineCode]
) -> FloatArray:
    """Returns float64 [N], seconds predicted with the known machine code of CPU programs."""
    tables = [one for one in tables if one.kind == "cpu"]
    steps = [MachineCodeCorrection(code_columns(samples, one)) for one in tables]
    return trained.estimate(samples, steps).latency_s


@dataclass(frozen=True)
class _Fitted:
    """What is fitted to the measured programs of a device.

    Attributes:
        shares: of trees and perceptron.
        shift: added to the log prediction.
        trees: predict what the shares and the shift leave over; None without them.
    """

    shares: tuple[float, float]
    shift: float
    trees: Any | None

    @classmethod
    def of(
        cls, rows: CodeRows, parts: _Parts, where: BoolArray, *, has_trees: bool = True
    ) -> _Fitted:
        """Fits shares, shift and trees to some of the rows.

        The shares are those with the lowest log error, and for few tasks nearly those of an unseen
        device.

        Args:
            rows: with the columns of `CodeModel.error_columns`.
        """
        log_s = rows.log_s[where]
        tasks, task = np.unique(rows.task[where], return_inverse=True)

        def mixed(shares: tuple[float, float]) -> FloatArray:
            return mixed_log_s(shares, parts, rows.model_log_s)[where]

        def error(shares: tuple[float, float]) -> float:
            residual = log_s - mixed(shares)
            return float(np.abs(residual - np.median(residual)).mean())

        best, prior = np.array(min(tried_shares(), key=error)), np.array(NEW_DEVICE_SHARES)
        count = len(tasks)
        trees, perceptron = (
            (count * best + _PRIOR_TASKS * prior) / (count + _PRIOR_TASKS)
        ).tolist()
        shares = trees, perceptron
        shift = math.log(centred_factor(np.exp(mixed(shares)), np.exp(log_s), task))
        grown = None
        if has_trees:
            label = tree_rows(rows.columns[where], log_s - mixed(shares) - shift, threads=1)
            grown = grow_trees(_PARAMETERS, label, trees=_TREES)
        return cls(shares, shift, grown)

    def plain(self, rows: CodeRows, parts: _Parts) -> FloatArray:
        """Returns float64 [N], log seconds without the trees."""
        return mixed_log_s(self.shares, parts, rows.model_log_s) + self.shift


def _calibrated(reader: CodeModel, code_rows: CodeRows) -> tuple[CodeCalibration, Any | None]:
    """Returns the calibration for a device, and its trees where they help on held-out tasks."""
    parts = reader.parts_log_s(code_rows)
    rows = replace(code_rows, columns=reader.error_columns(code_rows, parts))
    _, task = np.unique(rows.task, return_inverse=True)
    fold = np.random.default_rng(0).permutation(task.max() + 1)[task] % _FOLDS
    plain, full = np.empty(len(task)), np.empty(len(task))
    for one in range(_FOLDS):
        is_own = fold == one
        fitted = _Fitted.of(rows, parts, ~is_own)
        plain[is_own] = fitted.plain(rows, parts)[is_own]
        full[is_own] = plain[is_own] + ask_trees(fitted.trees, rows.columns[is_own])
    count = np.bincount(task)
    gain = np.bincount(task, np.abs(plain - rows.log_s) - np.abs(full - rows.log_s)) / count
    has_trees = bool(gain.mean() > standard_error(gain))
    fitted = _Fitted.of(rows, parts, np.ones(len(task), bool), has_trees=has_trees)
    residual = (full if has_trees else plain) - rows.log_s
    width = calibrated_width(residual, reader.expected_error(code_rows, parts), code_rows.task)
    return CodeCalibration(*fitted.shares, width, fitted.shift), fitted.trees
