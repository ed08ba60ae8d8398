"""Evaluates a convolution model: errors of time, counters, types and the picked algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cdmpp.analytic.conv.seer.folder import ConvFolder
from cdmpp.analytic.conv.seer.model import SeerModel
from cdmpp.analytic.conv.seer.table import ConvTable, KernelType, PickTable
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError
from cdmpp.metrics import absolute_percentage_error

#: Maximum excess of a pick's measured time over the measured best; above it the pick is wrong.
PICK_TOLERANCE = 0.10


@dataclass(frozen=True)
class TimeErrors:
    """Errors of predicted times; shares and percentages are fractions, None without rows.

    Attributes:
        n: number of rows.
        rmspe: root mean square percentage error (the original calls it "mspe").
        mape: mean absolute percentage error.
        median_ape: median absolute percentage error.
        rmse_ms: root mean square error, milliseconds (the original calls it "mse").
        within_10pct: share of rows with an error of at most 10 %.
        within_20pct: the same for 20 %.
    """

    n: int
    rmspe: float | None
    mape: float | None
    median_ape: float | None
    rmse_ms: float | None
    within_10pct: float | None
    within_20pct: float | None


def time_errors(measured_ms: FloatArray, predicted_ms: FloatArray) -> TimeErrors:
    """Returns the errors of predictions."""
    if not len(measured_ms):
        return TimeErrors(0, None, None, None, None, None, None)
    size = absolute_percentage_error(measured_ms, predicted_ms)
    return TimeErrors(
        n=len(measured_ms),
        rmspe=rmspe(measured_ms, predicted_ms),
        mape=float(size.mean()),
        median_ape=float(np.median(size)),
        rmse_ms=float(np.sqrt(np.mean((predicted_ms - measured_ms) ** 2))),
        within_10pct=float(np.mean(size <= 0.10)),
        within_20pct=float(np.mean(size <= 0.20)),
    )


def rmspe(measured: FloatArray, predicted: FloatArray) -> float:
    """Returns sqrt(mean(((p - r) / r)²)), a fraction."""
    return float(np.sqrt(np.mean((predicted / measured - 1.0) ** 2)))


def pick_errors(table: PickTable, pick: IntArray) -> dict[str, float | int | None]:
    """Returns the errors of picks (int64 [R]; below 0 = no pick).

    `n` layers with a pick, `error_rate` (share of picks more than 10 % slower than the best),
    `exact_rate` (share of picks that are the measured best), `mean_regret` and `p95_regret` of
    (time of the pick / best time - 1); None without picks. A pick that was measured as not
    available counts as wrong and has no regret.
    """
    rows = np.flatnonzero(pick >= 0)
    names = ("error_rate", "exact_rate", "mean_regret", "p95_regret")
    if not len(rows):
        return {"n": 0, **dict.fromkeys(names)}
    regret = table.time_ms[rows, pick[rows]] / table.best_ms[rows] - 1.0
    regret = np.where(np.isfinite(regret), regret, np.inf)
    finite = regret[np.isfinite(regret)]
    values = (
        float(np.mean(is_wrong_pick(table.time_ms[rows], pick[rows]))),
        float(np.mean(regret == 0.0)),
        float(finite.mean()) if len(finite) else None,
        float(np.percentile(finite, 95)) if len(finite) else None,
    )
    return {"n": len(rows), **dict(zip(names, values, strict=True))}


def is_wrong_pick(time_ms: FloatArray, pick: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns bool [R], whether the pick's measured time is over 10 % above the best.

    Args:
        time_ms: float64 [R, A], measured; NaN or inf = not available.
        pick: int64 [R], column of the picked algorithm.
    """
    available = np.where(np.isfinite(time_ms), time_ms, np.inf)
    picked = available[np.arange(len(pick)), pick]
    return np.asarray(picked > (1.0 + PICK_TOLERANCE) * available.min(axis=1), np.bool_)


def kernel_errors(model: SeerModel, tables: Mapping[str, ConvTable]) -> dict[str, Any]:
    """Returns the errors on Test-set-I: isolated kernels with their measured launch.

    Type, counters and time are predicted. The result has per variant, per algorithm and in total:
    errors of the time (also by measured type), share of wrong types, and RMSPE of instructions,
    reads and writes.
    """
    parts: dict[str, dict[str, FloatArray]] = {}
    for name, table in tables.items():
        if name not in model.variants:
            continue
        counted = table[table.is_counted]
        if not len(counted):
            continue
        found = model.variants[name].predict(counted.shapes, counted.launch)
        parts[name] = {
            "measured_ms": counted.time_ms,
            "predicted_ms": found.time_ms,
            "type": counted.kernel_type.astype(np.float64),
            "predicted_type": found.kernel_type.astype(np.float64),
            "instructions": counted.instructions_per_block,
            "predicted_instructions": found.counters.instructions,
            "reads": counted.reads_per_block,
            "predicted_reads": found.counters.reads,
            "writes": counted.writes_per_block,
            "predicted_writes": found.counters.writes,
        }
    groups: dict[str, list[str]] = {"all": list(parts)}
    for name in parts:
        groups.setdefault(model.variants[name].variant.algorithm.name, []).append(name)
        groups[name] = [name]
    return {
        group: _kernel_errors([parts[name] for name in names])
        for group, names in groups.items()
        if names
    }


def layer_errors(model: SeerModel, table: PickTable) -> dict[str, Any]:
    """Returns the errors on Test-set-II: of the layer's predicted time (best of all algorithms)
    against the measured best, of the pick, and of cuDNN's own pick if it was recorded.
    """
    found = model.predict(table.shapes)
    is_single = bool((np.isfinite(table.time_ms).sum(axis=1) == 1).all())
    result: dict[str, Any] = {"layer": asdict(time_errors(table.best_ms, found.layer_ms))}
    result["algorithm_accuracy"] = float(np.mean(found.pick == table.best))
    # Regret needs the time of the picked algorithm, not only of the best one.
    result["pick"] = None if is_single else pick_errors(table, found.pick)
    result["cudnn_pick"] = (
        pick_errors(table, table.cudnn_pick) if (table.cudnn_pick >= 0).any() else None
    )
    return result


def evaluate_folder(model: SeerModel, folder: ConvFolder) -> dict[str, Any]:
    """Returns the errors on all parts of a folder: kernels, layers, picks and cuDNN's own picks."""
    result: dict[str, Any] = {"kernels": kernel_errors(model, folder.test)}
    if folder.layers is not None:
        result["layers"] = layer_errors(model, folder.layers)
    if folder.picks is not None:
        own, cudnn = model.predict(folder.picks.shapes).pick, folder.picks.cudnn_pick
        result["pick"] = pick_errors(folder.picks, own)
        has_cudnn = (cudnn >= 0).any()
        result["cudnn_pick"] = pick_errors(folder.picks, cudnn) if has_cudnn else None
    return result


def kernel_times(
    model: SeerModel, tables: Mapping[str, ConvTable]
) -> tuple[FloatArray, FloatArray]:
    """Returns (measured, predicted) milliseconds, float64 [R], of the fitted kernels.

    Raises:
        DataError: no table is of a fitted variant.
    """
    parts = [
        (table.time_ms, model.variants[name].predict(table.shapes, table.launch).time_ms)
        for name, table in tables.items()
        if name in model.variants
    ]
    if not parts:
        raise DataError(
            f"the tables are of {', '.join(tables) or 'no kernels'}; expected some of the fitted "
            f"variants: {', '.join(model.variants)}"
        )
    measured, predicted = (np.concatenate(column) for column in zip(*parts, strict=True))
    return measured, predicted


def _kernel_errors(parts: list[dict[str, FloatArray]]) -> dict[str, Any]:
    rows = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    by_type = {
        kind.name.lower(): asdict(
            time_errors(
                rows["measured_ms"][rows["type"] == int(kind)],
                rows["predicted_ms"][rows["type"] == int(kind)],
            )
        )
        for kind in KernelType
    }
    return {
        "time": asdict(time_errors(rows["measured_ms"], rows["predicted_ms"])),
        "by_type": by_type,
        "type_error_rate": float(np.mean(rows["type"] != rows["predicted_type"])),
        **{
            f"{name}_rmspe": _counter_rmspe(rows[name], rows[f"predicted_{name}"])
            for name in ("instructions", "reads", "writes")
        },
    }


def _counter_rmspe(measured: FloatArray, predicted: FloatArray) -> float | None:
    """Returns the RMSPE over rows with a count above 0; a kernel may write nothing to DRAM."""
    some = measured > 0
    return rmspe(measured[some], predicted[some]) if some.any() else None
