"""Busy time of a profile's streams and threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.profiling.schema import DEVICE_KINDS, Profile


@dataclass(frozen=True)
class Utilisation:
    """Utilisation of a profile's device.

    Attributes:
        span_s: from the first event to the end of the last.
        device_busy_s: time with at least one running kernel or copy; None = the profile has none.
        lane_busy_s: lane -> busy time.
    """

    span_s: float
    device_busy_s: float | None
    lane_busy_s: dict[str, float]

    @property
    def device_share(self) -> float | None:
        """Share of the span in which the device was busy."""
        if self.device_busy_s is None or not self.span_s:
            return None
        return self.device_busy_s / self.span_s


def utilisation(profile: Profile) -> Utilisation | None:
    """Returns the utilisation; None if the profile has only sums."""
    events = profile.events
    if events is None or not len(events):
        return None
    end = events.start_s + events.duration_s
    is_device = np.array([row.kind in DEVICE_KINDS for row in profile.rows], bool)[events.row]
    lanes: dict[str, float] = {}
    for lane, name in enumerate(events.lanes):
        chosen = events.lane == lane
        if chosen.any():
            lanes[name] = lanes.get(name, 0.0) + union_s(events.start_s[chosen], end[chosen])
    busy = union_s(events.start_s[is_device], end[is_device]) if is_device.any() else None
    return Utilisation(float(end.max() - events.start_s.min()), busy, lanes)


def union_s(start_s: FloatArray, end_s: FloatArray) -> float:
    """Returns the length of the union of the intervals [start, end]."""
    order = np.argsort(start_s, kind="stable")
    start, end = start_s[order], np.maximum.accumulate(end_s[order])
    before = np.concatenate([[-np.inf], end[:-1]])
    return float(np.maximum(end - np.maximum(start, before), 0.0).sum())
