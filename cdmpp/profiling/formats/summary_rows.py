"""Rows of summaries (nvprof, nsys): consistency checks and kinds."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.profiling.formats.names import short_name
from cdmpp.profiling.schema import Kind, ProfileRow

_PERCENT_SLACK_A_ROW = 0.1
# Tools print five digits, which limits the precision of calls times mean.
_RELATIVE_SLACK = 2e-4


def device_kind(name: str) -> Kind:
    """Returns the kind of a GPU activity from its name."""
    text = name.lower()
    if "memset" in text and text.startswith("["):
        return "memset"
    if text.startswith("[") and ("memcpy" in text or "memory copy" in text):
        return "memcpy"
    return "kernel"


def summary_row(
    kind: Kind, name: str, calls: int, *, total_s: float, min_s: float, max_s: float, percent: float
) -> ProfileRow:
    """Returns a row with only sums."""
    return ProfileRow(
        kind=kind, name=name, short_name=short_name(name), calls=calls, total_s=total_s,
        min_s=min_s, max_s=max_s, percent=percent,
    )  # fmt: skip


def summary_notes(block: str, rows: Sequence[ProfileRow], mean_s: Sequence[float]) -> list[str]:
    """Returns notes on inconsistent values in a block.

    Args:
        block: heading of the block.
        mean_s: [len(rows)], printed means.
    """
    notes = []
    shown = sum(row.percent or 0.0 for row in rows)
    if rows and abs(shown - 100.0) > _PERCENT_SLACK_A_ROW * len(rows):
        notes.append(f"{block}: the shares add up to {shown:.2f} %; the table seems truncated")
    for row, mean in zip(rows, mean_s, strict=True):
        low, high = row.min_s or 0.0, row.max_s or 0.0
        slack = _RELATIVE_SLACK * max(high, mean)
        if not (low - slack <= mean <= high + slack):
            notes.append(f"{row.short_name}: the mean is not between least and greatest")
        elif abs(row.calls * mean - row.total_s) > _RELATIVE_SLACK * row.total_s + 1e-9:
            notes.append(f"{row.short_name}: total is not calls times mean")
    return notes
