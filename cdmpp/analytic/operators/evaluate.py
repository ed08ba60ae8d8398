"""Evaluates the operator model: instances in whole models, against baselines, and new shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.analytic.operators.model import Context, OperatorModel, known_hardware
from cdmpp.analytic.operators.tables import (
    PEERS,
    TABLES,
    InstanceTable,
    OperatorTable,
    read_instances,
    read_table,
)
from cdmpp.analytic.operators.training import table_path
from cdmpp.analytic.scores import Score
from cdmpp.arrays import BoolArray, FloatArray

#: Name of each of the model's predictions -> its context.
OURS: Mapping[str, Context] = {"cdmpp": "queued", "cdmpp-isolated": "isolated"}


def evaluate(model: OperatorModel, folder: Path) -> list[Score]:
    """Returns the errors on `peers/op_instances` and, if the folder has it, on `test`.

    Args:
        folder: has `peers/op_instances.csv(.gz)` and may have `test/*.csv(.gz)`.

    Raises:
        DataError: a table is missing or invalid.
    """
    instances = read_instances(table_path(folder / "peers", "op_instances"))
    scores = [*_instance_scores(model, instances), *_whole_model_scores(model, instances)]
    if (folder / "test").is_dir():
        for family in TABLES:
            table = read_table(table_path(folder / "test", family))
            predicted = predict_table(model, table, "isolated")
            place = {"split": "test-shapes", "group": family, "model": "cdmpp-isolated"}
            groups = _device_groups(model, table)
            scores += _by_device(table.latency_s, predicted, groups, seed="all", **place)
    return scores


def single_fits(model: OperatorModel) -> list[tuple[str, OperatorModel]]:
    """Returns (seed, the model with only the fit of that seed)."""
    count = min(len(fits) for fits in model.fits.values())
    seeds = model.about.get("seeds", list(range(count)))
    return [
        (str(seed), replace(model, fits={name: (fits[i],) for name, fits in model.fits.items()}))
        for i, seed in zip(range(count), seeds, strict=False)
    ]


def predict_table(model: OperatorModel, table: OperatorTable, context: Context) -> FloatArray:
    """Returns float64 [N], predicted seconds of the rows of a table."""
    labels = [str(name) for name in np.unique(table.device)]
    return model.predict(table.operators, table.device, known_hardware(labels), context=context)


def _predictions(
    model: OperatorModel, rows: InstanceTable
) -> Iterator[tuple[str, str, FloatArray]]:
    """Yields (model, seed, seconds [N]) of the model, of each of its fits, and of the baselines."""
    for name, context in OURS.items():
        yield name, "all", predict_table(model, rows.table, context)
    for seed, single in single_fits(model):
        yield "cdmpp", seed, predict_table(single, rows.table, "queued")
    for peer in PEERS:
        yield peer, "-", rows.peer_s[peer]


def _instance_scores(
    model: OperatorModel, instances: Mapping[str, InstanceTable]
) -> Iterator[Score]:
    for family, rows in instances.items():
        groups = _device_groups(model, rows.table)
        for name, seed, predicted in _predictions(model, rows):
            place = {"split": "instances", "group": family, "model": name, "seed": seed}
            yield from _by_device(rows.table.latency_s, predicted, groups, **place)


def _whole_model_scores(
    model: OperatorModel, instances: Mapping[str, InstanceTable]
) -> Iterator[Score]:
    """Scores inference configurations: the sum of time times repeat over the traced operators."""
    measured: dict[str, float] = {}
    totals: dict[tuple[str, str], dict[str, float]] = {}
    for rows in instances.values():
        chosen = rows[rows.phase == "inference"]
        if not len(chosen.table):
            continue
        _add(measured, chosen, chosen.table.latency_s)
        for name, seed, predicted in _predictions(model, chosen):
            _add(totals.setdefault((name, seed), {}), chosen, predicted)
    configurations = sorted(measured)
    truth = np.array([measured[key] for key in configurations])
    device = np.array([key.split(" ")[0] for key in configurations])
    groups = {"all": np.ones(len(device), np.bool_)}
    groups |= {str(label): device == label for label in np.unique(device)}
    for (name, seed), total in totals.items():
        predicted = np.array([total[key] for key in configurations])
        place = {"split": "whole-models", "group": "all", "model": name, "seed": seed}
        yield from _by_device(truth, predicted, groups, **place)


def _by_device(
    measured: FloatArray,
    predicted: FloatArray,
    devices: Mapping[str, BoolArray],
    *,
    seed: str,
    **place: str,
) -> Iterator[Score]:
    """Yields the score of each group of devices; for a single fit only the score of all devices."""
    for device, rows in devices.items():
        if seed in ("all", "-") or device == "all":
            yield Score.of(
                measured[rows], predicted[rows], has_rank=True, device=device, seed=seed, **place
            )


def _device_groups(model: OperatorModel, table: OperatorTable) -> dict[str, BoolArray]:
    seen = np.isin(table.device, list(model.known))
    groups = {"all": np.ones(len(table), np.bool_), "seen": seen, "unseen": ~seen}
    groups |= {str(name): table.device == name for name in np.unique(table.device)}
    return {name: chosen for name, chosen in groups.items() if chosen.any()}


def _add(totals: dict[str, float], rows: InstanceTable, seconds: FloatArray) -> None:
    for key, value in zip(rows.configuration, seconds * rows.repeat, strict=True):
        totals[str(key)] = totals.get(str(key), 0.0) + float(value)
