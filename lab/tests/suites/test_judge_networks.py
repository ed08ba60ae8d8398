"""Scores of whole networks, in both definitions in use, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.suites.judge import judge_networks
from tests.datasets.tiny import build_samples


def test_both_definitions_follow_from_the_picked_programs() -> None:
    networks = [[("a,[(1,2)]", 2), ("b,[(1,2)]", 1)], [("a,[(1,2)]", 1)], [("c,[(1,2)]", 5)]]
    samples = build_samples(networks, programs_per_task=2, devices=("cpu",))
    samples = replace(samples, latency_s=np.array([1.0, 4.0, 2.0, 3.0, 7.0, 9.0]))
    # Picks the slow program of task 0 and the fast one of task 1.
    predicted_s = np.array([2.0, 1.0, 1.0, 2.0, 1.0, 2.0])
    found = judge_networks(samples, predicted_s, ["a,[(1, 2)]", "b,[(1,2)]", "d,[(1,2)]"])
    scores = found.pop("cpu")
    assert not found
    assert (scores["n"], scores["tasks"]) == (4, 2)
    first, second = (2 * 1 + 2) / (2 * 4 + 2), 1 / 4
    assert scores["networks"] == {
        "a,[(1,2)]": {"tasks": 2, "top1": pytest.approx(first), "top5": 1.0},
        "b,[(1,2)]": {"tasks": 1, "top1": pytest.approx(second), "top5": 1.0},
    }
    assert scores["mean_top1"] == pytest.approx((first + second) / 2)
    assert scores["pooled_top1"] == pytest.approx((4 + 1) / (10 + 4))
    assert scores["mean_top5"] == scores["pooled_top5"] == 1.0


def test_a_device_without_the_networks_has_no_scores() -> None:
    samples = build_samples([[("a,[(1,2)]", 1)], []], devices=("cpu",))
    assert judge_networks(samples, samples.latency_s, ["b,[(1,2)]"]) == {}
