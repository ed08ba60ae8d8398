"""Selection of samples: by device, and at most a given number of programs per device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import uniform_draw
from cdmpp.errors import DataError


def of_devices(samples: Samples, labels: Iterable[str]) -> Samples:
    """Returns the samples of the devices with these labels; `devices` is unchanged.

    Raises:
        DataError: a label has no samples.
    """
    known = [spec.name for spec in samples.devices]
    chosen = np.zeros(len(samples), np.bool_)
    for label in labels:
        rows = samples.device == known.index(label) if label in known else chosen & False
        if not rows.any():
            raise DataError(
                f"no measurement of device {label!r}; devices found: {', '.join(known) or 'none'}; "
                "see `cdmpp dataset stats`"
            )
        chosen |= rows
    return samples.take(chosen)


def times_on(samples: Samples, label: str) -> NDArray[np.float64]:
    """Returns float64 [P], seconds of each program on the device with this label; NaN if the
    program was not measured on it.
    """
    latency_s = np.full(len(samples.programs.program_id), np.nan)
    for index, spec in enumerate(samples.devices):
        if spec.name == label:
            rows = samples.device == index
            latency_s[samples.program[rows]] = samples.latency_s[rows]
    return latency_s


def cap_programs(samples: Samples, most: int, *, seed: int) -> Samples:
    """Returns at most `most` samples per device, with every task kept.

    Each (device, task) keeps the first programs in the order of a hash of program id and seed. All
    tasks of a device keep the same maximum number of programs, as large as `most` allows. The order
    does not depend on the device, so the kept programs of two devices overlap as far as possible. A
    device with more tasks than `most` keeps one program per task. 0 = no limit.
    """
    keep = capped_rows(samples, most, seed=seed)
    return samples if keep.all() else samples.take(keep)


def capped_rows(samples: Samples, most: int, *, seed: int) -> NDArray[np.bool_]:
    """Returns bool [N], whether `cap_programs` keeps the sample."""
    keep = np.ones(len(samples), np.bool_)
    counts = np.bincount(samples.device, minlength=len(samples.devices))
    if most <= 0 or counts.max(initial=0) <= most:
        return keep
    names = samples.programs.program_id
    draw = np.array([uniform_draw(str(names[program]), seed) for program in samples.program])
    for device in np.flatnonzero(counts > most):
        rows = np.flatnonzero(samples.device == device)
        place = _place_in_task(samples.task_id[rows], draw[rows])
        keep[rows] = place < _most_per_task(place, most)
    return keep


def _place_in_task(task: NDArray[np.int64], draw: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns int64 [N], the rank of each draw within its task, from 0."""
    order = np.lexsort((draw, task))
    first = np.flatnonzero(np.concatenate([[True], np.diff(task[order]) != 0]))
    length = np.diff(np.append(first, len(task)))
    place = np.empty(len(task), np.int64)
    place[order] = np.arange(len(task)) - np.repeat(first, length)
    return place


def _most_per_task(place: NDArray[np.int64], most: int) -> int:
    """Returns the largest number per task whose total is within `most`, at least 1."""
    within = np.cumsum(np.bincount(place))
    return max(1, int(np.searchsorted(within, most, side="right")))
