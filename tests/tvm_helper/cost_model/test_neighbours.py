"""What measured neighbours tell of a model's misses."""

from __future__ import annotations

import numpy as np

from tvm_helper.cost_model.neighbours import Misses


def test_likes_are_told_what_their_likes_missed() -> None:
    measured = np.array([[0.0, 5.0], [0.1, 5.0], [4.0, 5.0], [4.1, 5.0]])
    misses = Misses(measured, np.array([1.0, 1.0, 0.0, 0.0]))
    told = misses.told(np.array([[0.05, 5.0], [4.05, 5.0], [400.0, 5.0]]))
    assert 0.3 < told[0] < 0.5  # the mean of all is what every program is told
    assert -0.5 < told[1] < -0.3
    assert told[2] == 0.0
    # A column in which the measured ones are alike says nothing.
    np.testing.assert_array_equal(told[0], misses.told(np.array([[0.05, 99.0]]))[0])


def test_one_miss_for_all_changes_no_order() -> None:
    measured = np.random.default_rng(0).normal(size=(6, 3))
    np.testing.assert_allclose(Misses(measured, np.full(6, 0.7)).told(measured), 0.0, atol=1e-12)


def test_programs_that_nothing_tells_apart_are_told_nothing() -> None:
    misses = Misses(np.ones((3, 2)), np.array([1.0, 0.0, 2.0]))
    np.testing.assert_allclose(misses.told(np.array([[1.0, 2.0]])), 0.0, atol=1e-12)
