"""Weights of two cost models in a search, by their rank correlation on measured batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.metrics import spearman

_log = logging.getLogger("cdmpp")

#: Number of last batches that count, of those that both models scored before the measurement.
WINDOW = 4
#: Minimum number of evaluated programs before the other model gets weight.
LEAST_PROGRAMS = 16
#: Minimum number of programs of a batch for a rank correlation.
_LEAST_BATCH = 4
_LEAST_SHARE = 0.5


@dataclass(frozen=True)
class JudgedBatch:
    """One measured batch.

    Attributes:
        task: name of the task.
        programs: number of measured programs.
        own: Spearman correlation of our scores from before the measurement with measured rates.
        peer: the same correlation of the other model; None while it was not trained.
        peer_share: weight of the other model after this batch, in [0, 1].
    """

    task: str
    programs: int
    own: float
    peer: float | None
    peer_share: float


@dataclass
class SafetyNet:
    """Tracks the rank correlation of our model and of a peer.

    The correlations are means over the last `WINDOW` batches that both models scored, weighted by
    the number of programs. While ours is lower, the peer's weight is 0.5 plus the difference, at
    most 1; otherwise it is 0. Switches between zero and non-zero weight are logged.

    Attributes:
        batches: all evaluated batches, oldest first.
        peer_share: current weight of the peer in the scores.
    """

    batches: list[JudgedBatch] = field(default_factory=list)
    peer_share: float = 0.0

    def judge(
        self, task: str, latency_s: FloatArray, own: FloatArray, peer: FloatArray | None
    ) -> None:
        """Adds a measured batch and updates the weight; ignores batches of fewer than 4 programs.

        Args:
            latency_s: float64 [N], measured seconds.
            own: float64 [N], our scores before the measurement, higher is better.
            peer: float64 [N], the peer's scores; None if it has none.
        """
        if len(latency_s) < _LEAST_BATCH:
            return
        judged = JudgedBatch(
            task=task,
            programs=len(latency_s),
            own=_correlation(own, latency_s),
            peer=None if peer is None else _correlation(peer, latency_s),
            peer_share=self.peer_share,
        )
        share = self._share([*self.batches, judged])
        self.batches.append(JudgedBatch(**{**asdict(judged), "peer_share": share}))
        if (share > 0) != (self.peer_share > 0):
            self._say(share)
        self.peer_share = share

    def to_json(self) -> dict[str, Any]:
        """Returns the state for `from_json`."""
        return {
            "peer_share": self.peer_share,
            "batches": [asdict(batch) for batch in self.batches],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SafetyNet:
        """Returns the safety net whose state `to_json` returned."""
        batches = [JudgedBatch(**batch) for batch in value["batches"]]
        return cls(batches, float(value["peer_share"]))

    def means(self) -> tuple[float, float] | None:
        """Returns (our, the peer's) mean correlation of the window; None if the window is empty."""
        return _means(self.batches)

    def _share(self, batches: Sequence[JudgedBatch]) -> float:
        window = _window(batches)
        means = _means(batches)
        if means is None or sum(batch.programs for batch in window) < LEAST_PROGRAMS:
            return 0.0
        own, peer = means
        return min(1.0, _LEAST_SHARE + peer - own) if own < peer else 0.0

    def _say(self, share: float) -> None:
        means = _means(self.batches)
        assert means is not None
        own, peer = means
        if share > 0:
            _log.warning(
                "cdmpp: on the last measured batches the cost model's scores correlate %.2f "
                "with the measured rates, those of the XGB model %.2f; XGB now has weight %.2f "
                "in the search", own, peer, share,
            )  # fmt: skip
        else:
            _log.warning(
                "cdmpp: the cost model's scores correlate %.2f again, those of XGB %.2f; the "
                "search uses only the cost model", own, peer,
            )  # fmt: skip


def _window(batches: Sequence[JudgedBatch]) -> list[JudgedBatch]:
    return [batch for batch in batches if batch.peer is not None][-WINDOW:]


def _means(batches: Sequence[JudgedBatch]) -> tuple[float, float] | None:
    window = _window(batches)
    if not window:
        return None
    weight = [batch.programs for batch in window]
    own = float(np.average([batch.own for batch in window], weights=weight))
    peer = float(np.average([batch.peer or 0.0 for batch in window], weights=weight))
    return own, peer


def _correlation(score: FloatArray, latency_s: FloatArray) -> float:
    """Returns Spearman's correlation of scores and rates; 0 if either is constant."""
    if np.ptp(score) == 0 or np.ptp(latency_s) == 0:
        return 0.0
    return float(spearman(score, -latency_s))
