"""Counters of a cost model in a search."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Usage:
    """Counters and times of a cost model.

    Attributes:
        predicted: number of scored candidates.
        unsupported: reason -> number of candidates with the lowest score.
        measured: number of measured candidates, including failed ones.
        failed: number of candidates whose measurement failed.
        tunings: number of tunings of the weights.
        kept_tunings: number of tunings whose weights were better and are used.
        feature_s: seconds of lowering and featurising.
        predict_s: seconds in `predict`, including features.
        update_s: seconds in `update`, including tuning and the XGB model.
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
        """Returns the counters that `to_json` returned."""
        return cls(**{**value, "unsupported": Counter(value["unsupported"])})
