"""Comparison of two profiles: changes in time, and whether they are significant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.profiling.merge import group_rows, join_rows
from cdmpp.profiling.schema import Kind, Profile

#: Probability of any false significant result over all comparisons.
SIGNIFICANCE: Final = 0.05
#: Minimum calls per side for a test: with 3 and 3 calls no order can be significant.
LEAST_CALLS: Final = 4


@dataclass(frozen=True)
class Change:
    """One name in two profiles.

    Attributes:
        kind, name, short_name: of the rows.
        calls: before and after; 0 = missing.
        mean_s: seconds per call, before and after; None = missing.
        total_s: seconds of all calls, before and after.
        ratio: mean after over mean before; None if one is missing.
        p_value: of a two-sided Mann-Whitney test, corrected for the number of names (Holm); None =
            not tested.
        is_significant: whether p_value is below `SIGNIFICANCE`; None = not tested.
    """

    kind: Kind
    name: str
    short_name: str
    calls: tuple[int, int]
    mean_s: tuple[float | None, float | None]
    total_s: tuple[float, float]
    ratio: float | None
    p_value: float | None
    is_significant: bool | None

    def as_json(self) -> dict[str, Any]:
        """Returns the change as JSON values."""
        return asdict(self)


def compare(before: Profile, after: Profile) -> list[Change]:
    """Returns a change for every name, largest difference of total time first.

    Calls of one profile are not independent: drifts of clock or temperature look like real
    differences. Profile the same program twice to see their size.
    """
    sides = [
        {(rows[0].kind, rows[0].name): join_rows(rows) for rows in group_rows(profile.rows)}
        for profile in (before, after)
    ]
    keys = list(dict.fromkeys([*sides[0], *sides[1]]))
    raw = []
    for key in keys:
        samples = [None if key not in side else side[key].samples_s for side in sides]
        raw.append(_mann_whitney(samples[0], samples[1]))
    corrected = holm(raw)
    changes = []
    for key, p_value in zip(keys, corrected, strict=True):
        old, new = (side.get(key) for side in sides)
        one = old or new
        assert one is not None
        means = (old.mean_s if old else None, new.mean_s if new else None)
        changes.append(
            Change(
                kind=one.kind,
                name=one.name,
                short_name=one.short_name,
                calls=(old.calls if old else 0, new.calls if new else 0),
                mean_s=means,
                total_s=(old.total_s if old else 0.0, new.total_s if new else 0.0),
                ratio=means[1] / means[0] if means[0] and means[1] is not None else None,
                p_value=p_value,
                is_significant=None if p_value is None else p_value < SIGNIFICANCE,
            )
        )
    return sorted(changes, key=lambda change: -abs(change.total_s[1] - change.total_s[0]))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Returns p-values corrected by Holm's method; None stays None and is not counted."""
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p_value, index) in enumerate(order):
        least = max(least, min((len(order) - rank) * p_value, 1.0))
        corrected[index] = least
    return corrected


def _mann_whitney(before: FloatArray | None, after: FloatArray | None) -> float | None:
    if before is None or after is None or min(len(before), len(after)) < LEAST_CALLS:
        return None
    if len(np.unique(np.concatenate([before, after]))) == 1:
        return 1.0
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(before, after, alternative="two-sided").pvalue)
