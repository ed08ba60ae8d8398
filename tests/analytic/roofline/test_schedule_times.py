"""GPU programs that a model has not seen the like of are answered by bound and schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from cdmpp.analytic.roofline.floor import sample_floor_s
from cdmpp.analytic.roofline.schedule_columns import SCHEDULE_COLUMNS, schedule_columns
from cdmpp.analytic.roofline.schedule_times import packaged_schedule_times
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


def test_the_packaged_fit_knows_its_devices() -> None:
    times = packaged_schedule_times()
    assert times.columns == SCHEDULE_COLUMNS
    assert times.widths_on("t4") is times.new
    assert times.widths_on("v100") is times.known
