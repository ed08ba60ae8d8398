"""Che's approximation against an exact simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.analytic.embedding.access import draw_rows, zipf_probabilities
from cdmpp.analytic.embedding.cache_hits import (
    TableVisits,
    uniform_popularity,
    zipf_popularity,
)
from cdmpp.errors import DataError


def lru_hit_rate(requests, capacity_rows, *, warm_up=0):
    """Share of hits of an exact simulation, the cache empty at first."""
    resident = {}  # a dict keeps its order: the oldest row is the first key
    hits = 0
    for number, row in enumerate(requests.tolist()):
        if row in resident:
            del resident[row]
            resident[row] = None
            hits += number >= warm_up
        else:
            if len(resident) >= capacity_rows:
                del resident[next(iter(resident))]
            resident[row] = None
    return hits / (len(requests) - warm_up)


def one_table_hit_rate(popularity, capacity_rows):
    """Of a table that is asked for again and again."""
    return TableVisits(popularity, 1, 1000, 1.0).hit_rate(capacity_rows)


CASES = [
    (1000, 100, 0.0),
    (1000, 990, 0.0),
    (5000, 2500, 0.0),
    (5000, 50, 0.0),
    (10_000, 500, 0.6),
    (10_000, 500, 1.05),
    (10_000, 5000, 0.8),
    (20_000, 100, 1.2),
]


@pytest.mark.parametrize(("rows", "capacity", "exponent"), CASES)
def test_within_one_percent_of_an_lru_simulation(rows, capacity, exponent):
    requests = draw_rows(np.random.default_rng(7), 400_000, rows, exponent)
    exact = lru_hit_rate(requests, capacity, warm_up=100_000)
    found = one_table_hit_rate(zipf_popularity(rows, exponent), capacity)
    assert abs(found - exact) < 0.01
    # Also relative to the rate, up to three standard errors of the simulation itself.
    noise = 3 * np.sqrt(exact * (1 - exact) / 300_000)
    assert abs(found - exact) < 0.01 * exact + noise


@pytest.mark.parametrize(
    ("rows", "capacity", "exponent", "tables", "requests"),
    [
        (2000, 3000, 0.0, 4, 1500),
        (2000, 3000, 1.05, 4, 1500),
        (2000, 500, 0.8, 4, 1500),
        (1000, 3500, 0.0, 4, 5000),
        (300, 1000, 1.05, 8, 400),
        (2000, 700, 0.0, 2, 300),
        (100, 400, 0.0, 4, 50),
    ],
)
def test_tables_in_turn_within_one_percent(rows, capacity, exponent, tables, requests):
    rng = np.random.default_rng(9)
    visits = 240_000 // requests
    trace = np.concatenate(
        [draw_rows(rng, requests, rows, exponent) + rows * (n % tables) for n in range(visits)]
    )
    exact = lru_hit_rate(trace, capacity, warm_up=len(trace) // 4)
    found = TableVisits(zipf_popularity(rows, exponent), tables, requests, 1.0).hit_rate(capacity)
    assert abs(found - exact) < 0.01


def test_other_data_take_their_part_of_the_cache():
    rng = np.random.default_rng(3)
    rows = draw_rows(rng, 100_000, 2000)
    streamed = 2000 + np.arange(100_000)  # never asked for again
    trace = np.column_stack([rows, streamed]).ravel()
    # Half of the requests are of the stream and never hit.
    exact = 2 * lru_hit_rate(trace, 1000, warm_up=20_000)
    visits = TableVisits(uniform_popularity(2000), 1, 100_000, 64.0, stream_bytes=64.0)
    assert abs(visits.hit_rate(64_000) - exact) < 0.01


@given(rows=st.integers(2, 10**7), share=st.floats(0, 1))
def test_uniform_access_hits_as_often_as_rows_are_cached(rows, share):
    found = one_table_hit_rate(uniform_popularity(rows), share * rows)
    assert found == pytest.approx(share, abs=1e-5)


@given(
    rows=st.integers(2, 50_000), exponent=st.floats(0, 2), low=st.floats(0, 1), high=st.floats(0, 1)
)
def test_a_larger_cache_hits_no_less(rows, exponent, low, high):
    popularity = zipf_popularity(rows, exponent)
    small, large = sorted((low * rows, high * rows))
    first, second = one_table_hit_rate(popularity, small), one_table_hit_rate(popularity, large)
    assert 0.0 <= first <= second + 1e-5 <= 1.0 + 1e-5


@pytest.mark.parametrize("exponent", [1 - 1e-16, 1 - 1e-12, 1 + 1e-9])
def test_chances_are_smooth_at_an_exponent_of_one(exponent):
    found, exact = zipf_popularity(5000, exponent), zipf_popularity(5000, 1.0)
    np.testing.assert_allclose(found.probability, exact.probability, rtol=1e-6)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.3])
def test_classes_of_rows_keep_the_exact_chances(exponent):
    rows = 300_000
    exact = zipf_probabilities(rows, exponent)
    found = zipf_popularity(rows, exponent)
    assert found.probability @ found.rows == pytest.approx(1.0)
    assert found.row_count == rows
    assert found.probability[0] == pytest.approx(exact[0], rel=1e-7)
    place = np.cumsum(found.rows).astype(int)
    assert np.cumsum(found.probability * found.rows)[200] == pytest.approx(
        exact[: place[200]].sum(), rel=1e-7
    )


def test_drawn_rows_follow_the_law():
    rows = draw_rows(np.random.default_rng(0), 200_000, 1000, 1.05)
    counts = np.sort(np.bincount(rows, minlength=1000))[::-1]
    expected = zipf_probabilities(1000, 1.05) * 200_000
    assert counts[:5] == pytest.approx(expected[:5], rel=0.05)
    assert rows.min() >= 0
    assert rows.max() < 1000


def test_nonsense_is_refused():
    with pytest.raises(DataError, match="0 rows"):
        uniform_popularity(0)
    with pytest.raises(DataError, match="exponent"):
        zipf_popularity(10, -1.0)
