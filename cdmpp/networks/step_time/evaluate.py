"""Errors of predicted step times by device, execution and family."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.networks.step_time.fit import MeasuredSteps
from cdmpp.networks.step_time.macs_baseline import macs_logs
from cdmpp.networks.step_time.model import StepTimeModel, way_of
from cdmpp.networks.step_time.runs import MeasuredRun


@dataclass(frozen=True)
class StepErrors:
    """Errors of a group of runs.

    Attributes:
        group: key of the group.
        values: metric -> value, fractions not percent; None = unknown.
    """

    group: tuple[str, ...]
    values: Mapping[str, float | int | None]

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns a flat JSON object.

        Args:
            names: names of the parts of `group`.
        """
        return dict(zip(names, self.group, strict=True)) | dict(self.values)


def run_errors(
    runs: Sequence[MeasuredRun],
    log_predicted: FloatArray,
    half_width: FloatArray,
    log_macs: FloatArray,
) -> dict[str, float | int | None]:
    """Returns the errors of runs.

    Args:
        log_predicted: float64 [N], predicted log seconds.
        half_width: float64 [N], half widths of the intervals of log seconds; NaN = no interval.
        log_macs: float64 [N], log seconds of the multiply-add baseline (`macs_logs`); NaN =
            unknown.
    """
    log_s = np.log([run.step_s for run in runs])
    error = log_predicted - log_s
    ape = np.abs(np.expm1(error))
    baseline = np.abs(np.expm1(log_macs - log_s))
    has = np.isfinite(half_width)
    inside = np.abs(error) <= half_width
    return {
        "n": len(runs),
        "architectures": len({run.arch for run in runs}),
        "median_ape": float(np.median(ape)),
        "mape": float(ape.mean()),
        "log_error": float(np.abs(error).mean()),
        "median_ratio": float(np.exp(np.median(error))),
        "macs_mape": _median(baseline),
        "interval_coverage": float(inside[has].mean()) if has.any() else None,
        "interval_factor": _median(np.exp(half_width)),
    }


def _median(values: FloatArray) -> float | None:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else None


def grouped_errors(
    runs: Sequence[MeasuredRun],
    log_predicted: FloatArray,
    half_width: FloatArray,
    log_macs: FloatArray,
    key: Callable[[MeasuredRun], tuple[str, ...]],
) -> list[StepErrors]:
    """Returns the errors of groups of runs, sorted by key; runs without a prediction (NaN) are left
    out.
    """
    places: dict[Hashable, list[int]] = {}
    for place, run in enumerate(runs):
        if np.isfinite(log_predicted[place]):
            places.setdefault(key(run), []).append(place)
    found = []
    for group in sorted(places, key=str):
        rows = np.array(places[group], np.int64)
        chosen = [runs[row] for row in rows.tolist()]
        errors = run_errors(chosen, log_predicted[rows], half_width[rows], log_macs[rows])
        found.append(StepErrors(tuple(group), errors))  # type: ignore[arg-type]
    return found


#: Grouping -> (names of the key's parts, key of a run).
GROUPS: Mapping[str, tuple[tuple[str, ...], Callable[[MeasuredRun], tuple[str, ...]]]] = {
    "device": (
        ("device", "dtype", "way", "torch"),
        lambda run: (run.device, run.execution.dtype, way_of(run.execution), run.torch),
    ),
    "family": (("family",), lambda run: (run.family,)),
}


def evaluate_model(model: StepTimeModel, steps: MeasuredSteps) -> dict[str, Any]:
    """Returns the errors of a model on measured runs, overall and by `GROUPS`."""
    runs = steps.runs
    logs = model.log_seconds(steps.inputs)
    widths = np.array([model.half_width(run.device, run.execution) for run in runs])
    macs = macs_logs(runs, model.facts.get("macs_factors", {}))
    trained = set(model.facts.get("architectures", ()))
    found: dict[str, Any] = {
        "all": run_errors(runs, logs, widths, macs),
        "trained_on": sum(run.arch in trained for run in runs),
        "untraced": {f"{arch}@{size}": n for (arch, size), n in steps.untraced.items()},
    }
    for name, (columns, key) in GROUPS.items():
        found[f"by_{name}"] = [
            one.to_json(columns) for one in grouped_errors(runs, logs, widths, macs, key)
        ]
    return found
