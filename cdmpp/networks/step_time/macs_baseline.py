"""Baseline of step times: multiply-adds at the device's peak, times a factor per execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.devices.registry import get_device
from cdmpp.networks.step_time.model import way_of
from cdmpp.networks.step_time.runs import MeasuredRun


def macs_roofline_logs(runs: Sequence[MeasuredRun]) -> FloatArray:
    """Returns float64 [N], log seconds of a step's multiply-adds at the device's peak of 16-bit or
    float32 products; NaN if the multiply-adds or the peak are unknown.
    """
    found = np.full(len(runs), np.nan)
    for place, run in enumerate(runs):
        spec = get_device(run.device)
        half = spec.peak_tensor_flop_per_s or spec.peak_fp16_flop_per_s
        peak = half if run.execution.is_half else spec.peak_fp32_flop_per_s
        if run.macs and peak:
            found[place] = np.log(2.0 * run.macs * run.batch / peak)
    return found


def macs_factors(runs: Sequence[MeasuredRun], rows: IntArray) -> dict[str, float]:
    """Returns way (`way_of`) -> log of the factor from `macs_roofline_logs` to the measured
    seconds, the median over the rows where it is known.
    """
    logs = np.log([run.step_s for run in runs]) - macs_roofline_logs(runs)
    rows = rows[np.isfinite(logs[rows])]
    ways = np.array([way_of(run.execution) for run in runs])
    return {
        str(way): float(np.median(logs[rows][ways[rows] == way])) for way in np.unique(ways[rows])
    }


def macs_logs(runs: Sequence[MeasuredRun], factors: Mapping[str, float]) -> FloatArray:
    """Returns float64 [N], log seconds of the baseline; NaN if unknown."""
    added = np.array([factors.get(way_of(run.execution), np.nan) for run in runs])
    return np.asarray(macs_roofline_logs(runs) + added)
