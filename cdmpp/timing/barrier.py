"""How far apart the processes of a run arrive at their barriers, and who is last."""

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
    """Arrivals at a barrier, round by round.

    A round is complete when every rank has arrived; then its spreads count, and the rank that came
    last is charged with it.

    Attributes:
        name: of the barrier.
        rank_count: processes that meet there.
        spreads: name of a spread -> its Stat: the last arrival minus the first, the second, the one
            before the last, and the middle one.
        slowest: rank -> rounds in which it was last.
    """

    def __init__(
        self, name: str, rank_count: int, *, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """Args:
            clock: nanoseconds, for `arrive`.

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
        """Complete rounds."""
        return self.spreads["last-first"].count

    def arrive(self, rank: int, *, at_ns: int | None = None) -> None:
        """Notes that a rank has arrived; its n-th arrival belongs to the n-th round.

        Args:
            at_ns: when, on a clock that all ranks share; None = now.

        Raises:
            UsageError: a rank that the barrier does not have.
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
        """Returns the spreads and who was slowest how often."""
        lines = [f"BarrierStat={self.name} ranks={self.rank_count} rounds={self.round_count}"]
        lines += [f"  {stat.line()}" for stat in self.spreads.values()]
        for rank, rounds in self.slowest.most_common():
            share = 100.0 * rounds / self.round_count
            lines.append(f"  slowest rank={rank} rounds={rounds} share={share:.1f} %")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """Returns everything as JSON values, seconds."""
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
