"""Errors of kernel predictions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.analytic.embedding.errors import (
    HISTOGRAM_EDGES,
    error_histogram,
    histogram_labels,
    kernel_errors,
)
from cdmpp.errors import DataError


def test_means_of_the_error():
    found = kernel_errors(np.array([1.0, 1.0, 1.0]), np.array([1.1, 0.8, 1.4]), hit_floor=0.0)
    assert found.gmae == pytest.approx((0.1 * 0.2 * 0.4) ** (1 / 3))
    assert found.mean == pytest.approx(0.7 / 3)
    assert found.std == pytest.approx(np.std([0.1, 0.2, 0.4], ddof=1))
    assert found.signed_mean == pytest.approx(0.1)
    assert found.n == 3


def test_an_exact_hit_does_not_make_everything_perfect():
    measured, predicted = np.array([1.0, 1.0]), np.array([1.0, 1.5])
    assert kernel_errors(measured, predicted, hit_floor=0.0).gmae == 0.0
    assert kernel_errors(measured, predicted).gmae == pytest.approx(np.sqrt(4e-4 * 0.5004))


def test_buckets_are_half_open_and_overflow_is_counted():
    shares = error_histogram(np.array([0.0, 0.05, 0.0499, 3.99, 4.0, 70.0]))
    assert len(shares) == len(HISTOGRAM_EDGES) == len(histogram_labels())
    assert shares[0] == pytest.approx(2 / 6)
    assert shares[1] == pytest.approx(1 / 6)
    assert shares[-2] == pytest.approx(1 / 6)
    assert shares[-1] == pytest.approx(2 / 6)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_every_error_is_in_one_bucket(errors):
    assert sum(error_histogram(np.array(errors))) == pytest.approx(1.0)


def test_nothing_to_compare_is_refused():
    with pytest.raises(DataError, match="0 measurements"):
        kernel_errors(np.array([]), np.array([]))
    with pytest.raises(DataError, match="not positive"):
        kernel_errors(np.array([0.0]), np.array([1.0]))
