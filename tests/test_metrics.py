"""Metrics against values worked out by hand and against definitions written another way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.metrics import (
    METRIC_NAMES,
    Judged,
    average_ranks,
    mean_and_interval,
    mean_metrics,
    pairwise_accuracy,
    spearman,
    spearman_by_task,
    summarise,
    summarise_by_device,
    task_weights,
    top1_regret,
    top_k_score,
)


def judged(measured, predicted, task=None, device=None, weight=None) -> Judged:
    n = len(measured)
    task = np.zeros(n, np.int64) if task is None else np.asarray(task, np.int64)
    return Judged(
        np.asarray(measured, np.float64),
        np.asarray(predicted, np.float64),
        task,
        np.zeros(n, np.int64) if device is None else np.asarray(device, np.int64),
        np.ones(int(task.max()) + 1) if weight is None else np.asarray(weight, np.float64),
    )


def test_errors_by_hand():
    values = summarise(judged([1.0, 2.0, 4.0, 10.0], [1.04, 2.18, 2.0, 15.0]))
    # errors: 4 %, 9 %, 50 %, 50 %
    assert values["n"] == 4
    assert values["mape"] == pytest.approx((0.04 + 0.09 + 0.5 + 0.5) / 4)
    assert values["median_ape"] == pytest.approx((0.09 + 0.5) / 2)
    logs = np.log([1.04, 1.09, 2.0, 1.5])
    assert values["mean_log_error"] == pytest.approx(logs.mean())
    assert values["median_ratio"] == pytest.approx((1.04 + 1.09) / 2)
    assert values["rmse_s"] == pytest.approx(np.sqrt((0.04**2 + 0.18**2 + 4 + 25) / 4))
    assert values["within_5pct"] == 0.25
    assert values["within_10pct"] == pytest.approx(0.5)
    assert values["within_20pct"] == 0.5
    assert tuple(values) == METRIC_NAMES


def test_average_ranks_share_ties():
    assert average_ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_spearman_by_hand():
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 40])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([4.0, 3, 2, 1])) == pytest.approx(-1)
    # d = (0, 1, -1, 0): 1 - 6 * 2 / (4 * 15)
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(0.8)
    assert spearman(np.array([1.0, 2, 3]), np.array([5.0, 5, 5])) == 0


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=15))
def test_spearman_is_pearson_of_pairwise_ranks(pairs):
    first = np.array([p[0] for p in pairs], np.float64)
    second = np.array([p[1] for p in pairs], np.float64)

    def ranks(values):
        return [sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values]

    if len(set(first)) == 1 or len(set(second)) == 1:
        assert spearman(first, second) == 0
    else:
        expected = np.corrcoef(ranks(first), ranks(second))[0, 1]
        assert spearman(first, second) == pytest.approx(expected)


def test_spearman_by_task_averages_tasks_and_skips_small_ones():
    measured = [1, 2, 3, 4, 4, 3, 2, 1, 1, 2, 3]
    predicted = [1, 2, 3, 4, 1, 2, 3, 4, 3, 2, 1]
    task = [0] * 4 + [1] * 4 + [2] * 3
    assert spearman_by_task(judged(measured, predicted, task)) == pytest.approx(0.0)
    assert spearman_by_task(judged([1, 2, 3], [1, 2, 3])) is None


def test_spearman_separates_devices_of_one_task():
    measured = [1, 2, 3, 4, 10, 20, 30, 40]
    predicted = [1, 2, 3, 4, 40, 30, 20, 10]
    device = [0, 0, 0, 0, 1, 1, 1, 1]
    assert spearman_by_task(judged(measured, predicted, device=device)) == pytest.approx(0.0)


def test_task_weights_count_every_network():
    assert task_weights([[("a", 2), ("b", 3)], [], [("a", 1)]]).tolist() == [5.0, 1.0, 1.0]


def test_top_k_by_hand():
    measured = [4.0, 1.0, 2.0, 3.0, 10.0, 8.0]
    predicted = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    task = [0, 0, 0, 0, 1, 1]
    weight = [2.0, 1.0]
    # k = 1: task 0 picks 4 s, task 1 picks 10 s
    value = top_k_score(judged(measured, predicted, task, weight=weight), 1)
    assert value == pytest.approx((2 * 1 + 8) / (2 * 4 + 10))
    assert top_k_score(judged(measured, predicted, task, weight=weight), 5) == 1


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 3)),
        min_size=2,
        max_size=6,
        unique_by=lambda p: p[0],
    ),
    st.integers(1, 6),
)
def test_top_k_of_ties_is_the_mean_over_all_orders(pairs, k):
    measured = [float(p[0]) for p in pairs]
    predicted = [float(p[1]) for p in pairs]
    found = []
    for order in itertools.permutations(range(len(pairs))):
        ranked = sorted(order, key=lambda i: predicted[i])
        found.append(min(measured[i] for i in ranked[:k]))
    expected = min(measured) / np.mean(found)
    assert top_k_score(judged(measured, predicted), k) == pytest.approx(expected)


def test_pairwise_accuracy_by_hand():
    # pairs (0,1) right, (0,2) wrong, (1,2) tie
    assert pairwise_accuracy(judged([1, 2, 3], [2, 2.5, 1])) == pytest.approx(1 / 3)
    assert pairwise_accuracy(judged([1, 2], [5, 5])) == pytest.approx(0.5)
    assert pairwise_accuracy(judged([1], [5])) is None


@pytest.mark.parametrize("values", [3, 20, 1000])
def test_pairwise_accuracy_counts_every_pair(values):
    rng = np.random.default_rng(values)
    measured, predicted = rng.integers(1, values, (2, 50)).astype(float)
    first, second = np.triu_indices(50, 1)
    sign = np.sign(measured[first] - measured[second])
    agreement = sign * np.sign(predicted[first] - predicted[second])
    expected = float(np.mean((agreement[sign != 0] + 1.0) / 2.0))
    assert pairwise_accuracy(judged(measured, predicted)) == expected


def test_no_samples_give_none():
    values = summarise(
        Judged(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64), np.ones(1))
    )
    assert values["n"] == 0
    assert values["mape"] is None


def test_by_device_covers_only_devices_with_samples():
    everything, by_device = summarise_by_device(
        judged([1.0, 2.0], [1.0, 3.0], device=[0, 2]), ["a", "b", "c"]
    )
    assert everything["n"] == 2
    assert list(by_device) == ["a", "c"]
    assert by_device["c"]["mape"] == pytest.approx(0.5)


def test_interval_of_three_seeds():
    mean, half = mean_and_interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert half == pytest.approx(4.303 / np.sqrt(3))
    assert mean_and_interval([1.0]) == (1.0, None)
    # t for 20 degrees of freedom is 2.086
    values = list(range(21))
    assert mean_and_interval(values)[1] == pytest.approx(
        2.086 * np.std(values, ddof=1) / np.sqrt(21), rel=1e-3
    )


def test_regret_of_the_first_pick_by_hand():
    measured = [4.0, 1.0, 2.0, 3.0, 10.0, 8.0, 16.0, 24.0]
    predicted = [1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 6.0, 6.0]
    task = [0] * 4 + [1] * 4
    # task 0 picks 4 s of 1 s; task 1 picks 10 s or 8 s of 8 s
    value = top1_regret(judged(measured, predicted, task))
    assert value == pytest.approx((3.0 + 0.125) / 2)
    assert top1_regret(judged(measured, measured, task)) == 0
    assert top1_regret(judged([1, 2, 3], [1, 2, 3])) is None


def test_mean_of_metrics_skips_what_is_undefined():
    means = mean_metrics(
        [{"n": 3, "mape": 0.5, "top1_score": None}, {"n": 5, "mape": 1.5, "top1_score": 0.5}]
    )
    assert means == {"n": 8, "mape": 1.0, "top1_score": 0.5}
    assert mean_metrics([{"n": 1, "mape": None}]) == {"n": 1, "mape": None}
