"""Expected gain and the rule to stop, on curves that are made up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.errors import UsageError
from tvm_helper.search.expected_gain import (
    WINDOW,
    Gain,
    advice,
    is_settled,
    predicted_gain,
    total_gain,
    trend,
)
from tvm_helper.search.options import SearchOptions

LEAST = 0.02


def settled_after(latencies_s: list[float]) -> int | None:
    """After how many trials the rule stops, without a model's prediction."""
    for trials in range(1, len(latencies_s) + 1):
        if is_settled(Gain(trend(latencies_s[:trials]), None), LEAST):
            return trials
    return None


def test_a_curve_that_falls_is_never_settled() -> None:
    assert settled_after([0.99**n for n in range(300)]) is None


def test_a_flat_curve_is_settled_once_there_is_a_window_before_it() -> None:
    assert settled_after([1.0] * 100) == WINDOW + 1


def test_a_late_step_keeps_the_search_going_for_a_window() -> None:
    curve = [1.0] * 20 + [0.5] + [0.5] * 100
    assert settled_after(curve) == 21 + WINDOW
    slow = [1.0 - 0.0005 * n for n in range(200)]  # 32 trials gain 1.6 %
    assert settled_after(slow) == WINDOW + 1


def test_the_trend_of_failures() -> None:
    inf = math.inf
    assert trend([inf] * (WINDOW + 1)) == 0.0
    assert trend([inf] * WINDOW + [1.0]) == 1.0
    assert trend([1.0] + [inf] * WINDOW) == 0.0
    assert trend([1.0] * WINDOW) is None


def test_a_prediction_keeps_a_flat_task_going() -> None:
    assert is_settled(Gain(0.0, 0.01), LEAST)
    assert not is_settled(Gain(0.0, 0.3), LEAST)
    assert not is_settled(Gain(None, 0.0), LEAST)


def test_the_predicted_gain_is_that_of_the_best_candidate() -> None:
    latencies_s = np.array([1.0, 2.0, 4.0, 8.0])
    scores = 3.0 / latencies_s
    found = predicted_gain(np.array([3.0 / 0.5, 3.0]), scores, latencies_s, best_s=1.0)
    assert found == pytest.approx(0.5)
    assert predicted_gain(np.array([3.0 / 2.0]), scores, latencies_s, best_s=1.0) == 0.0


def test_scores_that_were_too_hopeful_are_taken_back() -> None:
    latencies_s = np.full(8, 2.0)  # all were scored as if they took 1
    found = predicted_gain(np.array([1.0]), np.full(8, 1.0), latencies_s, best_s=2.0)
    assert found == 0.0


def test_before_the_first_window_no_gain_is_announced() -> None:
    """Was the model's prediction, after four programs."""
    assert Gain(None, 0.4).expected is None
    assert Gain(None, None).expected is None
    assert Gain(0.1, None).expected == 0.1
    assert Gain(0.1, 0.4).expected == 0.4


def test_too_few_scores_predict_nothing() -> None:
    ones = np.ones(3)
    assert predicted_gain(np.array([2.0]), ones, ones, best_s=1.0) is None
    assert predicted_gain(np.array([0.0]), np.ones(5), np.ones(5), best_s=1.0) is None


@given(st.floats(1e-9, 1e9), st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=20))
def test_the_scale_of_scores_does_not_matter(scale: float, latencies: list[float]) -> None:
    latencies_s = np.array(latencies)
    scores = 1.0 / latencies_s
    best = float(latencies_s.min())
    first = predicted_gain(scores * 1.7, scores, latencies_s, best)
    second = predicted_gain(scale * scores * 1.7, scale * scores, latencies_s, best)
    assert first is not None
    assert second == pytest.approx(first, abs=1e-9)
    assert 0.0 <= first < 1.0


def test_the_total_is_weighted_by_time() -> None:
    gains = [Gain(0.1, None), Gain(0.0, 0.5)]
    assert total_gain(gains, [3.0, 1.0]) == pytest.approx((0.3 + 0.5) / 4)
    assert total_gain([*gains, Gain(None, None)], [3.0, 1.0, 1.0]) is None
    assert total_gain(gains, [3.0, None]) is None


def test_the_advice_comes_when_all_tasks_are_settled() -> None:
    flat, going = Gain(0.0, 0.01), Gain(0.2, 0.0)
    assert advice([flat, going], LEAST, 80) is None
    assert advice([], LEAST, 0) is None
    said = advice([flat, flat], LEAST, 80)
    assert said is not None
    assert "no candidate is predicted to improve" in said
    assert "2 %" in said
    assert "stop after 80 trials" in said
    without_model = advice([Gain(0.0, None)], LEAST, 80)
    assert without_model is not None
    assert "predicted" not in without_model


def test_rounds_leave_every_task_two() -> None:
    options = SearchOptions(trials=64)
    assert [options.round_size(tasks) for tasks in (1, 2, 4, 20, 100)] == [16, 16, 8, 1, 1]
    assert SearchOptions(trials_per_round=5).round_size(100) == 5


@pytest.mark.parametrize(
    "values",
    [
        {"device": ""},
        {"task": ()},
        {"network": "a.onnx"},
        {"trials": 0},
        {"minutes": -1.0},
        {"stop_gain": 2.0},
        {"final_repeats": 0},
        {"run_timeout_s": 0.0},
        {"cost_model": "xgb", "finetune_every": 8},
    ],
)
def test_options_that_make_no_sense(values: dict[str, object]) -> None:
    good = {"device": "t4", "task": ("matmul",)}
    SearchOptions(**good).check()  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        SearchOptions(**{**good, **values}).check()  # type: ignore[arg-type]
