"""Predictions for out-of-distribution GPU programs from their lower bound and schedule."""

from __future__ import annotations

import numpy as np

from cdmpp.analytic.roofline.schedule_columns import has_columns, schedule_columns
from cdmpp.analytic.roofline.schedule_times import kinds_of, packaged_schedule_times
from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.datasets.samples import Samples

#: Reason shown with such a prediction.
BY_SCHEDULE = (
    "predicted from its lower bound and its schedule, calibrated on measured programs of other "
    "kinds and GPUs; programs of TVM's default rules (DLight) were measured on an H200 only"
)


def schedule_estimates(
    samples: Samples, is_asked: BoolArray, floor_s: FloatArray
) -> tuple[BoolArray, FloatArray, FloatArray]:
    """Predicts samples from lower bound and schedule.

    Args:
        is_asked: bool [N], samples to predict.
        floor_s: float64 [N], lower bound of the predictions, in seconds.

    Returns:
        Which samples have a prediction, bool [N]; for these, log seconds and half widths of 90 %
        intervals in log seconds, float64 [n] each.
    """
    found = np.zeros(len(samples), bool)
    is_gpu = np.array([has_columns(spec) for spec in samples.devices], bool)[samples.device]
    rows = np.flatnonzero(is_asked & is_gpu)
    if len(rows) == 0:
        return found, np.zeros(0), np.zeros(0)
    own, times = samples.take(rows), packaged_schedule_times()
    columns = schedule_columns(own)
    is_known = np.isfinite(columns.anchor_s)
    found[rows[is_known]] = True
    log_s = np.maximum(times.fit.log_s(columns), np.log(floor_s[rows]))
    kinds, half_width = kinds_of(own), np.zeros(len(rows))
    for index, spec in enumerate(own.devices):
        here = own.device == index
        half_width[here] = times.widths_on(spec.name).of(kinds[here], columns.is_ordinary[here])
    return found, log_s[is_known], half_width[is_known]
