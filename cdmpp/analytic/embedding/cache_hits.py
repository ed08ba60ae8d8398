"""Hit rates of an LRU cache by Che's approximation.

Source: H. Che, Y. Tung, Z. Wang, "Hierarchical Web Caching Systems: Modeling, Design and
Experimental Results", IEEE JSAC 20(7), 2002: a row is cached if one of the last C requests was for
it, where C requests touch as many different rows as the cache holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.errors import DataError

_EXACT_RANKS = 128
_CLASSES = 96
_MOST_REQUESTS = 1e18
_TOLERANCE = 1e-6
_MOST_STEPS = 100
_PHASES = 4


@dataclass(frozen=True)
class Popularity:
    """Request probabilities of rows, grouped into classes of equal probability.

    Attributes:
        probability: float64 [K], probability of one row of the class, per request.
        rows: float64 [K], rows of the class; probability @ rows = 1.
    """

    probability: FloatArray
    rows: FloatArray

    @property
    def row_count(self) -> float:
        """Total number of rows."""
        return float(self.rows.sum())

    def distinct_rows(self, requests: float) -> float:
        """Returns the expected number of different rows in that many requests."""
        return float(self.rows @ self.asked_within(requests))

    def asked_within(self, requests: float) -> FloatArray:
        """Returns float64 [K], the probability that a row is among that many requests.

        Che's form is 1 - exp(-p w); this is 1 - (1 - p) ** w, which is exact for independent
        requests.
        """
        if requests <= 0:
            return np.zeros(len(self.probability))
        return np.asarray(-np.expm1(requests * self._log_miss), np.float64)

    @cached_property
    def _log_miss(self) -> FloatArray:
        # A row with probability 1: any number of requests makes it certain.
        return np.log1p(-np.minimum(self.probability, 1.0 - 1e-15))


def uniform_popularity(rows: int) -> Popularity:
    """Returns equal probabilities.

    Raises:
        DataError: no rows.
    """
    _check_rows(rows)
    return Popularity(np.array([1.0 / rows]), np.array([float(rows)]))


def zipf_popularity(rows: int, exponent: float) -> Popularity:
    """Returns probabilities proportional to 1 / rank ** exponent.

    The first 128 ranks are exact. The others are grouped into classes of nearly equal probability,
    each with its exact sum: 50 million rows cost no more than a thousand.

    Raises:
        DataError: no rows, or an exponent below 0.
    """
    _check_rows(rows)
    if not exponent >= 0:
        raise DataError(f"Zipf exponent is {exponent}, expected a number from 0 up")
    if exponent == 0:
        return uniform_popularity(rows)
    exact = min(rows, _EXACT_RANKS)
    weight = np.arange(1, exact + 1, dtype=np.float64) ** -exponent
    count = np.ones(exact)
    if rows > exact:
        edges = np.unique(np.round(np.geomspace(exact, rows, _CLASSES + 1)))
        mass = _power_sum(edges, exponent)
        count = np.concatenate([count, np.diff(edges)])
        weight = np.concatenate([weight, np.diff(mass) / np.diff(edges)])
    return Popularity(weight / float(weight @ count), count)


@dataclass(frozen=True)
class TableVisits:
    """Tables of equal popularity that are visited in turn, repeatedly.

    Attributes:
        popularity: popularity of one table's rows.
        tables: number of tables.
        requests: number of requests per visit.
        row_bytes: cache bytes of a row.
        stream_bytes: cache bytes of other data (indices, results) per request.
    """

    popularity: Popularity
    tables: int
    requests: int
    row_bytes: float
    stream_bytes: float = 0.0

    def hit_rate(self, capacity_bytes: float) -> float:
        """Returns the share of row requests that an LRU cache of this size serves, 0 to 1.

        The result is the mean over four moments of a visit. Rows of a visit stay cached until the
        next one, as far as the other tables' visits leave room.
        """
        if capacity_bytes <= 0:
            return 0.0
        share = self.popularity.probability * self.popularity.rows
        total = 0.0
        for phase in range(_PHASES):
            before = (phase + 0.5) / _PHASES * self.requests
            reach = self._reach(capacity_bytes, before)
            own, _ = self._requests_within(reach, before)
            total += float(share @ self.popularity.asked_within(own))
        return _clip(total / _PHASES)

    def _reach(self, capacity_bytes: float, before: float) -> float:
        def held(reach: float) -> float:
            own, others = self._requests_within(reach, before)
            rows = self.popularity.distinct_rows(own)
            rows += sum(n * self.popularity.distinct_rows(requests) for requests, n in others)
            return rows * self.row_bytes + reach * self.stream_bytes

        most = self.popularity.row_count * self.row_bytes * self.tables
        if self.stream_bytes == 0.0 and capacity_bytes >= most:
            return math.inf
        return _solve(
            held, capacity_bytes, least=capacity_bytes / (self.row_bytes + self.stream_bytes)
        )

    def _requests_within(
        self, reach: float, before: float
    ) -> tuple[float, list[tuple[float, float]]]:
        """Returns (requests to the current table, [(requests, tables) of the others]) among the
        last `reach` requests, `before` of which belong to the current visit.
        """
        visit = float(self.requests)
        if reach <= before:
            return reach, []
        if math.isinf(reach):
            return math.inf, [(math.inf, self.tables - 1.0)]
        rounds, rest = divmod(reach - before, visit * self.tables)
        full, partial = divmod(rest, visit)
        full = min(full, self.tables - 1.0)
        if full == self.tables - 1.0:  # the rest reaches back into the previous visit
            own = before + rounds * visit + min(visit, rest - full * visit)
            return own, [((rounds + 1.0) * visit, full)]
        others = [((rounds + 1.0) * visit, full), (rounds * visit + partial, 1.0)]
        remaining = self.tables - 2.0 - full
        return before + rounds * visit, [*others, (rounds * visit, remaining)]


def _solve(held: Callable[[float], float], capacity: float, *, least: float) -> float:
    """Returns the number of requests at which the increasing function `held` equals `capacity`.

    Uses regula falsi (the Illinois variant): the function is smooth, so a few steps suffice.

    Args:
        least: start of the search, above 0: number of requests if all are for different rows.
    """
    low, below = 0.0, -capacity
    high, above = least, held(least) - capacity
    while above < 0:
        low, below = high, above
        high *= 4.0
        if high > _MOST_REQUESTS:
            return math.inf
        above = held(high) - capacity
    last = 0
    for _ in range(_MOST_STEPS):
        middle = high - above * (high - low) / (above - below)
        found = held(middle) - capacity
        if abs(found) <= _TOLERANCE * capacity or high - low <= _TOLERANCE * high:
            return middle
        if found < 0:
            low, below = middle, found
            above = above / 2.0 if last < 0 else above
            last = -1
        else:
            high, above = middle, found
            below = below / 2.0 if last > 0 else below
            last = 1
    return (low + high) / 2.0


def _power_sum(edges: FloatArray, exponent: float) -> FloatArray:
    """Returns float64, sums of rank ** -exponent over the ranks 1..edge, up to a constant.

    Uses the Euler-Maclaurin formula to the second derivative term; the edges are large. The
    integral starts at 1, so that it keeps its digits near an exponent of 1.
    """
    rest = 1.0 - exponent
    logarithm = np.log(edges)
    integral = logarithm if rest == 0.0 else np.expm1(rest * logarithm) / rest
    power = edges**-exponent
    return np.asarray(integral + power / 2.0 - exponent * power / edges / 12.0, np.float64)


def _clip(rate: float) -> float:
    return min(1.0, max(0.0, rate))


def _check_rows(rows: int) -> None:
    if rows < 1:
        raise DataError(f"popularity of {rows} rows: expected at least 1")
