"""Counters of our cost model in a search."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Usage:
    """What a cost model did so far.

    Attributes:
        predicted: candidates that were scored.
        unsupported: reason -> candidates that got the lowest score.
        measured: candidates whose measurement it was told.
        failed: candidates whose measurement failed.
        tunings: how often the weights were tuned.
        kept_tunings: how often the tuned weights were better and were kept.
        feature_s: seconds spent on lowering and walking.
        predict_s: seconds in `predict`, features included.
        update_s: seconds in `update`, tuning and the XGB model included.
    """

    predicted: int = 0
    unsupported: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    failed: int = 0
    tunings: int = 0
    kept_tunings: int = 0
    feature_s: float = 0.0
    predict_s: float = 0.0
    update_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the counters as JSON values."""
        return {**vars(self), "unsupported": dict(self.unsupported)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Usage:
        """Rebuilds what `to_json` described."""
        return cls(**{**value, "unsupported": Counter(value["unsupported"])})
