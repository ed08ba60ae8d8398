"""Corrects predictions on one device by measurements of the same programs on another device.

A model's errors for a program are correlated between devices, because its features do not describe
all effects of the schedule. A measurement on another device reveals most of the error.
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

#: `same`: one chip, possibly with other threads or instructions; `other`: two chips of one kind.
Relation = Literal[
    "same_cpu", "other_cpu", "same_gpu", "other_gpu", "same_accelerator", "other_accelerator"
]

#: Minimum number of tasks to fit a share or a pair.
LEAST_TASKS = 5


#: Prior values of ratio, share and offset of a pair (set on development targets), and the weight of
#: the quadratic penalty that shrinks a fit towards them.
_USUAL = (0.6, 0.7, 0.0)
_FIRMNESS = 0.1
#: Bound on |log(predicted / measured)| while a pair is fitted.
_MOST_MISSED = 5.0


@dataclass(frozen=True)
class PairTransfer:
    """log t(B) = log m(A) + ratio x (log m(B) - log m(A)) + share x (log t(A) - log m(A)) + offset.

    Attributes:
        source, target: labels of A and B.
        ratio, share, offset: coefficients of the formula.
        intervals: intervals of the predictions for B; None if too few tasks were measured on both.
    """

    source: str
    target: str
    ratio: float
    share: float
    offset: float
    intervals: LatencyCalibration | None

    def log_s(self, own: FloatArray, there: FloatArray, measured: FloatArray) -> FloatArray:
        """Returns float64 [N], log seconds on B.

        Args:
            own, there: float64 [N], the model's log seconds on B and on A.
            measured: float64 [N], log of the seconds measured on A.
        """
        return there + self.ratio * (own - there) + self.share * (measured - there) + self.offset


@dataclass(frozen=True)
class Transfer:
    """log t(B) = log m(B) + share x (log t(A) - log m(A)) for times t and a model's predictions m.

    Attributes:
        shares: relation of A and B -> share, 0 to 1.
        intervals: relation -> intervals of the predictions for B; relations with too few measured
            tasks (`calibrate`) are missing.
        pairs: pairs of devices fitted in a fine-tuning; they override `shares`.
    """

    shares: dict[Relation, float]
    intervals: dict[Relation, LatencyCalibration]
    pairs: tuple[PairTransfer, ...] = ()

    def pair(self, source: str, target: str) -> PairTransfer | None:
        """Returns the fitted pair of two labels, or None."""
        wanted = (source, target)
        return next((one for one in self.pairs if (one.source, one.target) == wanted), None)


def relation(first: DeviceSpec, second: DeviceSpec) -> Relation | None:
    """Returns the relation of two devices; None if they do not run the same programs."""
    if first.kind != second.kind:
        return None
    own, other = architecture_of(first), architecture_of(second)
    is_same = own is not None and own == other and first.core_count == second.core_count
    return cast("Relation", f"{'same' if is_same else 'other'}_{first.kind}")


def fit_transfer(samples: Samples, predicted_s: FloatArray) -> Transfer | None:
    """Fits the transfer between devices; None if too few tasks were measured on two devices.

    The share of a relation is the least-squares fit of log errors over all ordered pairs of
    devices, every task with the same weight.

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
    """Fits the transfer from one device to each device of a budget.

    Devices with fewer than `LEAST_TASKS` tasks measured on both are left out. Ratio, share and
    offset minimise the percentage error, every task with the same weight, with a penalty on the
    distance to their usual values.

    Args:
        samples: the budget.
        predicted_s: float64 [N], cross-validated predictions for the budget, in seconds.
        source: label of the source device.
        source_s: float64 [N], seconds measured on the source device; NaN if not measured.
        source_predicted_s: float64 [N], predicted seconds on the source device.
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
    """Returns the rows, int64 [M] each, of the programs measured on both devices."""
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
    """Returns float64 [N], weights that sum to 1 for every task."""
    _, owner = np.unique(task, return_inverse=True)
    return np.asarray(1.0 / np.bincount(owner)[owner], np.float64)


def on_device(samples: Samples, device: DeviceSpec) -> Samples:
    """Returns the samples with their device replaced; measurements stay."""
    return replace(samples, devices=(device,), device=np.zeros(len(samples), np.int64))
