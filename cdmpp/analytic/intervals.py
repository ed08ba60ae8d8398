"""Intervals of closed-form models: where 90 % of the errors of their validation lie."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: (lower end, upper end) of a value; None = unknown.
Ends = tuple[float, float] | tuple[None, None]

#: Share of held-out errors between the ends of an interval.
COVERAGE = 0.9

#: Fewer errors do not say where 90 % of new ones lie: an end would be beyond the largest of them.
LEAST_ERRORS = 19


@dataclass(frozen=True)
class LogErrors:
    """Where 90 % of log(measured / predicted) lie on rows that were held out of the fit.

    Attributes:
        low: lower end, at most 0, so that an interval holds its prediction.
        high: upper end, at least 0.
        count: rows that were judged.
    """

    low: float
    high: float
    count: int

    @classmethod
    def of(cls, errors: NDArray[np.float64]) -> LogErrors | None:
        """Returns the ends of errors (float64 [N]); None with fewer than `LEAST_ERRORS`.

        Source: split conformal prediction (Vovk, Gammerman and Shafer 2005): of N exchangeable
        errors the (N + 1) q-th bounds a new one with chance q.
        """
        count = len(errors)
        if count < LEAST_ERRORS:
            return None
        ordered = np.sort(errors)
        outside = max(1, math.floor((1.0 - COVERAGE) / 2 * (count + 1)))
        low, high = float(ordered[outside - 1]), float(ordered[count - outside])
        return cls(min(low, 0.0), max(high, 0.0), count)

    @classmethod
    def widest(cls, parts: Iterable[LogErrors | None]) -> LogErrors | None:
        """Returns the lowest and the highest end of several; None where there are none."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        ends = min(part.low for part in known), max(part.high for part in known)
        return cls(*ends, sum(part.count for part in known))

    def ends(self, value: float) -> tuple[float, float]:
        """Returns (lower end, upper end) of a predicted value, in its unit."""
        return value * math.exp(self.low), value * math.exp(self.high)

    def to_json(self) -> list[float | int]:
        """Returns a value for JSON."""
        return [round(self.low, 4), round(self.high, 4), self.count]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> LogErrors:
        """Returns the errors of `to_json`."""
        low, high, count = value
        return cls(float(low), float(high), int(count))


def ends_of(errors: LogErrors | None, value: float) -> Ends:
    """Returns (lower end, upper end) of a value, in its unit; None = unknown."""
    return (None, None) if errors is None else errors.ends(value)


@dataclass(frozen=True)
class Evidence:
    """What an interval rests on.

    Attributes:
        source: what was measured, or why the error is unknown, as a clause.
        is_known: whether there is an interval.
    """

    source: str
    is_known: bool

    @property
    def sentence(self) -> str:
        """The line that a command prints below its times."""
        return f"{'interval from' if self.is_known else 'no interval'}: {self.source}"
