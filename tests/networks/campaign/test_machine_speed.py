"""The correction for the machine's speed, against samples of a known machine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cdmpp.networks.campaign.machine_speed import (
    FEWEST_PAIRS,
    WORKS,
    SpeedCorrection,
    SpeedProbe,
    fit_correction,
)

EXPONENTS = np.array([0.5, 0.1, 0.3, 0.0])
USUAL = np.array([1e-3, 2e-3, 3e-3, 4e-3])


def _samples(
    count: int, *, noise: float, seed: int = 0
) -> tuple[list[list[tuple[float, list[float]]]], np.ndarray]:
    """Returns samples measured twice on a machine that is slow at times, and their true times."""
    rng = np.random.default_rng(seed)
    true = np.exp(rng.normal(-4, 2, count))
    samples = []
    for seconds in true:
        rounds = []
        for _ in range(2):
            slow = np.exp(rng.normal(0, 0.2, len(WORKS)))
            own = np.exp(noise * rng.normal()) * np.prod(slow**EXPONENTS)
            rounds.append((float(seconds * own), (USUAL * slow).tolist()))
        samples.append(rounds)
    return samples, true


def test_a_known_machine_is_found() -> None:
    samples, true = _samples(400, noise=0.02)
    found = fit_correction(samples)
    assert found is not None
    assert found.pairs == 400
    np.testing.assert_allclose(found.exponents, EXPONENTS, atol=0.02)
    np.testing.assert_allclose(found.usual_s, USUAL, rtol=0.05)
    pairs = list(zip(samples, true, strict=True))
    apart = [abs(np.log(seconds / t)) for s, t in pairs for seconds, _ in s]
    left = [
        abs(np.log(seconds / found.slowdown([works])[0] / t))
        for s, t in pairs
        for seconds, works in s
    ]
    assert np.mean(left) < 0.3 * np.mean(apart)


def test_works_that_say_nothing_correct_nothing() -> None:
    samples, _ = _samples(4000, noise=0.1)
    rng = np.random.default_rng(1)
    unrelated = [[(t, (USUAL * np.exp(rng.normal(0, 0.2, 4))).tolist()) for t, _ in s]
                 for s in samples]  # fmt: skip
    found = fit_correction(unrelated)
    assert found is not None
    np.testing.assert_allclose(found.exponents, 0.0, atol=0.04)


def test_one_measurement_in_ten_may_be_spoilt() -> None:
    samples, _ = _samples(400, noise=0.02)
    for rounds in samples[::10]:
        rounds[0] = (rounds[0][0] * 3, rounds[0][1])
    found = fit_correction(samples)
    assert found is not None
    np.testing.assert_allclose(found.exponents, EXPONENTS, atol=0.06)


def test_too_few_pairs_correct_nothing() -> None:
    samples, _ = _samples(FEWEST_PAIRS - 1, noise=0.02)
    assert fit_correction(samples) is None
    assert fit_correction([s[:1] for s in _samples(400, noise=0.02)[0]]) is None


def test_the_usual_speed_is_no_slowdown() -> None:
    found = fit_correction(_samples(100, noise=0.02)[0])
    assert found is not None
    assert found.slowdown([found.usual_s]) == pytest.approx(1.0)
    assert SpeedCorrection.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_probe_times_each_work() -> None:
    probe = SpeedProbe()
    times = np.array([probe() for _ in range(5)])
    assert times.shape == (5, len(WORKS))
    assert (times > 0).all()
    assert (np.median(times, axis=0) < 0.1).all()
