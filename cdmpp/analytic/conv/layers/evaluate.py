"""Evaluates a model of layers on rows that were not in its fit."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from cdmpp.analytic.conv.errors import LAYER
from cdmpp.analytic.conv.layers.model import LayerModel, remove_drifts
from cdmpp.analytic.conv.layers.table import LayerTable, device_rows
from cdmpp.analytic.conv.seer.evaluate import time_errors
from cdmpp.analytic.conv.seer.splits import SplitKind, check_parts, divide
from cdmpp.arrays import FloatArray


def split_layers(
    table: LayerTable, split: SplitKind | Literal["none"], *, seed: int
) -> tuple[LayerTable, LayerTable]:
    """Returns (training rows, test rows); `none` = all rows for both.

    Raises:
        DataError: a part would be empty.
    """
    if split == "none":
        return table, table
    train, test = divide(table.shapes, table.time_ms, split, seed=seed)
    check_parts(train, test)
    return table[train], table[test]


def evaluate_layers(model: LayerModel, table: LayerTable) -> tuple[dict[str, Any], FloatArray]:
    """Returns the errors over all devices and by device, and float64 [R] predicted milliseconds.

    `coverage` of a device is the share of its times without drift inside their intervals; None if
    the model has no intervals.
    """
    found = model.predict(table)
    predicted = found.time_ms + model.drift_ms(table)
    without = remove_drifts(table, model.drifts).time_ms
    by_device = {}
    for spec, rows in device_rows(table):
        known = rows[table.algorithm[rows] >= 0]
        is_right = found.algorithm[known] == table.algorithm[known]
        by_device[spec.name] = {
            **asdict(time_errors(table.time_ms[rows], predicted[rows])),
            "without_drift": asdict(time_errors(without[rows], found.time_ms[rows])),
            "algorithm_accuracy": float(np.mean(is_right)) if len(known) else None,
            "coverage": _coverage(model, spec.name, without[rows], found.time_ms[rows]),
        }
    errors = asdict(time_errors(table.time_ms, predicted))
    return {**errors, "by_device": by_device}, predicted


def _coverage(
    model: LayerModel, device: str, measured_ms: FloatArray, predicted_ms: FloatArray
) -> float | None:
    errors = None if model.errors is None else model.errors.of(device).get(LAYER)
    if errors is None:
        return None
    return float(np.mean(errors.holds(np.log(measured_ms / predicted_ms))))
