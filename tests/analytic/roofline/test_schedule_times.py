"""GPU programs that a model has not seen the like of are answered by bound and schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from cdmpp.analytic.roofline.floor import sample_floor_s
from cdmpp.analytic.roofline.schedule_columns import SCHEDULE_COLUMNS, schedule_columns
from cdmpp.analytic.roofline.schedule_times import (
    MeasuredSchedules,
    fit_ratio,
    fit_schedule_times,
    left_out_log_s,
    packaged_schedule_times,
)
from cdmpp.conformal import owner_means
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs
from cdmpp.devices.registry import get_device
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.pretrained import PRETRAINED, model_folder
from tests.paths import ROOT


@lru_cache
def a100() -> Samples:
    samples = load_samples(ROOT / "data" / "metaschedule-a100")
    samples = samples.take(np.flatnonzero(np.isfinite(samples.latency_s)))
    return cap_programs(samples, 260, seed=0)


@lru_cache
def shipped() -> TrainedModel:
    return load_trained(model_folder(PRETRAINED))


def on_t4(samples: Samples) -> Samples:
    return replace(samples, devices=(get_device("t4"),), device=np.zeros_like(samples.device))


def test_an_unseen_gpu_is_answered_by_bound_and_schedule() -> None:
    samples = on_t4(a100())
    found = shipped().estimate(samples)
    assert found.by_schedule is not None
    assert found.by_schedule.all()
    columns = schedule_columns(samples)
    expected = packaged_schedule_times().fit.log_s(columns)
    assert np.allclose(np.log(found.latency_s), expected)
    # The learned model's own rule for such a device is 20 times each way.
    width = np.log(found.high_s / found.latency_s)[columns.is_ordinary]
    assert columns.is_ordinary.sum() > 20
    assert np.median(width) < np.log(6.0)


def test_no_end_is_below_the_lower_bound() -> None:
    samples = on_t4(a100())
    found, floor_s = shipped().estimate(samples), sample_floor_s(samples)
    assert (found.low_s >= floor_s).all()
    assert (found.low_s <= found.latency_s).all()
    assert (found.latency_s <= found.high_s).all()
    assert schedule_columns(samples).floor_s == pytest.approx(floor_s)


def test_the_bound_counts() -> None:
    """Twice the work at the bound is twice the time: the ratio is to the bound."""
    samples = a100()
    columns = schedule_columns(samples)
    fit = packaged_schedule_times().fit
    longer = replace(columns, anchor_s=2 * columns.anchor_s, floor_s=2 * columns.floor_s)
    assert np.allclose(fit.log_s(longer) - fit.log_s(columns), np.log(2.0))
    high = replace(columns, floor_s=np.full(len(samples), 1e3))
    assert np.allclose(np.exp(fit.log_s(high)), 1e3)


@pytest.mark.exhaustive
def test_familiar_programs_and_cpus_keep_the_model() -> None:
    samples, model = a100(), shipped()
    found = model.estimate(samples)
    familiar = ~np.asarray(found.is_far)
    assert found.by_schedule is None or not found.by_schedule[familiar].any()
    own = model.model.predict(samples)
    assert np.allclose(found.latency_s[familiar], np.fmax(own, model.floor_s(samples))[familiar])
    cpu = replace(samples, devices=(get_device("xeon-avx2-1c"),))
    assert np.isnan(schedule_columns(cpu).anchor_s).all()
    assert model.estimate(cpu).by_schedule is None


def test_work_that_a_model_cannot_see_keeps_the_wide_interval() -> None:
    samples = on_t4(a100())
    doubtful = np.ones(len(samples.programs.program_id), bool)
    hidden = replace(samples, programs=replace(samples.programs, is_doubtful=doubtful))
    assert shipped().estimate(hidden).by_schedule is None


def two_devices() -> MeasuredSchedules:
    """Every other task under another label: a fit needs a device besides the one left out."""
    measured = MeasuredSchedules.of(a100())
    return replace(measured, device=np.where(measured.owner % 2 == 0, "a100", "b100"))


def test_schedules_say_more_than_a_constant() -> None:
    """Of other programs of the same tasks; that kinds are left out is another question."""
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
    assert times.columns == SCHEDULE_COLUMNS == packaged_schedule_times().columns
    assert set(times.known.ordinary) == set(measured.kind.tolist())
    kinds, good = np.array(["conv2d", "conv9d"]), np.array([True, False])
    widths = times.known.of(kinds, good)
    assert widths.tolist() == [times.known.ordinary["conv2d"], times.known.unseen_kind[1]]
    assert packaged_schedule_times().widths_on("t4") is packaged_schedule_times().new
    assert packaged_schedule_times().widths_on("v100") is packaged_schedule_times().known
