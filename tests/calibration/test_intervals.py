"""Split-conformal intervals on errors whose distribution is known."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from cdmpp.calibration.intervals import (
    LatencyCalibration,
    add_interval_metrics,
    calibrate,
    interval_metrics,
    least_tasks,
)
from cdmpp.testing.synthetic import make_samples


def with_errors(tasks, *, seed, programs_per_task=6, device_factor=(1.0, 1.0), task_spread=0.5):
    """Returns samples and predictions whose log error is normal with a scale of its own for every
    task, so that programs of a task err together.
    """
    samples = make_samples(tasks, programs_per_task, seed=seed, most_leaves=1)
    rng = np.random.default_rng(seed + 1000)
    scale = 0.2 * np.exp(task_spread * rng.normal(size=tasks))
    shift = scale * rng.normal(size=tasks)
    factor = np.array(device_factor)[samples.device]
    error = factor * (
        shift[samples.task_id] + scale[samples.task_id] * rng.normal(size=len(samples))
    )
    return samples, samples.latency_s * np.exp(error)


def covered(calibration, samples, predicted_s):
    factor = np.exp(calibration.half_width(samples))
    return interval_metrics(samples, predicted_s / factor, predicted_s * factor)


@pytest.mark.parametrize(("tasks", "coverage"), [(12, 0.9), (30, 0.9), (40, 0.8)])
def test_coverage_on_unseen_tasks_is_nominal(tasks, coverage):
    found = []
    for seed in range(40):
        samples, predicted_s = with_errors(tasks, seed=seed)
        calibration = calibrate(samples, predicted_s, coverage=coverage)
        assert calibration is not None
        found.append(covered(calibration, *with_errors(60, seed=500 + seed))["interval_coverage"])
    assert np.mean(found) == pytest.approx(coverage, abs=0.03)


def test_a_task_of_many_programs_weighs_as_much_as_one_of_few():
    samples, predicted_s = with_errors(20, seed=0, programs_per_task=8, task_spread=0.0)
    is_first = samples.task_id == 0
    predicted_s = np.where(is_first, samples.latency_s * 50.0, predicted_s)
    few = ~is_first | (np.cumsum(is_first) <= 2)
    whole = calibrate(samples, predicted_s)
    cut = calibrate(samples.take(few), predicted_s[few])
    assert whole is not None
    assert cut is not None
    assert cut.pooled == pytest.approx(whole.pooled, rel=0.1)


def test_a_device_with_larger_errors_gets_wider_intervals():
    samples, predicted_s = with_errors(60, seed=3, device_factor=(1.0, 3.0))
    calibration = calibrate(samples, predicted_s)
    assert calibration is not None
    fast, slow = (calibration.by_device[spec.name] for spec in samples.devices)
    assert slow > 1.8 * fast
    unseen, guess_s = with_errors(60, seed=4, device_factor=(1.0, 3.0))
    by_device = {"by_device": {spec.name: {} for spec in unseen.devices}}
    factor = np.exp(calibration.half_width(unseen))
    add_interval_metrics(by_device, unseen, guess_s / factor, guess_s * factor)
    values = [by_device["by_device"][spec.name]["interval_coverage"] for spec in unseen.devices]
    assert min(values) > 0.8


def test_intervals_are_wide_where_the_parts_of_a_model_disagree():
    def disagreeing(seed):
        samples = make_samples(60, 6, seed=seed, most_leaves=1)
        rng = np.random.default_rng(seed)
        disagreement = np.exp(rng.normal(-2.0, 0.8, len(samples)))
        error = 2.0 * disagreement**0.5 * rng.normal(size=len(samples))
        return samples, samples.latency_s * np.exp(error), disagreement

    calibration = calibrate(*disagreeing(seed=0))
    assert calibration is not None
    assert calibration.disagreement_exponent == pytest.approx(0.5, abs=0.1)
    samples, predicted_s, disagreement = disagreeing(seed=1)
    half_width = calibration.half_width(samples, disagreement)
    is_inside = np.abs(np.log(predicted_s / samples.latency_s)) <= half_width
    is_sure = disagreement < np.median(disagreement)
    assert np.mean(is_inside[is_sure]) == pytest.approx(0.9, abs=0.05)
    assert np.mean(is_inside[~is_sure]) == pytest.approx(0.9, abs=0.05)
    # Nobody knows how far the parts disagree: as wide as for a usual program.
    usual = np.full(len(samples), calibration.usual_disagreement)
    assert calibration.half_width(samples) == pytest.approx(
        calibration.half_width(samples, usual), rel=0.2
    )


def test_a_group_of_few_tasks_is_drawn_towards_all():
    samples, predicted_s = with_errors(40, seed=5, task_spread=0.0)
    operator = samples.programs.operator.copy()
    operator[samples.programs.task_id == 0] = "softmax"
    one_softmax = replace(samples, programs=replace(samples.programs, operator=operator))
    predicted_s = np.where(one_softmax.task_id == 0, samples.latency_s * 1.001, predicted_s)
    calibration = calibrate(one_softmax, predicted_s)
    assert calibration is not None
    assert 0.6 * calibration.pooled < calibration.by_operator["softmax"] < calibration.pooled
    assert calibration.widest >= calibration.by_operator["dense"]


def test_too_few_tasks_give_no_interval():
    assert least_tasks(0.9) == 9
    samples, predicted_s = with_errors(9, seed=0)
    assert calibrate(samples, predicted_s) is not None
    rest = samples.task_id < 8
    assert calibrate(samples.take(rest), predicted_s[rest]) is None
    nothing = np.zeros(len(samples), bool)
    assert calibrate(samples.take(nothing), predicted_s[nothing]) is None


def test_unseen_groups_fall_back_to_their_parents():
    calibration = LatencyCalibration(
        0.9, 10, 10, 0.9, 1.0, {"fast": 2.0}, {"dense": 3.0}, {"fast": {}}
    )
    samples = make_samples(2, 2)
    widths = dict(zip(samples.device.tolist(), calibration.half_width(samples), strict=True))
    assert widths == {0: 2.0, 1: 3.0}
    others = replace(calibration, by_operator={})
    assert set(others.half_width(samples)[samples.device == 1]) == {1.0}
    assert calibration.widest == 3.0


def test_perfect_predictions_have_no_width():
    samples = make_samples(12, 4)
    calibration = calibrate(samples, samples.latency_s.copy())
    assert calibration is not None
    assert calibration.widest < 1e-3


def test_it_is_json_and_back():
    import json

    samples, predicted_s = with_errors(12, seed=0)
    calibration = calibrate(samples, predicted_s)
    assert calibration is not None
    assert LatencyCalibration(**json.loads(json.dumps(asdict(calibration)))) == calibration


def test_metrics_without_intervals_are_none():
    samples = make_samples(2, 2)
    unknown = np.full(len(samples), np.nan)
    none = {"interval_coverage": None, "interval_log_width": None}
    assert interval_metrics(samples, unknown, unknown) == none
    nothing = samples.take(np.zeros(len(samples), bool))
    assert interval_metrics(nothing, np.zeros(0), np.zeros(0)) == none


def test_sums_are_of_means() -> None:
    samples = make_samples(30, 8)
    is_slow = np.arange(len(samples)) % 3 == 0
    predicted_s = samples.latency_s / np.where(is_slow, 4.0, 1.0)
    found = calibrate(samples, predicted_s)
    assert found is not None
    for index, spec in enumerate(samples.devices):
        rows = samples.device == index
        ratio = found.mean_ratio_by_device[spec.name]
        assert 1.0 < ratio < 4.0
        total = found.mean_s(samples, predicted_s)[rows].sum()
        assert total == pytest.approx(ratio * predicted_s[rows].sum())
        tasks = np.unique(samples.task_id[rows])
        expected = [
            samples.latency_s[rows & (samples.task_id == task)].sum()
            / predicted_s[rows & (samples.task_id == task)].sum()
            for task in tasks
        ]
        assert ratio == pytest.approx(np.median(expected))
