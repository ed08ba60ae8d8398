"""Interval of the ratio of two lines' errors on other tasks, networks or devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Errors of one seed: device -> unit (a workload or a network) -> [samples, sum of their APE].
Errors: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]

_DRAWS = 2000
_SEED = 20_260


def ratio_interval(
    ours: Sequence[Errors], theirs: Sequence[Errors], *, are_devices_drawn: bool
) -> tuple[float, float] | None:
    """Returns the 95 % interval of the ratio of two MAPEs, each the mean over seeds and devices.

    Units and seeds are drawn with replacement, independently. A unit has the same weight in every
    seed and on every device, because errors on programs of one task are correlated across models
    and devices. With `are_devices_drawn` the devices are drawn too.

    Args:
        ours, theirs: one entry per seed, with the same seeds, devices and units in both.

    Returns:
        2.5 and 97.5 % quantiles of the draws; None with fewer than two seeds or units.

    Source: A. B. Owen, The pigeonhole bootstrap, Annals of Applied Statistics 1 (2007).
    """
    devices = sorted({device for seed in ours for device in seed})
    units = sorted({unit for seed in ours for by_unit in seed.values() for unit in by_unit})
    if min(len(units), len(ours)) < 2:
        return None
    rng = np.random.default_rng(_SEED)
    unit_weight = _counts(rng, len(units))
    seed_weight = _counts(rng, len(ours))
    device_weight = (
        _counts(rng, len(devices)) if are_devices_drawn else np.ones((_DRAWS, len(devices)))
    )
    sizes = _array(ours, devices, units, 0) @ unit_weight.T  # seed device draw
    place_weight = seed_weight.T[:, None, :] * device_weight.T[None, :, :] * (sizes > 0)
    mapes = [
        np.sum(
            place_weight * (_array(line, devices, units, 1) @ unit_weight.T) / np.maximum(sizes, 1),
            axis=(0, 1),
        )
        for line in (ours, theirs)
    ]
    is_drawn = mapes[1] > 0
    low, high = np.percentile(mapes[0][is_drawn] / mapes[1][is_drawn], (2.5, 97.5))
    return float(low), float(high)


def _counts(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Returns float64 [draw, count], how often each of `count` items is drawn in `count` draws."""
    return rng.multinomial(count, np.full(count, 1 / count), size=_DRAWS).astype(np.float64)


def _array(
    seeds: Sequence[Errors], devices: Sequence[str], units: Sequence[str], column: int
) -> NDArray[np.float64]:
    """Returns float64 [seed, device, unit]; 0 for units without test samples."""
    nothing = (0.0, 0.0)
    return np.array(
        [
            [[seed.get(d, {}).get(unit, nothing)[column] for unit in units] for d in devices]
            for seed in seeds
        ]
    )
