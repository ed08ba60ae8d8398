"""The noise floor: expected error of a perfect model, given the spread of repeats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from cdmpp.datasets.samples import Samples
from cdmpp.metrics import METRIC_NAMES, mean_metrics

FloatArray = NDArray[np.float64]

NOISE_FLOOR = "noise-floor"
#: Minimum share of samples with a spread; below it there is no floor.
_LEAST_SHARE = 0.5

#: Explanation on the page.
FORMULA = (
    "noise floor: a single timing is taken to be normal around the true latency, with the relative "
    "spread r = std / mean of the program's own repeats. A perfect model then errs by "
    "mean(r) * sqrt(2 / pi) on average (MAPE); the median APE is the t at which "
    "mean(erf(t / (r * sqrt(2)))) = 1/2, and the share within t is that mean. Labels are means of "
    "repeats, so this is an upper estimate where the repeats are independent; drift between "
    "campaigns is not in it. Empty where the logs hold one value a program."
)


def noise_floor(samples: Samples) -> dict[str, Any]:
    """Returns the floor of all samples and of each device (`by_device`), with the keys of `judge`.

    Only errors have a floor in closed form; rank metrics are None. All are None if fewer than half
    of the samples have a spread.
    """
    by_device = {
        spec.name: _floor(samples.take(samples.device == index))
        for index, spec in enumerate(samples.devices)
        if bool(np.any(samples.device == index))
    }
    return {**_floor(samples), "by_device": by_device}


def noise_metrics(samples: Samples, mean_devices: list[str]) -> dict[str, Any]:
    """Returns `noise_floor` with the keys of `lab.suites.judge.judge_everywhere`.

    The mean over devices is None unless every device has a floor.
    """
    floor = noise_floor(samples)
    by_device = floor.pop("by_device")
    parts = [by_device[label] for label in mean_devices]
    means = mean_metrics(parts)
    if any(part["mape"] is None for part in parts):
        means = {name: value if name == "n" else None for name, value in means.items()}
    return {
        "all": floor,
        "mean": means,
        "mean_devices": mean_devices,
        "by_device": by_device,
        "by_group": {},
    }


def _floor(samples: Samples) -> dict[str, float | int | None]:
    values: dict[str, float | int | None] = dict.fromkeys(METRIC_NAMES)
    values["n"] = len(samples)
    known = np.isfinite(samples.latency_std_s) & (samples.latency_std_s > 0)
    if len(samples) == 0 or known.mean() < _LEAST_SHARE:
        return values
    spread = samples.latency_std_s[known] / samples.latency_s[known]
    values["mape"] = float(spread.mean()) * math.sqrt(2 / math.pi)
    values["median_ape"] = _median_error(spread)
    for percent in (5, 10, 20):
        values[f"within_{percent}pct"] = _share_within(spread, percent / 100)
    return values


def _median_error(spread: FloatArray) -> float:
    """Returns the median absolute error of a timing."""
    low, high = 0.0, 8.0 * float(spread.max())
    for _ in range(60):
        middle = (low + high) / 2
        if _share_within(spread, middle) < 0.5:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _share_within(spread: FloatArray, error: float) -> float:
    return float(np.mean(erf(error / (spread * math.sqrt(2)))))
