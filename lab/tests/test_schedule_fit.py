"""Fits of the times of GPU programs use no held-out data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cdmpp.analytic.roofline.schedule_columns import SCHEDULE_COLUMNS
from cdmpp.conformal import owner_means
from lab.schedule_fit import MeasuredSchedules, fit_ratio, fit_schedule_times, left_out_log_s
from tests.analytic.roofline.test_schedule_times import a100


def two_devices() -> MeasuredSchedules:
    """Relabels every other task, because a fit needs a device besides the held-out one."""
    measured = MeasuredSchedules.of(a100())
    return replace(measured, device=np.where(measured.owner % 2 == 0, "a100", "b100"))


def test_schedules_say_more_than_a_constant() -> None:
    """Uses other programs of the same tasks; held-out kinds are not tested here."""
    measured = MeasuredSchedules.of(a100())
    half = np.arange(len(measured.log_s)) % 2 == 0
    own = measured.take(np.flatnonzero(half))
    fit = fit_ratio(measured.take(np.flatnonzero(~half)))
    ratio = own.log_s - np.log(own.columns.anchor_s)
    error, other = (
        owner_means(np.abs(one), own.owner).mean()
        for one in (fit.log_s(own.columns) - own.log_s, np.median(ratio) - ratio)
    )
    assert error < 0.9 * other


def test_a_fit_never_sees_what_is_left_out() -> None:
    measured = MeasuredSchedules.of(a100())
    is_conv = measured.kind == "conv2d"
    wrong = replace(measured, log_s=np.where(is_conv, 99.0, measured.log_s))
    found, changed = (left_out_log_s(one, one.kind)[is_conv] for one in (measured, wrong))
    assert found == pytest.approx(changed)


def test_a_fit_has_a_width_for_every_kind() -> None:
    measured = two_devices()
    times = fit_schedule_times(measured)
    assert times.columns == SCHEDULE_COLUMNS
    assert set(times.known.ordinary) == set(measured.kind.tolist())
    kinds, good = np.array(["conv2d", "conv9d"]), np.array([True, False])
    widths = times.known.of(kinds, good)
    assert widths.tolist() == [times.known.ordinary["conv2d"], times.known.unseen_kind[1]]
