"""Adapts the machine-code model to a device, together with its cost model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.conformal import least_owners
from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.datasets.samples import Samples
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
from cdmpp.training.finetune.choice import centred_factor, shrunken_factor, task_errors


def adapted_code(
    reader: CodeModel,
    tables: Sequence[MachineCode],
    held_out: Samples,
    held_out_s: FloatArray,
) -> CodeModel | None:
    """Adapts a machine-code model to the devices of measured programs.

    Trees and perceptron are unchanged. Their shares are the mean of `NEW_DEVICE_SHARES` and those
    with the lowest error on the programs. A factor is added (for sums over programs another one,
    see `centred_factor`). Intervals are calibrated on the programs, each task with the factor of
    the others.

    Args:
        reader: machine-code model of the original model.
        tables: machine code of the measured dataset.
        held_out: measured programs.
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
        found = found.adapted(label, table.targets[label], _calibration(reader, rows))
    return None if found is reader else found


def save_adapted_code(
    folder: Path, reader: CodeModel | None, tables: Sequence[MachineCode], adapted: Adapted
) -> bool:
    """Adapts the machine-code model and saves it with the adapted model.

    Returns whether it was saved: there has to be a machine-code model, and enough measured tasks.

    Args:
        folder: run folder of the saved adapted model.
        reader: machine-code model of the original model; None without one.
        tables: machine code of the measured dataset.
        adapted: the adapted model with its cross-validated predictions.

    Raises:
        DataError: a file cannot be written.
    """
    if adapted.held_out is None or reader is None:
        return False
    held_out_s = adapted.held_out_s[adapted.choice.kept]
    found = adapted_code(reader, tables, adapted.held_out, held_out_s)
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


def _calibration(reader: CodeModel, rows: CodeRows) -> CodeCalibration:
    parts, measured_s = reader.parts_log_s(rows), np.exp(rows.log_s)
    _, task = np.unique(rows.task, return_inverse=True)

    def error(shares: tuple[float, float]) -> float:
        said_s = np.exp(mixed_log_s(shares, parts, rows.model_log_s))
        factor = shrunken_factor(said_s, measured_s, task)
        return float(task_errors(factor * said_s, measured_s, task).mean())

    best = np.array(min(tried_shares(), key=error))
    trees, perceptron = ((best + NEW_DEVICE_SHARES) / 2.0).tolist()
    log_s = mixed_log_s((trees, perceptron), parts, rows.model_log_s)
    said = log_s.copy()
    for one in range(int(task.max()) + 1):
        own, rest = task == one, task != one
        factor = shrunken_factor(np.exp(log_s[rest]), measured_s[rest], task[rest])
        said[own] += math.log(factor)
    width = calibrated_width(said - rows.log_s, reader.expected_error(rows, parts), rows.task)
    shift, sum_shift = (
        math.log(factor(np.exp(log_s), measured_s, task))
        for factor in (shrunken_factor, centred_factor)
    )
    return CodeCalibration(trees, perceptron, width, shift, sum_shift)
