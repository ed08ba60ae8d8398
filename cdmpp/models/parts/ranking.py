"""Inputs of ranking objectives: groups, relevance of their members, and device speeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.roofline.programs import device_rates
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.datasets.samples import Samples


def task_device_groups(samples: Samples) -> IntArray:
    """Returns int64 [N], equal for samples of one task on one device."""
    return samples.task_id * len(samples.devices) + samples.device


def best_over_latency(latency_s: FloatArray, group: IntArray) -> NDArray[np.float32]:
    """Returns float32 [N] in (0, 1], the group's lowest latency divided by each latency."""
    _, member = np.unique(group, return_inverse=True)
    best = np.full(int(member.max(initial=0)) + 1, np.inf)
    np.minimum.at(best, member, latency_s)
    return np.asarray(best[member] / latency_s, np.float32)


def log_rates(samples: Samples) -> FloatArray:
    """Returns float64 [N], log of the peak FLOP/s of each sample's device."""
    return np.log([device_rates(spec)[0] for spec in samples.devices])[samples.device]
