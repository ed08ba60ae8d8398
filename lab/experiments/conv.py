"""Accuracy of the convolution model on measured layers.

Reads NeuSight's table of 3x3 convolutions on five GPUs; some values of channels and width are
held out. Lines: roofline, gradient-boosted trees on the shape, the closed form, and the closed form
with trees. Times are evaluated as measured and with the measurement drift removed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from cdmpp.analytic.conv.layers.closed_forms import roofline_ms
from cdmpp.analytic.conv.layers.features import shape_features
from cdmpp.analytic.conv.layers.model import (
    BoostOptions,
    LayerOptions,
    boost,
    fit_layers,
    remove_drifts,
)
from cdmpp.analytic.conv.layers.table import LayerTable, device_rows, read_layers
from cdmpp.analytic.conv.seer.evaluate import time_errors
from cdmpp.analytic.conv.seer.splits import family_split
from cdmpp.arrays import FloatArray
from cdmpp.files.atomic import sha256_file
from cdmpp.metrics import mean_and_interval
from cdmpp.text import markdown_table
from lab.pages import sections, write_page
from lab.paths import SHARED_DATA
from lab.stamp import stamp

COMMAND = "python -m lab run conv"
DATASET = "neusight-conv"
#: Evaluated on times as measured, and on times with the fitted drift removed.
MEASURED, CORRECTED = "measured", "without-drift"
OURS, CLOSED = "closed form + trees", "closed form"
LINES = ("roofline", "trees on the shape", CLOSED, OURS)
#: (group, device, line) -> RMSPE of each seed.
Errors: TypeAlias = dict[tuple[str, str, str], list[float]]


@dataclass(frozen=True)
class Line:
    """Predictions of one line for the test rows.

    Attributes:
        model: name of the line.
        group: `MEASURED` or `CORRECTED`.
        measured_ms: float64 [R].
        predicted_ms: float64 [R].
    """

    model: str
    group: str
    measured_ms: FloatArray
    predicted_ms: FloatArray


def split_lines(train: LayerTable, test: LayerTable, seed: int) -> Iterator[Line]:
    """Yields the lines of one split; both parts have the same devices."""
    model = fit_layers(train, seed=seed)
    found, added = model.predict(test), model.drift_ms(test)
    corrected = remove_drifts(test, model.drifts).time_ms
    clean = remove_drifts(train, model.drifts)
    lines = {
        CLOSED: found.closed_ms.min(axis=1), OURS: found.time_ms,
        "trees on the shape": shape_trees(clean, test, seed),
    }  # fmt: skip
    for name, predicted in lines.items():
        yield Line(name, MEASURED, test.time_ms, predicted + added)
        yield Line(name, CORRECTED, corrected, predicted)
    yield Line("roofline", MEASURED, test.time_ms, roofline(test))
    yield Line("roofline", CORRECTED, corrected, roofline(test))


def roofline(table: LayerTable) -> FloatArray:
    """Returns float64 [R], the roofline's milliseconds."""
    time_ms = np.zeros(len(table))
    for spec, rows in device_rows(table):
        time_ms[rows] = roofline_ms(table.shapes[rows], spec)
    return time_ms


def shape_trees(train: LayerTable, test: LayerTable, seed: int) -> FloatArray:
    """Returns float64 [R], milliseconds by gradient-boosted trees on the shape and the device."""
    import xgboost

    def columns(table: LayerTable) -> FloatArray:
        devices = np.eye(len(table.devices))[table.device]
        return np.concatenate([shape_features(table.shapes), devices], axis=1)

    trees = boost(columns(train), np.log(train.time_ms), BoostOptions(), seed=seed)
    return np.exp(np.asarray(trees.predict(xgboost.DMatrix(columns(test))), np.float64))


def markdown(errors: Errors, devices: Sequence[str]) -> str:
    """Returns the page."""
    text = []
    for group in (MEASURED, CORRECTED):
        rows = [[line, *(_cell(errors[group, device, line]) for device in devices)]
                for line in LINES]  # fmt: skip
        table = markdown_table(["RMSPE (%)", *devices], rows, "lr")
        title = f"## family: held-out values of channels and width; times {group}"
        text += [title, "", table, ""]
    return sections("conv", tables="\n".join(text))


def _cell(values: list[float]) -> str:
    mean, half = mean_and_interval(values)
    return f"{100 * mean:.1f}" + (f" ± {100 * half:.1f}" if half is not None else "")


def experiment(
    layers: Path = SHARED_DATA / "neusight" / "train" / "conv.csv.gz",
    seeds: tuple[int, ...] = (0, 1, 2),
) -> None:
    """Fits and evaluates every line; writes the page."""
    table = read_layers(layers)
    errors: Errors = {}
    for seed in seeds:
        train, test = (table[side] for side in family_split(table.shapes, seed=seed))
        for line in split_lines(train, test, seed):
            for spec, rows in device_rows(test):
                found = time_errors(line.measured_ms[rows], line.predicted_ms[rows])
                assert found.rmspe is not None
                errors.setdefault((line.group, spec.name, line.model), []).append(found.rmspe)
        print(f"{time.process_time():.0f} CPU s: seed {seed}", file=sys.stderr)
    values = {
        "seeds": list(seeds), "options": asdict(LayerOptions()),
        "rmspe": {" | ".join(place): found for place, found in errors.items()},
    }  # fmt: skip
    devices = sorted(spec.name for spec in table.devices)
    origin = stamp(COMMAND, data={DATASET: sha256_file(layers)})
    write_page("conv", markdown(errors, devices), values, origin)
