"""How often a row is found in an LRU cache: Che's approximation.

Source: H. Che, Y. Tung, Z. Wang, "Hierarchical Web Caching Systems: Modeling, Design and
Experimental Results", IEEE JSAC 20(7), 2002: a row is in the cache when it was asked for within the
last C requests, and C is such that C requests touch as many different rows as the cache holds.
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
    """How likely each row is to be asked for, rows of equal chance together.

    Attributes:
        probability: float64 [K], chance of one row of the class, at each request.
        rows: float64 [K], rows of the class; probability @ rows = 1.
    """

    probability: FloatArray
    rows: FloatArray

    @property
    def row_count(self) -> float:
        """Rows that can be asked for."""
        return float(self.rows.sum())

    def distinct_rows(self, requests: float) -> float:
        """Returns how many different rows that many requests touch, on average."""
        return float(self.rows @ self.asked_within(requests))

    def asked_within(self, requests: float) -> FloatArray:
        """Returns float64 [K], the chance that a row is among that many requests.

        1 - exp(-p w) is Che's form; it is written with (1 - p) ** w, exact for independent
        requests.
        """
        if requests <= 0:
            return np.zeros(len(self.probability))
        return np.asarray(-np.expm1(requests * self._log_miss), np.float64)

    @cached_property
    def _log_miss(self) -> FloatArray:
        # A row that is always asked for: any number of requests makes it certain.
        return np.log1p(-np.minimum(self.probability, 1.0 - 1e-15))


def uniform_popularity(rows: int) -> Popularity:
    """Returns equal chances.

    Raises:
        DataError: no rows.
    """
    _check_rows(rows)
    return Popularity(np.array([1.0 / rows]), np.array([float(rows)]))


def zipf_popularity(rows: int, exponent: float) -> Popularity:
    """Returns chances proportional to 1 / rank ** exponent.

    The first 128 ranks are exact, the others are put together in classes of nearly equal chance,
    each with the exact sum of its chances: 50 million rows cost no more than a thousand.

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
    """Tables of equal popularity, visited one after the other, again and again.

    Attributes:
        popularity: of the rows of one table.
        tables: tables in the round.
        requests: requests of one visit.
        row_bytes: cache bytes of a row.
        stream_bytes: cache bytes that other data (indices, results) take, a request.
    """

    popularity: Popularity
    tables: int
    requests: int
    row_bytes: float
    stream_bytes: float = 0.0

    def hit_rate(self, capacity_bytes: float) -> float:
        """Returns the share of row requests that an LRU cache of this size serves, 0 to 1.

        Mean over four moments of a visit. What a visit leaves in the cache is still there at the
        next one as far as the other tables' visits leave room.
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
        """Returns (requests to the table being visited, [(requests, tables) of the others]) among
        the last `reach`, `before` of which belong to the visit under way.
        """
        visit = float(self.requests)
        if reach <= before:
            return reach, []
        if math.isinf(reach):
            return math.inf, [(math.inf, self.tables - 1.0)]
        rounds, rest = divmod(reach - before, visit * self.tables)
        full, partial = divmod(rest, visit)
        full = min(full, self.tables - 1.0)
        if full == self.tables - 1.0:  # the rest reaches back into this table's visit before
            own = before + rounds * visit + min(visit, rest - full * visit)
            return own, [((rounds + 1.0) * visit, full)]
        others = [((rounds + 1.0) * visit, full), (rounds * visit + partial, 1.0)]
        remaining = self.tables - 2.0 - full
        return before + rounds * visit, [*others, (rounds * visit, remaining)]


def _solve(held: Callable[[float], float], capacity: float, *, least: float) -> float:
    """Returns the number of requests at which the increasing function `held` is `capacity`.

    Regula falsi (the Illinois variant): the function is smooth, a few steps are enough.

    Args:
        least: where the search starts, above 0: requests of which no two are for the same row.
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

    Euler and Maclaurin's formula to the second derivative term; the edges are large. The integral
    counts from 1, so that it does not lose its digits near an exponent of 1.
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
