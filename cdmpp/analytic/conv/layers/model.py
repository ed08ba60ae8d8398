"""Times of any fp32 convolution layer on any device: SEER's terms, and boosted trees on top."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cdmpp.analytic.contract import AnalyticModel
from cdmpp.analytic.conv.errors import ConvErrors
from cdmpp.analytic.conv.layers.closed_form_model import LatentModel, fit_latent
from cdmpp.analytic.conv.layers.closed_forms import roofline_ms
from cdmpp.analytic.conv.layers.drift import Drift, fit_drift, no_drift
from cdmpp.analytic.conv.layers.features import layer_features
from cdmpp.analytic.conv.layers.table import LayerTable, device_rows
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.files.atomic import make_folder, write_bytes, write_json
from cdmpp.files.boosted_trees import ask_trees, grow_trees, load_booster, tree_rows
from cdmpp.files.stored import read_model, to_json

FORMAT = "cdmpp-conv-layers/1"
MODEL_FILE = "conv.json"
_TIME_FILE = "time-trees.json"
_ALGORITHM_FILE = "algorithm-trees.json"


@dataclass(frozen=True)
class BoostOptions:
    """Options of the gradient-boosted trees.

    Attributes:
        rounds: number of trees.
        depth: maximum depth of a tree.
        learning_rate: step of each tree.
        row_share: share of the rows that a tree is fitted to.
        column_share: share of the columns that a tree is fitted to.
        min_child_weight: minimum number of rows in a leaf.
        algorithm_rounds: trees per class of the algorithm's classifier.
        threads: number of threads of a fit.
    """

    rounds: int = 500
    depth: int = 6
    learning_rate: float = 0.06
    row_share: float = 0.8
    column_share: float = 0.5
    min_child_weight: float = 3.0
    algorithm_rounds: int = 60
    threads: int = 1


@dataclass(frozen=True)
class LayerOptions:
    """Options of the model.

    Attributes:
        residual: target of the trees: `direct` = the time, from the physical terms; `ratio` = the
            time over that of the fastest closed form; `none` = closed forms only.
        has_drift: whether the drift of the measurements is fitted and removed.
        boost: options of the trees.
    """

    residual: Literal["direct", "ratio", "none"] = "direct"
    has_drift: bool = True
    boost: BoostOptions = field(default_factory=BoostOptions)


@dataclass(frozen=True)
class LayerPrediction:
    """Predictions for R layers.

    Attributes:
        time_ms: float64 [R], without drift.
        algorithm: int64 [R], cuDNN's number: from the classifier, or without one the fastest closed
            form.
        closed_ms: float64 [R, 8], closed form of every algorithm; inf = not available.
        kernel_type: int64 [R], `KernelType` of the algorithm's closed form.
    """

    time_ms: FloatArray
    algorithm: IntArray
    closed_ms: FloatArray
    kernel_type: IntArray


@dataclass(frozen=True)
class LayerModel(AnalyticModel):
    """A fitted model; see `fit_layers`.

    Attributes:
        options: options of the fit.
        closed: closed forms.
        drifts: device label -> drift that was removed from its times.
        algorithms: cuDNN's numbers, in the order of the classifier's classes.
        time_trees: booster of the times; None with closed forms only.
        algorithm_trees: booster of the algorithm; None with closed forms only.
        errors: errors of its validation; None without one (`fit_validated_layers` validates).
    """

    what = "convolution model"
    again = "refit it with: cdmpp analytic conv fit --layers FILE"
    place = "conv"

    options: LayerOptions
    closed: LatentModel
    drifts: dict[str, Drift]
    algorithms: tuple[int, ...] = ()
    time_trees: Any = None
    algorithm_trees: Any = None
    errors: ConvErrors | None = None

    def predict(self, table: LayerTable) -> LayerPrediction:
        """Returns the predictions for a table's shapes and devices; its times are not read."""
        closed_ms, kinds = closed_times(self.closed, table)
        time_ms = closed_ms.min(axis=1)
        algorithm = closed_ms.argmin(axis=1)
        if self.time_trees is not None:
            rows = layer_features(table, self.closed)
            time_ms = np.exp(ask_trees(self.time_trees, rows)) * (
                time_ms if self.options.residual == "ratio" else 1.0
            )
            chance = ask_trees(self.algorithm_trees, rows).reshape(len(table), -1)
            algorithm = np.array(self.algorithms, np.int64)[chance.argmax(axis=1)]
        return LayerPrediction(
            time_ms, algorithm, closed_ms, kinds[np.arange(len(table)), algorithm]
        )

    def drift_ms(self, table: LayerTable) -> FloatArray:
        """Returns float64 [R], the drift in each row's time; 0 on devices without one."""
        added = np.zeros(len(table))
        for spec, rows in device_rows(table):
            added[rows] = self.drifts.get(spec.name, no_drift()).added_ms(table.position[rows])
        return added

    def save(self, path: Path) -> None:
        folder = make_folder(path, what=self.what)
        if self.time_trees is not None:
            write_bytes(folder / _TIME_FILE, bytes(self.time_trees.save_raw("json")))
            write_bytes(folder / _ALGORITHM_FILE, bytes(self.algorithm_trees.save_raw("json")))
        content = to_json(replace(self, time_trees=None, algorithm_trees=None))
        write_json(folder / MODEL_FILE, {"format": FORMAT, **content})

    @classmethod
    def load(cls, path: Path) -> LayerModel:
        file = path / MODEL_FILE
        model = read_model(cls, file, what=cls.what, again=cls.again, format=FORMAT)
        if model.options.residual == "none":
            return model
        return replace(
            model,
            time_trees=load_booster(path / _TIME_FILE, hint=cls.again),
            algorithm_trees=load_booster(path / _ALGORITHM_FILE, hint=cls.again),
        )


def fit_layers(
    table: LayerTable, options: LayerOptions | None = None, *, seed: int = 0
) -> LayerModel:
    """Fits the model to measured layers: drift, closed forms, then trees.

    Raises:
        DataError: no row names its algorithm.
    """
    options = options or LayerOptions()
    drifts = fit_drifts(table) if options.has_drift else {}
    corrected = remove_drifts(table, drifts)
    closed = fit_latent(corrected)
    model = LayerModel(options, closed, drifts)
    if options.residual == "none":
        return model
    features = layer_features(corrected, closed)
    target = np.log(corrected.time_ms)
    if options.residual == "ratio":
        target = target - np.log(closed_times(closed, corrected)[0].min(axis=1))
    named = corrected.algorithm >= 0
    algorithms, labels = np.unique(corrected.algorithm[named], return_inverse=True)
    return LayerModel(
        options,
        closed,
        drifts,
        tuple(int(number) for number in algorithms),
        boost(features, target, options.boost, seed=seed),
        boost(features[named], labels, options.boost, seed=seed, class_count=len(algorithms)),
    )


def fit_drifts(table: LayerTable) -> dict[str, Drift]:
    """Returns device label -> the drift of its rows."""
    return {
        spec.name: fit_drift(
            table.time_ms[rows],
            table.position[rows],
            roofline_ms(table.shapes[rows], spec),
        )
        for spec, rows in device_rows(table)
    }


def remove_drifts(table: LayerTable, drifts: dict[str, Drift]) -> LayerTable:
    """Returns the rows with the drifts removed from their times."""
    time_ms = table.time_ms.copy()
    for spec, rows in device_rows(table):
        drift = drifts.get(spec.name)
        if drift is not None:
            time_ms[rows] = drift.corrected(table.time_ms[rows], table.position[rows])
    return replace(table, time_ms=time_ms)


def closed_times(closed: LatentModel, table: LayerTable) -> tuple[FloatArray, IntArray]:
    """Returns (float64 [R, 8] milliseconds, int64 [R, 8] types) of the closed forms."""
    parts = [(rows, closed.predict(table.shapes[rows], spec)) for spec, rows in device_rows(table)]
    times = np.full((len(table), parts[0][1][0].shape[1]), np.inf)
    kinds = np.full(times.shape, -1, np.int64)
    for rows, (time_ms, kind) in parts:
        times[rows], kinds[rows] = time_ms, kind
    return times, kinds


def boost(
    features: FloatArray,
    target: FloatArray | IntArray,
    options: BoostOptions,
    *,
    seed: int,
    class_count: int | None = None,
) -> Any:
    """Fits a booster with squared error, or with `class_count` a classifier."""
    parameters: dict[str, Any] = {
        "objective": "reg:squarederror",
        "max_depth": options.depth,
        "learning_rate": options.learning_rate,
        "subsample": options.row_share,
        "colsample_bytree": options.column_share,
        "min_child_weight": options.min_child_weight,
        "lambda": 2.0,
        "nthread": options.threads,
        "seed": seed,
    }
    rounds = options.rounds
    if class_count is not None:
        parameters |= {"objective": "multi:softprob", "num_class": class_count}
        rounds = options.algorithm_rounds
    return grow_trees(parameters, tree_rows(features, target), trees=rounds)
