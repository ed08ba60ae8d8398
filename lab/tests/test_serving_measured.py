"""Trials with measured loads never test a load that counts as measured."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.comparison.llm.calibrate import HOSTS_S
from cdmpp.comparison.llm.decoder import Parallel
from cdmpp.comparison.llm.evaluate import MeasuredLoad
from cdmpp.comparison.llm.load import LoadCell, Shrinkage
from cdmpp.comparison.llm.schedule import Load
from lab.experiments.serving_measured import Point, answers, trials_of

_HOST_S = 0.05


def deployment() -> list[Point]:
    """Returns loads of a server with 0.4 s per request and steps of 1.3 times the simulation."""
    found = []
    for tokens in (512, 2048):
        for users in (1, 4, 16, 64):
            first_s, each_s = 0.01 * users + tokens * 1e-5, 0.005 + 1e-4 * users
            cell = LoadCell("m", "d", Parallel(), Load(users, tokens, 256), "vllm")
            row = MeasuredLoad(
                "m", "d", "vllm", (), cell, 0.4 + 1.3 * first_s, 1.3 * each_s, 1e-3, "agree"
            )
            curve = [[first_s + host_s for host_s in HOSTS_S], [each_s] * len(HOSTS_S)]
            found.append(Point(row, np.array(curve)))
    return found


def test_what_is_measured_is_not_tested() -> None:
    points = deployment()
    trials = trials_of(points)
    assert {(one.way, one.seed, len(one.known)) for one in trials} == {
        (way, seed, count)
        for way in ("random", "sweep") for seed in range(3) for count in (1, 2, 3)
    }  # fmt: skip
    for one in trials:
        assert not {id(own) for own in one.known} & {id(own) for own in one.test}
        is_same = one.test[0].lengths in {own.lengths for own in one.known}
        assert one.kind == f"{len(one.known)} {'same' if is_same else 'other'} lengths"
    tests = {
        tuple(sorted(id(own) for own in one.test)) for one in trials
        if (one.way, one.seed) == ("sweep", 0)
    }  # fmt: skip
    assert len(tests) == 2  # the same for 1, 2 and 3 measured loads


def test_measured_loads_find_a_server_that_the_packaged_fit_misses() -> None:
    points = deployment()
    (trial, *_) = [one for one in trials_of(points) if len(one.known) == 3]
    found = answers(trial, points, _HOST_S, Shrinkage())
    error = {name: float(np.median(np.abs(logs[:, 0]))) for name, logs in found.items()}
    assert error["calibrated"] < 0.2 * error["packaged"]
    assert error["oracle"] <= error["calibrated"] + 0.01
    assert np.median(np.abs(found["calibrated"][:, 1])) == pytest.approx(0.0, abs=0.03)
