"""Intervals of whole-network predictions from errors on held-out architectures.

Uses `cdmpp.conformal` with architectures as owners and size classes as columns, because errors of
small networks are larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.conformal import half_widths, least_owners, owner_means
from cdmpp.networks.dataset.samples import TARGETS, UTILISATIONS, NetworkSamples

DEFAULT_COVERAGE = 0.9
#: Number of size classes, each with the same number of calibration samples.
_SIZES = 3


@dataclass(frozen=True)
class TargetWidths:
    """Half widths of the intervals of one target's logarithm.

    Attributes:
        edges: predictions at which the next size class starts, ascending.
        half_width: [sizes].
        architectures: number of calibration architectures.
        samples: number of calibration samples.
        level: level of the quantile of the normalised errors.
    """

    edges: tuple[float, ...]
    half_width: tuple[float, ...]
    architectures: int
    samples: int
    level: float


@dataclass(frozen=True)
class NetworkIntervals:
    """Intervals of the targets with enough calibration architectures.

    Attributes:
        coverage: nominal coverage for the networks of an unseen architecture.
        by_target: target -> half widths.
    """

    coverage: float
    by_target: Mapping[str, TargetWidths]

    def bounds(self, predicted: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns the lower and upper ends, each float64 [N, 6]; NaN without an interval."""
        width = np.full_like(predicted, np.nan)
        for name, found in self.by_target.items():
            column = TARGETS.index(name)
            size = np.searchsorted(np.array(found.edges), predicted[:, column], side="right")
            width[:, column] = np.array(found.half_width)[size]
        low, high = predicted * np.exp(-width), predicted * np.exp(width)
        shares = list(UTILISATIONS)
        high[:, shares] = np.minimum(high[:, shares], 1.0)
        return low, high


def calibrate_networks(
    samples: NetworkSamples, predicted: FloatArray, *, coverage: float = DEFAULT_COVERAGE
) -> NetworkIntervals:
    """Returns intervals calibrated on measured networks that were not used for training.

    A target measured on fewer than coverage / (1 - coverage) architectures has no interval.

    Args:
        predicted: float64 [N, 6].
        coverage: in (0, 1).
    """
    architecture = np.array(samples.architecture, np.str_)
    found = {}
    for column, name in enumerate(TARGETS):
        rows = np.flatnonzero(np.isfinite(samples.targets[:, column] * predicted[:, column]))
        names, owner = np.unique(architecture[rows], return_inverse=True)
        if len(names) < least_owners(coverage):
            continue
        own = predicted[rows, column]
        edges = np.unique(np.quantile(own, np.arange(1, _SIZES) / _SIZES))
        widths = half_widths(
            np.abs(np.log(own) - np.log(samples.targets[rows, column])),
            owner.astype(np.int64),
            np.searchsorted(edges, own, side="right").astype(np.int64),
            np.zeros(len(names), np.int64),
            columns=len(edges) + 1,
            kinds=1,
            coverage=coverage,
        )
        found[name] = TargetWidths(
            edges=tuple(edges.tolist()),
            half_width=tuple(widths.by_column.tolist()),
            architectures=len(names),
            samples=len(rows),
            level=widths.level,
        )
    return NetworkIntervals(coverage, found)


def interval_metrics(
    samples: NetworkSamples, column: int, low: FloatArray, high: FloatArray
) -> dict[str, float | None]:
    """Returns `interval_coverage` and `interval_log_width` of a target, means over architectures;
    None without intervals.

    Args:
        low, high: float64 [N], ends of the intervals.
    """
    measured = samples.targets[:, column]
    rows = np.flatnonzero(np.isfinite(measured * low * high))
    if len(rows) == 0:
        return {"interval_coverage": None, "interval_log_width": None}
    architecture = np.array(samples.architecture, np.str_)[rows]
    _, owner = np.unique(architecture, return_inverse=True)
    inside = (low[rows] <= measured[rows]) & (measured[rows] <= high[rows])
    owner = owner.astype(np.int64)
    return {
        "interval_coverage": float(owner_means(inside.astype(np.float64), owner).mean()),
        "interval_log_width": float(owner_means(np.log(high[rows] / low[rows]), owner).mean()),
    }
