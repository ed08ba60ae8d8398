"""Numbers of pages as text: means with their 95 % intervals, and ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cdmpp.metrics import Judged, mean_and_interval, spearman_by_task
from cdmpp.text import percent_text

#: Predictions and measurements of programs: name -> one entry per program.
Columns: TypeAlias = dict[str, NDArray[Any]]


def read_columns(path: Path) -> Columns:
    """Returns the columns of a Parquet file."""
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def mean_over_devices(
    table: Columns, values: NDArray[Any], figure: Callable[[NDArray[Any]], Any] = np.mean
) -> float:
    """Returns the mean over devices of a statistic of their programs' values."""
    labels = table["device"].astype(np.str_)
    return float(np.mean([figure(values[labels == one]) for one in np.unique(labels)]))


def device_figures(
    table: Columns, line: str, error: NDArray[Any], task: NDArray[np.int64]
) -> dict[str, float]:
    """Returns the errors of a column of seconds, means over devices, and its rank within tasks.

    Args:
        error: float64 [N], absolute percentage errors of the column.
        task: int64 [N], index of each program's task.
    """
    _, device = np.unique(table["device"].astype(np.str_), return_inverse=True)
    order = spearman_by_task(
        Judged(table["measured_s"], table[line], task, device, np.ones(task.max() + 1))
    )
    return {
        "mape": mean_over_devices(table, error),
        "median_ape": mean_over_devices(table, error, np.median),
        "spearman": 0.0 if order is None else order,
    }


def is_inside(table: Columns) -> NDArray[np.bool_]:
    """Returns whether each measured time is in its interval from `low_s` to `high_s`."""
    measured_s = table["measured_s"]
    return np.asarray((table["low_s"] <= measured_s) & (measured_s <= table["high_s"]))


def between(value: float, low: float, high: float) -> str:
    """Returns e.g. `0.95 [0.90, 1.01]`."""
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def spread(values: Sequence[float]) -> str:
    """Returns the mean of fractions in percent, with its interval if there is one."""
    mean, half = mean_and_interval(values)
    text = percent_text(mean)
    return text if half is None else f"{text} ± {percent_text(half)}"


def geometric_mean(log_ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns the geometric mean of ratios and the ends of its interval; all three equal the mean
    if there is no interval.
    """
    mean, half = mean_and_interval(log_ratios)
    half = half or 0.0
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def ratio_text(ratios: Sequence[float]) -> str:
    """Returns the geometric mean, with its 95 % interval if there are several values."""
    return log_ratio_text(*mean_and_interval([math.log(ratio) for ratio in ratios]))


def log_ratio_text(mean: float, half: float | None) -> str:
    """Formats a ratio from the mean and the interval's half width of its logarithm."""
    if half is None:
        return f"{math.exp(mean):.3f}"
    return f"{math.exp(mean):.3f} [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]"
