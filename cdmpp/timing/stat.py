"""Stat: durations under one name, added one by one and merged without loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

_MS_PER_NS = 1e-6
_S_PER_NS = 1e-9
# Buckets of the quantiles: eight to an octave, so a quantile is off by at most a sixteenth.
_BUCKET_BITS = 3
_NAME_WIDTH = 30


@dataclass
class Stat:
    """A named accumulator of durations.

    Sums and sums of squares are kept as whole numbers, which Python never rounds; so merging the
    stats of several threads gives exactly the stat of all their samples.

    Attributes:
        name: what was timed.
        count: samples.
        total_ns: their sum.
        square_sum_ns2: the sum of their squares.
        min_ns, max_ns: the extremes; None without samples.
        buckets: log-spaced bucket -> samples in it.
    """

    name: str
    count: int = 0
    total_ns: int = 0
    square_sum_ns2: int = 0
    min_ns: int | None = None
    max_ns: int | None = None
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, duration_ns: int) -> None:
        """Adds one sample; a negative one (a clock that was set back) counts as 0."""
        value = max(int(duration_ns), 0)
        self.count += 1
        self.total_ns += value
        self.square_sum_ns2 += value * value
        self.min_ns = value if self.min_ns is None else min(self.min_ns, value)
        self.max_ns = value if self.max_ns is None else max(self.max_ns, value)
        bucket = _bucket(value)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, other: Stat) -> None:
        """Adds all samples of another."""
        self.count += other.count
        self.total_ns += other.total_ns
        self.square_sum_ns2 += other.square_sum_ns2
        for value in (other.min_ns, other.max_ns):
            if value is not None:
                self.min_ns = value if self.min_ns is None else min(self.min_ns, value)
                self.max_ns = value if self.max_ns is None else max(self.max_ns, value)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def reset(self) -> None:
        """Forgets all samples."""
        self.__init__(self.name)  # type: ignore[misc]

    @property
    def mean_ns(self) -> float:
        """Mean duration; 0 without samples."""
        return self.total_ns / self.count if self.count else 0.0

    @property
    def variance_ns2(self) -> float:
        """Variance with n - 1; 0 with fewer than two samples."""
        if self.count < 2:
            return 0.0
        spread = self.count * self.square_sum_ns2 - self.total_ns * self.total_ns
        return spread / (self.count * (self.count - 1))

    @property
    def std_ns(self) -> float:
        """Standard deviation with n - 1."""
        return math.sqrt(self.variance_ns2)

    def quantile_ns(self, share: float) -> float:
        """Returns about the quantile: within 1/16 of it, and never beyond the extremes.

        Args:
            share: 0 to 1, e.g. 0.5 for the median.
        """
        if not self.count or self.min_ns is None or self.max_ns is None:
            return 0.0
        rank = min(max(math.ceil(share * self.count), 1), self.count)
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                low, high = _bucket_bounds(bucket)
                return min(max((low + high) / 2, self.min_ns), self.max_ns)
        return float(self.max_ns)

    def line(self, *, thread_id: int | None = None) -> str:
        """Returns the stat as one line, milliseconds."""
        thread = "" if thread_id is None else f" TID={thread_id:<8}"
        return (
            f"Stat={self.name:<{_NAME_WIDTH}}{thread} total={_ms(self.total_ns):<10} "
            f"avg={_ms(self.mean_ns):<10} max={_ms(self.max_ns or 0):<10} "
            f"min={_ms(self.min_ns or 0):<10} count={self.count:<10}"
        ).rstrip()

    def as_json(self) -> dict[str, float | int | str]:
        """Returns name, count and seconds."""
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


def merged(name: str, stats: Iterable[Stat]) -> Stat:
    """Returns a stat of all samples of several."""
    found = Stat(name)
    for stat in stats:
        found.merge(stat)
    return found


def span_text(duration_ns: int) -> str:
    """Returns e.g. `10000ms123us`."""
    whole_us = duration_ns // 1000
    return f"{whole_us // 1000}ms{whole_us % 1000}us"


def _ms(duration_ns: float) -> str:
    return f"{duration_ns * _MS_PER_NS:.6g}"


def _bucket(value: int) -> int:
    """Returns the bucket of a value; small values have a bucket each."""
    shift = max(value.bit_length() - _BUCKET_BITS - 1, 0)
    return (shift << _BUCKET_BITS) + (value >> shift)


def _bucket_bounds(bucket: int) -> tuple[int, int]:
    """Returns (least, greatest) value of a bucket."""
    if bucket < 2 << _BUCKET_BITS:
        return bucket, bucket
    shift = (bucket >> _BUCKET_BITS) - 1
    low = (bucket - (shift << _BUCKET_BITS)) << shift
    return low, low + (1 << shift) - 1
