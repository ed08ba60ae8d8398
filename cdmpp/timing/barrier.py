"""Statistics of how far apart the processes of a run arrive at a barrier."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from cdmpp.errors import UsageError
from cdmpp.timing.stat import Stat

_SPREADS = ("last-first", "last-second", "last-before_last", "last-middle")


class BarrierStat:
    """Arrivals at a barrier by round.

    A round is complete when every rank has arrived; only then its spreads and its last rank count.

    Attributes:
        name: name of the barrier.
        rank_count: number of processes at the barrier.
        spreads: name of a spread -> its Stat: the last arrival minus the first, the second, the
            last but one, and the median.
        slowest: rank -> number of rounds in which it arrived last.
    """

    def __init__(
        self, name: str, rank_count: int, *, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """Args:
            clock: returns nanoseconds, for `arrive`.

        Raises:
            UsageError: fewer than two ranks.
        """
        if rank_count < 2:
            raise UsageError(f"barrier {name!r}: got {rank_count} ranks, expected at least 2")
        self.name = name
        self.rank_count = rank_count
        self.spreads = {spread: Stat(spread) for spread in _SPREADS}
        self.slowest: Counter[int] = Counter()
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[deque[int]] = [deque() for _ in range(rank_count)]

    @property
    def round_count(self) -> int:
        """Number of complete rounds."""
        return self.spreads["last-first"].count

    def arrive(self, rank: int, *, at_ns: int | None = None) -> None:
        """Records the arrival of a rank; its n-th arrival belongs to round n.

        Args:
            at_ns: time of arrival on a clock that all ranks share; None = now.

        Raises:
            UsageError: the rank is out of range.
        """
        if not 0 <= rank < self.rank_count:
            raise UsageError(
                f"barrier {self.name!r}: rank {rank}, expected 0 to {self.rank_count - 1}"
            )
        now = self._clock() if at_ns is None else at_ns
        with self._lock:
            self._waiting[rank].append(now)
            if all(self._waiting):
                self._count([arrivals.popleft() for arrivals in self._waiting])

    def text(self) -> str:
        """Returns the spreads and how often each rank arrived last, as text."""
        lines = [f"BarrierStat={self.name} ranks={self.rank_count} rounds={self.round_count}"]
        lines += [f"  {stat.line()}" for stat in self.spreads.values()]
        for rank, rounds in self.slowest.most_common():
            share = 100.0 * rounds / self.round_count
            lines.append(f"  slowest rank={rank} rounds={rounds} share={share:.1f} %")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """Returns the statistics as JSON values, in seconds."""
        return {
            "name": self.name,
            "ranks": self.rank_count,
            "rounds": self.round_count,
            "spreads": [stat.as_json() for stat in self.spreads.values()],
            "slowest": {str(rank): count for rank, count in self.slowest.most_common()},
        }

    def _count(self, arrivals_ns: Sequence[int]) -> None:
        order = sorted(arrivals_ns)
        last = order[-1]
        values = (order[0], order[1], order[-2], round(statistics.median(order)))
        for stat, value in zip(self.spreads.values(), values, strict=True):
            stat.add(last - value)
        self.slowest[list(arrivals_ns).index(last)] += 1
