"""Quantiles of a stream of numbers in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np

#: Maximum number of stored numbers; more numbers are counted in bins.
EXACT_COUNT = 100_000
#: Bins per power of ten: the error of a quantile is at most 0.12 %.
BINS_PER_DECADE = 1000
#: Bin of zero and of numbers below 1e-30.
_ZERO_BIN = -30 * BINS_PER_DECADE


class Quantiles:
    """Quantiles of numbers >= 0: exact up to `EXACT_COUNT` numbers, then within 0.12 %.

    Count, minimum and maximum are always exact. The result does not depend on the order of the
    numbers.
    """

    def __init__(self) -> None:
        self.count = 0
        self.smallest = math.inf
        self.largest = -math.inf
        self._values = array("d")
        self._bins: Counter[int] = Counter()

    def add(self, values: Iterable[float]) -> None:
        """Adds numbers."""
        numbers = np.fromiter(values, np.float64)
        if not len(numbers):
            return
        self.count += len(numbers)
        self.smallest = min(self.smallest, float(numbers.min()))
        self.largest = max(self.largest, float(numbers.max()))
        self._values.frombytes(numbers.tobytes())
        if self._bins or len(self._values) > EXACT_COUNT:
            self._count_values()

    def _count_values(self) -> None:
        values = np.frombuffer(self._values, np.float64)
        safe = np.maximum(values, 10.0 ** (_ZERO_BIN / BINS_PER_DECADE))
        bins = np.floor(np.log10(safe) * BINS_PER_DECADE).astype(np.int64)
        for number, count in zip(*np.unique(bins, return_counts=True), strict=True):
            self._bins[int(number)] += int(count)
        self._values = array("d")

    def quantile(self, fraction: float) -> float | None:
        """Returns a quantile; None if there are no numbers."""
        if self.count == 0:
            return None
        if not self._bins:
            return float(np.quantile(np.frombuffer(self._values, np.float64), fraction))
        place = fraction * (self.count - 1)
        seen = 0
        for number in sorted(self._bins):
            seen += self._bins[number]
            if seen > place:
                middle = math.pow(10.0, (number + 0.5) / BINS_PER_DECADE)
                return min(max(middle, self.smallest), self.largest)
        return self.largest
