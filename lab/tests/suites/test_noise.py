"""The noise floor against a simulation of repeats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cdmpp.testing.synthetic import make_samples
from lab.suites.noise_floor import noise_floor, noise_metrics


def test_floor_is_what_a_perfect_model_shows_on_one_timing():
    samples = make_samples(40, 10)
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.005, 0.2, len(samples))
    samples = replace(samples, latency_std_s=samples.latency_s * spread)
    floor = noise_floor(samples)
    error = np.abs(rng.normal(0, 1, (2000, len(samples))) * spread)
    assert floor["mape"] == pytest.approx(error.mean(), rel=0.01)
    assert floor["median_ape"] == pytest.approx(np.median(error), rel=0.01)
    assert floor["within_10pct"] == pytest.approx(np.mean(error <= 0.1), abs=0.005)
    assert floor["spearman_by_task"] is None
    assert set(floor["by_device"]) == {"fast", "slow"}


def test_one_value_a_program_has_no_floor():
    samples = make_samples(4, 4)
    silent = replace(samples, latency_std_s=np.zeros(len(samples)))
    assert noise_floor(silent)["mape"] is None
    slow = samples.device == 1
    half = replace(samples, latency_std_s=np.where(slow, np.nan, samples.latency_std_s))
    floor = noise_metrics(half, ["fast", "slow"])
    assert floor["by_device"]["slow"]["mape"] is None
    assert floor["by_device"]["fast"]["mape"] > 0
    assert floor["mean"]["mape"] is None
    assert floor["mean"]["n"] == len(samples)
