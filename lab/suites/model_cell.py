"""Runs one cell of a suite: from samples to metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cdmpp.calibration.intervals import (
    INTERVAL_METRICS,
    LatencyCalibration,
    add_interval_metrics,
    calibrate,
)
from cdmpp.datasets.judge import oracle_task_median
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs, of_devices
from cdmpp.datasets.splits import SplitKind, split
from cdmpp.errors import DataError
from cdmpp.metrics import mean_metrics
from cdmpp.models.base import CostModel
from cdmpp.training.run import new_model
from cdmpp.training.run_folder import part_sizes, write_predictions
from lab.suites.judge import (
    errors_by_unit,
    judge_everywhere,
    mean_devices,
    ranks_only,
)
from lab.suites.noise_floor import NOISE_FLOOR, noise_metrics
from lab.suites.plan import ORACLE_LINE, RANDOM_LINE, SuiteCell

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass
class Stopwatch:
    """Sums CPU seconds of this process and wall seconds over timed blocks."""

    cpu_s: float = 0.0
    wall_s: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Times the block."""
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self.cpu_s += time.process_time() - cpu
            self.wall_s += time.perf_counter() - wall


def run_model_cell(cell: SuiteCell, samples: Samples, cell_dir: Path) -> dict[str, Any]:
    """Returns the entries of cell.json for a cell that is split by task or network."""
    labels = cell.key["devices"]
    chosen = of_devices(samples, labels) if labels else samples
    chosen = cap_programs(chosen, cell.key["programs_per_device"], seed=cell.seed)
    parts = split(
        chosen,
        cast("SplitKind", cell.split),
        seed=cell.seed,
        fractions=tuple(cell.key["fractions"]),
        test_networks=cell.key["test_networks"] or None,
    )
    train, validation, test = (
        chosen.take(index) for index in (parts.train, parts.validation, parts.test)
    )
    facts: dict[str, Any] = {
        "split": parts.description,
        "parts": part_sizes(train=train, validation=validation, test=test),
    }
    few = int(cell.key["few_workloads"])
    if not cell.kind:
        return {**facts, **reference_metrics(cell, test, few)}
    found = fit_and_judge(
        cell, train, validation, test, cell_dir, has_intervals=True, networks=parts.test_networks
    )
    return {**facts, **found}


def fit_and_judge(
    cell: SuiteCell,
    train: Samples,
    validation: Samples,
    test: Samples,
    cell_dir: Path,
    *,
    has_intervals: bool = False,
    networks: Sequence[str] = (),
) -> dict[str, Any]:
    """Trains a model and returns the entries of cell.json.

    Args:
        has_intervals: whether to calibrate and evaluate its intervals.
        networks: see `judge_predictions`.
    """
    model, watch = new_model(cell.kind, cell.options), Stopwatch()
    with watch.running():
        model.fit(train, validation, seed=cell.seed)
    calibration = (
        calibrate(validation, *model.predict_with_disagreement(validation))
        if has_intervals
        else None
    )
    return judge_model(cell, model, test, cell_dir, watch, calibration, networks=networks)


def judge_model(
    cell: SuiteCell,
    model: CostModel,
    test: Samples,
    cell_dir: Path,
    watch: Stopwatch,
    calibration: LatencyCalibration | None = None,
    *,
    networks: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the entries of cell.json for a trained model; writes predictions.parquet.

    Args:
        networks: see `judge_predictions`.
    """
    prediction = Stopwatch()
    with prediction.running():
        predicted_s, disagreement = model.predict_with_disagreement(test)
    found = judge_predictions(
        cell, test, predicted_s, cell_dir, watch, prediction, networks=networks
    )
    if calibration is not None:
        half_width = calibration.half_width(test, disagreement)
        add_intervals(found["metrics"], test, predicted_s, half_width)
    if (prior := model.prior_facts()) is not None:
        found["prior"] = prior
    return found


def add_intervals(
    metrics: dict[str, Any], test: Samples, predicted_s: FloatArray, half_width: FloatArray
) -> None:
    """Adds coverage and width of the calibrated intervals to the result of `judge_everywhere`.

    Intervals are not widened for out-of-distribution programs here.
    """
    values = {**metrics["all"], "by_device": metrics["by_device"]}
    add_interval_metrics(
        values, test, predicted_s * np.exp(-half_width), predicted_s * np.exp(half_width)
    )
    metrics["by_device"] = values.pop("by_device")
    metrics["all"] = values
    mean = mean_metrics([metrics["by_device"][label] for label in metrics["mean_devices"]])
    metrics["mean"].update({name: mean[name] for name in INTERVAL_METRICS})


def judge_predictions(
    cell: SuiteCell,
    test: Samples,
    predicted_s: FloatArray,
    cell_dir: Path,
    training: Stopwatch,
    prediction: Stopwatch,
    *,
    networks: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the entries of cell.json for predictions; writes predictions.parquet.

    Args:
        networks: held-out networks of the test part; errors are then summed by network, else by
            task.

    Raises:
        DataError: a prediction is not a positive finite number of seconds.
    """
    bad = int(np.sum(~(np.isfinite(predicted_s) & (predicted_s > 0))))
    if bad:
        raise DataError(
            f"{cell.line}: {bad} of {len(predicted_s)} predictions are not positive finite "
            "seconds; the training diverged, try another learning rate with --set"
        )
    write_predictions(cell_dir / "predictions.parquet", [("test", test, predicted_s)])
    few = int(cell.key["few_workloads"])
    return {
        "training_cpu_s": training.cpu_s,
        "training_wall_s": training.wall_s,
        "predictions_per_cpu_s": len(test) / max(prediction.cpu_s, 1e-9),
        "metrics": judge_everywhere(test, predicted_s, few_workloads=few),
        "errors": errors_by_unit(test, predicted_s, networks),
    }


def reference_metrics(cell: SuiteCell, test: Samples, few_workloads: int) -> dict[str, Any]:
    """Returns the metrics of a reference line."""
    if cell.line == NOISE_FLOOR:
        return {"metrics": noise_metrics(test, mean_devices(test, few_workloads))}
    if cell.line == RANDOM_LINE:
        scores = np.random.default_rng(cell.seed).uniform(0.5, 1.0, len(test))
        return {"metrics": ranks_only(judge_everywhere(test, scores, few_workloads=few_workloads))}
    assert cell.line == ORACLE_LINE
    return {
        "metrics": judge_everywhere(test, oracle_task_median(test), few_workloads=few_workloads)
    }
