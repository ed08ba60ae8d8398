"""The run folder: a trained model, its card, metrics and predictions."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.calibration.intervals import calibrate
from cdmpp.calibration.ood import TrainingTasks
from cdmpp.calibration.transfer import fit_transfer
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError, last_line
from cdmpp.files.atomic import write_column_parts
from cdmpp.models.base import CostModel
from cdmpp.models.parts.program_groups import cut
from cdmpp.predict.machine_code.model import FOLDERS as MACHINE_CODE_FOLDERS
from cdmpp.predict.saved_model import RUN_HINT, ModelCard, save_model

#: Rows of predictions per write.
_ROWS = 1 << 17


def split_facts(
    kind: str,
    seed: int,
    description: str,
    *,
    fractions: Sequence[float] = (),
    leaks: bool = False,
    test_networks: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the `split` entry of cards and metrics."""
    return {
        "kind": kind,
        "seed": seed,
        "fractions": list(fractions),
        "description": description,
        "leaks": leaks,
        "test_networks": list(test_networks),
    }


def part_sizes(**parts: Samples) -> dict[str, dict[str, int]]:
    """Returns the number of samples and tasks of each part, by name."""
    return {
        name: {"samples": len(part), "tasks": len(np.unique(part.task_id))}
        for name, part in parts.items()
    }


def run_metrics(
    model: str,
    card: ModelCard,
    parts: dict[str, Samples],
    judged: dict[str, dict[str, Any]],
    *,
    training_s: float,
    predict_s: float,
) -> dict[str, Any]:
    """Returns the entries of metrics.json that all runs have.

    Args:
        model: line of the run's model in `judged`.
        parts: samples by name of the part, including `test`.
        judged: line -> its metrics on the test part.
        predict_s: seconds of predicting the test part.
    """
    calibration = card.calibration
    return {
        "model": model,
        "split": card.split,
        "seed": card.split["seed"],
        "data_hash": card.data_hash,
        "parts": part_sizes(**parts),
        "training_s": training_s,
        "samples_per_s": None,
        "predictions_per_s": len(parts["test"]) / max(predict_s, 1e-9),
        "versions": card.versions,
        "calibration": None
        if calibration is None
        else {
            "coverage": calibration.coverage,
            "tasks": calibration.tasks,
            "samples": calibration.samples,
            "pooled_log_half_width": calibration.pooled,
        },
        "test": judged,
    }


def save_trained(
    model: CostModel,
    directory: Path,
    card: ModelCard,
    *,
    train: Samples,
    validation: Samples,
    validation_s: NDArray[np.float64] | None = None,
    base_tasks: TrainingTasks | None = None,
) -> tuple[ModelCard, TrainingTasks]:
    """Calibrates a trained model and saves it with its training tasks.

    Machine-code models of an earlier model in the folder are removed.

    Args:
        card: its calibration is replaced, and its transfer if it can be fitted.
        validation: measured programs that no weight was fitted to.
        validation_s: float64 [N], predictions for `validation`; None = by the model.
        base_tasks: training tasks of the model that this one was fine-tuned from.

    Returns:
        The card with the calibration, and the training tasks.
    """
    predicted_s, disagreement = (
        model.predict_with_disagreement(validation)
        if validation_s is None
        else (validation_s, None)
    )
    calibrated = replace(
        card,
        calibration=calibrate(validation, predicted_s, disagreement),
        transfer=fit_transfer(validation, predicted_s) or card.transfer,
    )
    tasks = TrainingTasks.fit(train) if base_tasks is None else base_tasks.extended(train)
    for name in MACHINE_CODE_FOLDERS.values():
        shutil.rmtree(directory / name, ignore_errors=True)
    tasks.save(directory)
    save_model(model, directory, calibrated)
    return calibrated, tasks


def write_predictions(path: Path, rows: list[tuple[str, Samples, NDArray[np.float64]]]) -> None:
    """Writes predictions.parquet.

    Its columns are program_id, device, task, operator, part, measured_s and predicted_s.

    Args:
        rows: (name of a part, its samples, float64 [N] predicted seconds).
    """
    write_column_parts(
        path,
        (
            _prediction_columns(name, samples.take(part), predicted_s[part])
            for name, samples, predicted_s in rows
            for part in cut(np.arange(len(samples)), _ROWS)
        ),
    )


def _prediction_columns(
    part: str, samples: Samples, predicted_s: NDArray[np.float64]
) -> dict[str, NDArray[Any]]:
    return {
        "program_id": samples.programs.program_id[samples.program],
        "device": np.array([spec.name for spec in samples.devices], object)[samples.device],
        "task": samples.programs.tasks[samples.task_id],
        "operator": samples.programs.operator[samples.program],
        "part": np.full(len(samples), part, object),
        "measured_s": samples.latency_s,
        "predicted_s": predicted_s,
    }


def read_predictions(path: Path) -> dict[str, NDArray[Any]]:
    """Reads the columns that `write_predictions` wrote; `operator` is empty for older files.

    Raises:
        DataError: the file is missing or damaged.
    """
    import pyarrow as pa
    from pyarrow import parquet

    names = ["program_id", "device", "task", "part", "measured_s", "predicted_s"]
    try:
        has_operator = "operator" in parquet.read_schema(path).names
        table = parquet.read_table(path, columns=[*names, "operator"] if has_operator else names)
        found = {name: table[name].to_numpy() for name in table.column_names}
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} has no predictions ({last_line(error)}); {RUN_HINT}") from None
    found.setdefault("operator", np.full(len(table), "", object))
    seconds = np.stack([found["measured_s"], found["predicted_s"]])
    if seconds.dtype != np.float64 or not bool(np.all((seconds > 0) & np.isfinite(seconds))):
        raise DataError(f"{path} has times that are not positive; {RUN_HINT}")
    return found
