"""Conversion of predicted seconds to the scores that a search compares; needs no TVM."""

from __future__ import annotations

import numpy as np

from cdmpp.arrays import FloatArray


def scores_of(
    reference_s: dict[str, tuple[float, float]],
    task: str,
    latency_s: FloatArray,
    *,
    unsupported: float,
) -> FloatArray:
    """Returns the scores of candidates of one task: positive, higher is better.

    A score is the shortest latency predicted for the task before this round, divided by the
    candidate's latency.

    Args:
        reference_s: task -> (reference for this round, shortest predicted so far), in seconds;
            updated in place.
        latency_s: float64 [candidate], predicted seconds; NaN without features.
        unsupported: score of a candidate without features.

    Returns:
        float64 [candidate].
    """
    is_known = np.isfinite(latency_s)
    if not np.any(is_known):
        return np.full(len(latency_s), unsupported)
    shortest = float(latency_s[is_known].min())
    # The reference changes only between rounds: TVM compares scores across batches of a round.
    reference, best = reference_s.get(task, (shortest, shortest))
    reference_s[task] = (reference, min(best, shortest))
    return np.where(is_known, reference / np.where(is_known, latency_s, 1.0), unsupported)


def move_reference(reference_s: dict[str, tuple[float, float]], task: str) -> None:
    """Sets a task's reference to the shortest latency predicted so far, after a measured batch."""
    reference = reference_s.get(task)
    if reference is not None:
        reference_s[task] = (reference[1], reference[1])
