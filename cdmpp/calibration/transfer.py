"""A program's time on one device from its time on another: what a model misses on both.

A model errs alike on devices that run the same program: it does not see all that its schedule does.
Where the program's time on another device is known, so is most of that error.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from scipy.optimize import minimize

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.calibration.intervals import LatencyCalibration, calibrate
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec, architecture_of

#: Two devices are one chip with other threads or instructions, or two chips of one kind.
Relation = Literal[
    "same_cpu", "other_cpu", "same_gpu", "other_gpu", "same_accelerator", "other_accelerator"
]

#: So many tasks are the fewest that a share, or a pair's numbers, are taken from.
LEAST_TASKS = 5


#: What a pair of devices is held to where a budget says little: so much of the ratio that a model
#: sees between them, and of what it misses on the one (set on development targets);
#: and how firmly.
_USUAL = (0.6, 0.7, 0.0)
_FIRMNESS = 0.1
#: Logarithms of predicted over measured end here while a pair is fitted.
_MOST_MISSED = 5.0


@dataclass(frozen=True)
class PairTransfer:
    """log t(B) = log m(A) + ratio x (log m(B) - log m(A)) + share x (log t(A) - log m(A)) + offset.

    Attributes:
        source, target: labels of A and B.
        ratio, share, offset: see there.
        intervals: of what is said of B; None where too few tasks were measured on both.
    """

    source: str
    target: str
    ratio: float
    share: float
    offset: float
    intervals: LatencyCalibration | None

    def log_s(self, own: FloatArray, there: FloatArray, measured: FloatArray) -> FloatArray:
        """Returns float64 [N], logarithm of the seconds on B.

        Args:
            own, there: float64 [N], the model's logarithms of B and A.
            measured: float64 [N], that of the seconds measured on A.
        """
        return there + self.ratio * (own - there) + self.share * (measured - there) + self.offset


@dataclass(frozen=True)
class Transfer:
    """log t(B) = log m(B) + share x (log t(A) - log m(A)) for times t and a model's predictions m.

    Attributes:
        shares: relation of A and B -> share, 0 to 1.
        intervals: relation -> intervals of what is said of B; without those that too few tasks were
            measured for (`calibrate`).
        pairs: of devices that a fine-tuning has seen side by side; they win over shares.
    """

    shares: dict[Relation, float]
    intervals: dict[Relation, LatencyCalibration]
    pairs: tuple[PairTransfer, ...] = ()

    def pair(self, source: str, target: str) -> PairTransfer | None:
        """Returns what is known of two labels side by side."""
        wanted = (source, target)
        return next((one for one in self.pairs if (one.source, one.target) == wanted), None)


def relation(first: DeviceSpec, second: DeviceSpec) -> Relation | None:
    """Returns how two devices are related; None where they do not run the same programs."""
    if first.kind != second.kind:
        return None
    own, other = architecture_of(first), architecture_of(second)
    is_same = own is not None and own == other and first.core_count == second.core_count
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
        if len(np.unique(samples.task_id[others])) < LEAST_TASKS:
            continue
        share = _share(missed[own], missed[others], samples.task_id[others])
        known_s = predicted_s[others] * np.exp(share * missed[own])
        shares[related] = share
        found = calibrate(samples.take(others), known_s)
        if found is not None:
            intervals[related] = found
    return Transfer(shares, intervals) if shares else None


def fit_pairs(
    samples: Samples,
    predicted_s: FloatArray,
    source: str,
    source_s: FloatArray,
    source_predicted_s: FloatArray,
) -> tuple[PairTransfer, ...]:
    """Returns what the times on one device say of each device of a budget; nothing of those with
    fewer than five tasks measured on both.

    Ratio, share and offset have the least percentage error, every task with the same weight, and
    are held to the usual ones.

    Args:
        samples: the budget.
        predicted_s: float64 [N], what models that had not seen them say of it.
        source: label of the one device.
        source_s: float64 [N], seconds measured there; NaN where they were not.
        source_predicted_s: float64 [N], what the model says of it.
    """
    found = []
    for device in np.unique(samples.device).tolist():
        rows = np.flatnonzero((samples.device == device) & np.isfinite(source_s))
        own = samples.take(rows)
        if len(np.unique(own.task_id)) < LEAST_TASKS:
            continue
        logs = [np.log(values[rows]) for values in (predicted_s, source_predicted_s, source_s)]
        pair = PairTransfer(source, samples.devices[device].name, *_USUAL, intervals=None)
        pair = _fitted(pair, logs, np.log(own.latency_s), _weights(own.task_id))
        found.append(replace(pair, intervals=calibrate(own, np.exp(pair.log_s(*logs)))))
    return tuple(found)


def _fitted(
    pair: PairTransfer, logs: Sequence[FloatArray], wanted: FloatArray, weight: FloatArray
) -> PairTransfer:
    def with_numbers(numbers: FloatArray) -> PairTransfer:
        ratio, share, offset = map(float, numbers)
        return replace(pair, ratio=ratio, share=share, offset=offset)

    def loss(numbers: FloatArray) -> float:
        missed = with_numbers(numbers).log_s(*logs) - wanted
        error = np.abs(np.expm1(np.clip(missed, -_MOST_MISSED, _MOST_MISSED)))
        away = _FIRMNESS * float(np.sum((numbers - np.array(_USUAL)) ** 2))
        return float(np.sum(weight * error) / np.sum(weight)) + away

    return with_numbers(minimize(loss, np.array(_USUAL), method="Nelder-Mead").x)


def _same_programs(samples: Samples, first: int, second: int) -> tuple[IntArray, IntArray]:
    """Returns the rows, int64 [M] each, of the programs that both devices have measured."""
    own, others = (np.flatnonzero(samples.device == device) for device in (first, second))
    _, left, right = np.intersect1d(
        samples.program[own], samples.program[others], return_indices=True
    )
    return own[left], others[right]


def _share(known: FloatArray, wanted: FloatArray, task: IntArray) -> float:
    weight = _weights(task)
    whole = float(np.sum(weight * known**2))
    share = float(np.sum(weight * known * wanted)) / whole if whole else 0.0
    return min(max(share, 0.0), 1.0)


def _weights(task: IntArray) -> FloatArray:
    """Returns float64 [N], the same weight to every task."""
    _, owner = np.unique(task, return_inverse=True)
    return np.asarray(1.0 / np.bincount(owner)[owner], np.float64)


def on_device(samples: Samples, device: DeviceSpec) -> Samples:
    """Returns the same programs as if all ran on a device; measurements stay."""
    return replace(samples, devices=(device,), device=np.zeros(len(samples), np.int64))
