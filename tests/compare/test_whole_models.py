"""Answers of `cdmpp compare` beside whole networks that were measured (NeuSight, MIT)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.compare_whole_models import judge
from tests.paths import shared


@pytest.mark.slow
def test_measured_transformers_are_answered_better_than_by_their_roofline() -> None:
    rows = judge(shared("neusight"), ("v100-32gb", "a100-40gb", "h100"), ["bert_large"])
    assert len(rows) == 6
    errors = np.array([row.error for row in rows])
    rooflines = np.array([abs(row.roofline_s / row.measured_s - 1) for row in rows])
    assert errors.mean() < 0.15 < rooflines.mean()
    assert all(row.low_s <= row.measured_s <= row.high_s for row in rows)
    assert {row.method for row in rows} == {"operator models"}
