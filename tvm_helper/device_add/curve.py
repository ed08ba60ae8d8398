"""Error curve of a new device's model over the number of measured tasks, and its knee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.judge import judge
from cdmpp.datasets.samples import Samples

#: Share of the improvement, from the zero-shot error to the minimum, that the knee reaches.
KNEE_SHARE = 0.9
KNEE_RULE = (
    "the knee is the smallest number of measured tasks at which the median APE of the "
    "pre-trained model has made 90 % of its improvement from 0 tasks to the minimum of the curve"
)
_GROWTH = (1, 3, 10, 30, 100, 300)
_DRAWS = 1000
_METRICS = (
    "n", "mape", "median_ape", "mean_log_error", "median_ratio", "spearman_by_task"
)  # fmt: skip


def budgets(most: int) -> list[int]:
    """Returns the numbers of tasks of the curve, except 0: 1, 3, 10, ... and `most`."""
    return [count for count in _GROWTH if count < 0.8 * most] + [most]


def knee(errors: Mapping[int, float | None]) -> int | None:
    """Returns the knee of number of tasks -> median error, see `KNEE_RULE`.

    0 if no number of tasks improves on the zero-shot error; None without a value at 0 and at
    another number. On few programs the mean error would depend on a single program.
    """
    known = {count: value for count, value in sorted(errors.items()) if value is not None}
    if 0 not in known or len(known) < 2:
        return None
    wanted = known[0] - KNEE_SHARE * (known[0] - min(known.values()))
    return next(count for count, value in known.items() if value <= wanted + 1e-12)


def judged(test: Samples, predicted_s: FloatArray) -> dict[str, Any]:
    """Returns `_METRICS` (see `cdmpp.metrics.summarise`), and `mape_low` and `mape_high`: the 95 %
    bootstrap interval of the MAPE over test tasks.
    """
    values = judge(test, predicted_s)
    found = {name: values[name] for name in _METRICS}
    ape = np.abs(predicted_s / test.latency_s - 1.0)
    tasks, owner = np.unique(test.task_id, return_inverse=True)
    count = np.bincount(owner, minlength=len(tasks)).astype(np.float64)
    total = np.bincount(owner, ape, minlength=len(tasks))
    drawn = np.random.default_rng(0).integers(len(tasks), size=(_DRAWS, len(tasks)))
    means = total[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {**found, "mape_low": float(low), "mape_high": float(high)}


def curve_rows(
    test: Samples, counts: Sequence[int], points: Mapping[tuple[str, int], FloatArray]
) -> list[dict[str, Any]]:
    """Returns one row per number of tasks: `tasks`, and for each start the metrics of `judged` or
    None.

    Args:
        points: (start, number of tasks) -> float64 [N], predicted seconds of the test samples.
    """
    starts = list(dict.fromkeys(start for start, _ in points))
    return [
        {
            "tasks": count,
            **{
                start: judged(test, points[start, count]) if (start, count) in points else None
                for start in starts
            },
        }
        for count in [0, *counts]
    ]
