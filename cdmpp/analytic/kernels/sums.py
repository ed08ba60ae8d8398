"""Sums of kernel times by kind, with their intervals."""

from __future__ import annotations

import math
from collections import defaultdict

#: Seconds, lower end, upper end.
Ends = tuple[float, float, float]


class KindSums:
    """Sums of kernels that run in sequence.

    Errors are assumed to be fully correlated within a kind and independent between kinds: the
    distances to the ends add up within a kind, their squares between kinds.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def add(self, kind: str, ends: Ends, count: int = 1) -> None:
        """Adds `count` launches of a kernel."""
        for place, seconds in enumerate(ends):
            self._sums[kind][place] += count * seconds

    @property
    def by_kind(self) -> dict[str, float]:
        """Seconds of each kind."""
        return {kind: part[0] for kind, part in self._sums.items()}

    def total(self) -> Ends:
        """Returns the sum of all kinds."""
        parts = self._sums.values()
        value = sum(part[0] for part in parts)
        down = math.sqrt(sum((part[0] - part[1]) ** 2 for part in parts))
        up = math.sqrt(sum((part[2] - part[0]) ** 2 for part in parts))
        return value, value - down, value + up
