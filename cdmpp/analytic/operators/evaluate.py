"""Judging the operator model: instances in whole models beside recorded peers, and new shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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

FloatArray = NDArray[np.float64]

#: Our predictions of an instance: behind other operators, and as a call of its own.
OURS: Mapping[str, Context] = {"cdmpp": "queued", "cdmpp-isolated": "isolated"}


@dataclass(frozen=True)
class Score:
    """Errors of one model on one group of rows, as fractions.

    Attributes:
        split: `instances`, `whole-models` or `test-shapes`.
        device: label, `all`, `seen` or `unseen`.
        group: operator family, or `all`.
        model: `cdmpp`, `cdmpp-isolated` or a peer.
        seed: of one fit; `all` = the geometric mean of the fits, `-` for a peer.
        mape: mean absolute error.
        median_ape: median absolute error.
        rank: Spearman correlation of predicted and measured times.
        n: rows.
    """

    split: str
    device: str
    group: str
    model: str
    seed: str
    mape: float
    median_ape: float
    rank: float
    n: int

    def tidy(self) -> Iterator[tuple[object, ...]]:
        """Yields one row of `TIDY_COLUMNS` a metric."""
        where = (self.split, self.device, self.group, self.model, self.seed)
        values = {"mape": self.mape, "median_ape": self.median_ape, "spearman": self.rank}
        for metric, value in values.items():
            yield "operators", "neusight", *where, metric, value, self.n


def evaluate(model: OperatorModel, folder: Path) -> list[Score]:
    """Returns the errors on `peers/op_instances` and, where it is there, on `test`.

    Args:
        folder: has `peers/op_instances.csv(.gz)` and may have `test/*.csv(.gz)`.

    Raises:
        DataError: a table is missing or wrong.
    """
    instances = read_instances(table_path(folder / "peers", "op_instances"))
    scores = _instance_scores(model, instances)
    scores += _whole_model_scores(model, instances)
    if (folder / "test").is_dir():
        for family in TABLES:
            table = read_table(table_path(folder / "test", family))
            scores += _test_scores(model, table, family)
    return scores


def single_fits(model: OperatorModel) -> list[tuple[str, OperatorModel]]:
    """Returns (seed, the model with the fit of that seed alone)."""
    count = min(len(fits) for fits in model.fits.values())
    seeds = model.about.get("seeds", list(range(count)))
    return [
        (str(seed), replace(model, fits={name: (fits[i],) for name, fits in model.fits.items()}))
        for i, seed in zip(range(count), seeds, strict=False)
    ]


def predict_table(model: OperatorModel, table: OperatorTable, context: Context) -> FloatArray:
    """Returns float64 [N], seconds, for the rows of a table."""
    labels = [str(name) for name in np.unique(table.device)]
    return model.predict(table.operators, table.device, known_hardware(labels), context=context)


def _predictions(
    model: OperatorModel, rows: InstanceTable
) -> Iterator[tuple[str, str, FloatArray]]:
    """Yields (model, seed, seconds [N]) of ours, of each fit of ours alone, and of the peers."""
    for name, context in OURS.items():
        yield name, "all", predict_table(model, rows.table, context)
    for seed, single in single_fits(model):
        yield "cdmpp", seed, predict_table(single, rows.table, "queued")
    for peer in PEERS:
        yield peer, "-", rows.peer_s[peer]


def _instance_scores(model: OperatorModel, instances: Mapping[str, InstanceTable]) -> list[Score]:
    scores = []
    for family, rows in instances.items():
        table = rows.table
        groups = _device_groups(model, table)
        for name, seed, predicted in _predictions(model, rows):
            for device, chosen in groups.items():
                if seed in ("all", "-") or device == "all":
                    scores.append(
                        _score("instances", device, family, name, seed,
                               predicted[chosen], table.latency_s[chosen])
                    )  # fmt: skip
    return scores


def _whole_model_scores(
    model: OperatorModel, instances: Mapping[str, InstanceTable]
) -> list[Score]:
    """Inference configurations: the sum of time times repeat over the traced operators."""
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
    scores = []
    for (name, seed), total in totals.items():
        predicted = np.array([total[key] for key in configurations])
        for label in ("all", *np.unique(device)):
            chosen_rows = (device == label) | (label == "all")
            if seed in ("all", "-") or label == "all":
                scores.append(
                    _score("whole-models", str(label), "all", name, seed,
                           predicted[chosen_rows], truth[chosen_rows])
                )  # fmt: skip
    return scores


def _test_scores(model: OperatorModel, table: OperatorTable, family: str) -> list[Score]:
    predicted = predict_table(model, table, "isolated")
    return [
        _score("test-shapes", device, family, "cdmpp-isolated", "all",
               predicted[chosen], table.latency_s[chosen])
        for device, chosen in _device_groups(model, table).items()
    ]  # fmt: skip


def _device_groups(model: OperatorModel, table: OperatorTable) -> dict[str, NDArray[np.bool_]]:
    seen = np.isin(table.device, list(model.known))
    groups = {"all": np.ones(len(table), np.bool_), "seen": seen, "unseen": ~seen}
    groups |= {str(name): table.device == name for name in np.unique(table.device)}
    return {name: chosen for name, chosen in groups.items() if chosen.any()}


def _add(totals: dict[str, float], rows: InstanceTable, seconds: FloatArray) -> None:
    for key, value in zip(rows.configuration, seconds * rows.repeat, strict=True):
        totals[str(key)] = totals.get(str(key), 0.0) + float(value)


def _score(
    split: str,
    device: str,
    group: str,
    model: str,
    seed: str,
    predicted: FloatArray,
    measured: FloatArray,
) -> Score:
    from cdmpp.metrics import spearman

    error = np.abs(predicted / measured - 1.0)
    return Score(
        split, device, group, model, seed, float(error.mean()), float(np.median(error)),
        float(spearman(predicted, measured)), len(measured),
    )  # fmt: skip
