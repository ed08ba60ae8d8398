"""Statistics of the durations under one name."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

_S_PER_NS = 1e-9
# The quantiles use eight buckets per octave, so their error is at most 1/16.
_BUCKET_BITS = 4


@dataclass
class Stat:
    """A named accumulator of durations.

    Sums and sums of squares are integers, which Python never rounds, so merging the stats of
    several threads gives exactly the stat of all samples.

    Attributes:
        name: name of the timer.
        count: number of samples.
        total_ns: sum of the samples.
        square_sum_ns2: sum of the squared samples.
        min_ns, max_ns: smallest and largest sample; None without samples.
        buckets: smallest value of a log-spaced bucket -> number of samples in the bucket.
    """

    name: str
    count: int = 0
    total_ns: int = 0
    square_sum_ns2: int = 0
    min_ns: int | None = None
    max_ns: int | None = None
    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, duration_ns: int) -> None:
        """Adds one sample; a negative sample (the clock was set back) counts as 0."""
        value = max(int(duration_ns), 0)
        shift = _bucket_shift(value)
        self._add(1, value, value * value, value, value)
        self.buckets[value >> shift << shift] += 1

    def merge(self, other: Stat) -> None:
        """Adds all samples of another stat."""
        if other.min_ns is not None and other.max_ns is not None:
            self._add(other.count, other.total_ns, other.square_sum_ns2, other.min_ns, other.max_ns)
            self.buckets.update(other.buckets)

    def _add(self, count: int, total: int, square_sum: int, least: int, most: int) -> None:
        self.count += count
        self.total_ns += total
        self.square_sum_ns2 += square_sum
        self.min_ns = least if self.min_ns is None else min(self.min_ns, least)
        self.max_ns = most if self.max_ns is None else max(self.max_ns, most)

    @property
    def mean_ns(self) -> float:
        """Mean duration; 0 without samples."""
        return self.total_ns / self.count if self.count else 0.0

    @property
    def variance_ns2(self) -> float:
        """Sample variance (n - 1); 0 with fewer than two samples."""
        if self.count < 2:
            return 0.0
        spread = self.count * self.square_sum_ns2 - self.total_ns * self.total_ns
        return spread / (self.count * (self.count - 1))

    @property
    def std_ns(self) -> float:
        """Sample standard deviation (n - 1)."""
        return math.sqrt(self.variance_ns2)

    def quantile_ns(self, share: float) -> float:
        """Returns the approximate quantile, within 1/16 and never beyond the extremes; 0 without
        samples.

        Args:
            share: 0 to 1, e.g. 0.5 for the median.
        """
        if self.min_ns is None or self.max_ns is None:
            return 0.0
        rank = min(max(math.ceil(share * self.count), 1), self.count)
        for low in sorted(self.buckets):
            rank -= self.buckets[low]
            if rank <= 0:
                break
        middle = low + ((1 << _bucket_shift(low)) - 1) / 2
        return min(max(middle, self.min_ns), self.max_ns)

    def line(self, *, thread_id: int | None = None) -> str:
        """Returns the stat as one line, in milliseconds."""
        thread = "" if thread_id is None else f" TID={thread_id:<8}"
        return (
            f"Stat={self.name:<30}{thread} total={_ms(self.total_ns):<10} "
            f"avg={_ms(self.mean_ns):<10} max={_ms(self.max_ns or 0):<10} "
            f"min={_ms(self.min_ns or 0):<10} count={self.count:<10}"
        ).rstrip()

    def as_json(self) -> dict[str, float | int | str]:
        """Returns the stat as JSON values, in seconds."""
        return {
            "name": self.name,
            "count": self.count,
            "total_s": self.total_ns * _S_PER_NS,
            "mean_s": self.mean_ns * _S_PER_NS,
            "std_s": self.std_ns * _S_PER_NS,
            "min_s": (self.min_ns or 0) * _S_PER_NS,
            "max_s": (self.max_ns or 0) * _S_PER_NS,
            "median_s": self.quantile_ns(0.5) * _S_PER_NS,
            "p95_s": self.quantile_ns(0.95) * _S_PER_NS,
        }


def _ms(duration_ns: float) -> str:
    return f"{duration_ns * 1e-6:.6g}"


def _bucket_shift(value: int) -> int:
    """Returns the number of low bits in which the values of a bucket differ."""
    return max(value.bit_length() - _BUCKET_BITS, 0)
