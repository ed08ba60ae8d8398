"""A program's time on one device from its time on another: what a model misses on both.

A model errs alike on devices that run the same program: it does not see all that its schedule does.
Where the program's time on another device is known, so is most of that error.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.training.uncertainty.calibration import LatencyCalibration, calibrate

#: Two devices are one chip with other threads or instructions, or two chips of one kind.
Relation = Literal[
    "same_cpu", "other_cpu", "same_gpu", "other_gpu", "same_accelerator", "other_accelerator"
]

#: So many tasks are the fewest that a share is taken from.
_LEAST_TASKS = 5

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Transfer:
    """log t(B) = log m(B) + share x (log t(A) - log m(A)) for times t and a model's predictions m.

    Attributes:
        shares: relation of A and B -> share, 0 to 1.
        intervals: relation -> intervals of what is said of B; without those that too few tasks were
            measured for (`calibrate`).
    """

    shares: dict[Relation, float]
    intervals: dict[Relation, LatencyCalibration]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Transfer:
        """Returns what `dataclasses.asdict` was given."""
        intervals = value["intervals"].items()
        return cls(value["shares"], {name: LatencyCalibration(**one) for name, one in intervals})


def relation(first: DeviceSpec, second: DeviceSpec) -> Relation | None:
    """Returns how two devices are related; None where they do not run the same programs."""
    if first.kind != second.kind:
        return None
    is_same = first.architecture is not None and all(
        getattr(first, name) == getattr(second, name)
        for name in ("vendor", "architecture", "core_count")
    )
    return cast("Relation", f"{'same' if is_same else 'other'}_{first.kind}")


def fit_transfer(samples: Samples, predicted_s: FloatArray) -> Transfer | None:
    """Returns what the times of programs on one device say of those on another; None where too few
    tasks were measured on two devices.

    The share of a relation is that of the least squares of the errors' logarithms over all ordered
    pairs of devices, every task with the same weight.

    Args:
        samples: measured programs that no weight of the model was fitted to.
        predicted_s: float64 [N], seconds.
    """
    missed = np.log(samples.latency_s) - np.log(predicted_s)
    rows: dict[Relation, list[tuple[IntArray, IntArray]]] = {}
    for first, second in itertools.permutations(np.unique(samples.device).tolist(), 2):
        related = relation(samples.devices[first], samples.devices[second])
        own, others = _same_programs(samples, first, second)
        if related is not None and len(own):
            rows.setdefault(related, []).append((own, others))
    shares: dict[Relation, float] = {}
    intervals: dict[Relation, LatencyCalibration] = {}
    for related, pairs in rows.items():
        own, others = (np.concatenate(part) for part in zip(*pairs, strict=True))
        if len(np.unique(samples.task_id[others])) < _LEAST_TASKS:
            continue
        share = _share(missed[own], missed[others], samples.task_id[others])
        known_s = predicted_s[others] * np.exp(share * missed[own])
        shares[related] = share
        found = calibrate(samples.take(others), known_s)
        if found is not None:
            intervals[related] = found
    return Transfer(shares, intervals) if shares else None


def _same_programs(samples: Samples, first: int, second: int) -> tuple[IntArray, IntArray]:
    """Returns the rows, int64 [M] each, of the programs that both devices have measured."""
    own, others = (np.flatnonzero(samples.device == device) for device in (first, second))
    _, left, right = np.intersect1d(
        samples.program[own], samples.program[others], return_indices=True
    )
    return own[left], others[right]


def _share(known: FloatArray, wanted: FloatArray, task: IntArray) -> float:
    _, owner = np.unique(task, return_inverse=True)
    weight = 1.0 / np.bincount(owner)[owner]
    whole = float(np.sum(weight * known**2))
    share = float(np.sum(weight * known * wanted)) / whole if whole else 0.0
    return min(max(share, 0.0), 1.0)


def on_device(samples: Samples, device: DeviceSpec) -> Samples:
    """Returns the same programs as if all ran on a device; measurements stay."""
    return replace(samples, devices=(device,), device=np.zeros(len(samples), np.int64))
