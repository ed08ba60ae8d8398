"""Baselines of the kernel models: another GPU's times, or a roofline, times a single factor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdmpp.analytic.gpu_kernels.measured import Measured
from cdmpp.analytic.gpu_kernels.unseen import octaves_between
from cdmpp.arrays import FloatArray
from cdmpp.devices.registry import get_device

#: Candidate factors, relative to the median ratio.
_FACTORS = np.exp(np.linspace(-1.0, 1.0, 401))


def best_factor(measured_s: FloatArray, predicted_s: FloatArray) -> float:
    """Returns the factor on the predictions (float64 [N] both) with the smallest mean absolute
    percentage error.
    """
    ratio = predicted_s / measured_s
    tried = _FACTORS / float(np.median(ratio))
    errors = [float(np.mean(np.abs(factor * ratio - 1.0))) for factor in tried]
    return float(tried[int(np.argmin(errors))])


def nearest_device(label: str, others: Sequence[str]) -> str:
    """Returns the GPU with the smallest difference in peak, bandwidth, cores and L2, in octaves."""
    distances = [octaves_between(get_device(label), get_device(other)) for other in others]
    return others[int(np.argmin(distances))]


def neighbour_s(measured: Measured, label: str, neighbour: str) -> FloatArray:
    """Returns float64 [N], the neighbour's measured seconds of the same call; NaN in rows of other
    devices than `label`, and for calls that the neighbour lacks.
    """
    columns = list(measured.table.columns.values())
    rows = np.array([" ".join(map(str, row)) for row in zip(*columns, strict=True)])
    there = np.flatnonzero(measured.table.device == neighbour)
    own = np.flatnonzero(measured.table.device == label)
    known = dict(zip(rows[there], measured.table.latency_s[there], strict=True))
    found = np.full(len(measured.table), np.nan)
    found[own] = [known.get(row, np.nan) for row in rows[own]]
    return found


def version_before_s(measured: Measured, *, has_factor: bool = True) -> FloatArray:
    """Returns float64 [N], the seconds of the same call, kind of kernel and device in the previous
    measured version of the software; NaN without one.

    Args:
        has_factor: whether to multiply by the best factor for each device and version, chosen on
            that version itself.
    """
    table = measured.table
    calls = [column for name, column in table.columns.items() if name != "release"]
    facts = [table.device, table.software, *calls]
    place = np.zeros(len(table), np.int64)
    for column in facts:
        _, own = np.unique(column, return_inverse=True)
        place = np.unique(place * (int(own.max()) + 1) + own, return_inverse=True)[1]
    release = np.asarray(table.columns["release"], np.float64)
    order = np.lexsort((release, place))
    same = (place[order][1:] == place[order][:-1]) & (release[order][1:] > release[order][:-1])
    found = np.full(len(table), np.nan)
    found[order[1:][same]] = table.latency_s[order[:-1][same]]
    if not has_factor:
        return found
    of_version = np.char.add(np.char.add(table.device, " "), release.astype(np.str_))
    for name in np.unique(of_version[np.isfinite(found)]):
        rows = (of_version == name) & np.isfinite(found)
        found[rows] *= best_factor(table.latency_s[rows], found[rows])
    return found
