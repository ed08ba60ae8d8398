"""Judging the kernel models: on a device that was left out, on new shapes, on larger ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.calls import FAMILIES, Family
from cdmpp.analytic.gpu_kernels.measured import Measured, read_measured
from cdmpp.analytic.gpu_kernels.references import best_factor, nearest_device, neighbour_s
from cdmpp.analytic.gpu_kernels.unseen import UNSEEN_NAMES, left_out_errors, unseen_as
from cdmpp.analytic.intervals import UNSEEN, LogErrors
from cdmpp.devices.registry import get_device

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
logger = logging.getLogger(__name__)

#: Settings were chosen by the errors on these devices, each left out in turn, with seed 0.
DEVELOPMENT_DEVICES = ("b60", "gb300", "h100", "l40s")
#: Work of the largest shapes of a fit, as a quantile over the rows of each device.
_SMALL_SHARE = 0.75
#: How many times larger the shapes are that such a fit is judged on, at the least.
_LARGER = 4.0


@dataclass(frozen=True)
class KernelScore:
    """Errors of one prediction on one group of rows, as fractions.

    Attributes:
        split: `device-left-out`, `shared-calls` (the same, calls that the neighbour measured too),
            `new-shapes` or `larger-shapes`.
        family: of the kernels.
        device: label.
        group: `all`, or the type of a product.
        model: `cdmpp`, `cdmpp-one-factor` (times the best factor on the device), `roofline` (times
            one factor of the other devices), `constant` or `neighbour` (times the best factor on
            the device).
        seed: of the fit; `-` where there is none.
        mape: mean absolute error.
        median_ape: median absolute error.
        n: rows.
        covered: share of the rows in the interval that the errors of the other devices give, each
            left out of a fit of its own; None = not asked.
    """

    split: str
    family: Family
    device: str
    group: str
    model: str
    seed: str
    mape: float
    median_ape: float
    n: int
    covered: float | None = None

    def tidy(self) -> Iterator[tuple[object, ...]]:
        """Yields one row of `TIDY_COLUMNS` a metric."""
        where = (self.split, self.device, f"{self.family} {self.group}", self.model, self.seed)
        values = {"mape": self.mape, "median_ape": self.median_ape, "covered": self.covered}
        for metric, value in values.items():
            if value is not None:
                yield "gpu-kernels", "gpu-kernels", *where, metric, value, self.n


@dataclass(frozen=True)
class JudgedKernels:
    """What `judge` found.

    Attributes:
        scores: of every prediction.
        left_out: family -> why -> how many rows of the data are judged nowhere.
    """

    scores: Sequence[KernelScore]
    left_out: Mapping[Family, Mapping[str, int]]


def judge(folder: Path, seeds: Sequence[int]) -> JudgedKernels:
    """Returns the errors of fits on a folder of measured kernels.

    Raises:
        DataError, DeviceError: as `read_measured`.
    """
    scores: list[KernelScore] = []
    left_out: dict[Family, Mapping[str, int]] = {}
    for family in FAMILIES:
        measured = read_measured(folder, family)
        left_out[family] = measured.left_out
        scores += _of_references(measured)
        for seed in seeds:
            logger.info("judging %s, seed %d", family, seed)
            scores += _of_left_out_devices(measured, seed)
            scores += _of_new_shapes(measured, seed)
            scores += _of_larger_shapes(measured, seed)
    return JudgedKernels(scores, left_out)


def _of_left_out_devices(measured: Measured, seed: int) -> Iterator[KernelScore]:
    measured_s, seconds = measured.table.latency_s, measured.left_out_s(seed)
    is_covered = _is_covered(measured, np.log(measured_s / seconds))
    for label in measured.devices:
        own = measured.table.device == label
        found = {
            "cdmpp": seconds,
            "cdmpp-one-factor": best_factor(measured_s[own], seconds[own]) * seconds,
        }
        is_shared = np.isfinite(_of_neighbour(measured, label))
        for model, predicted in found.items():
            for score in _scores(measured, "device-left-out", label, model, seed, predicted, own):
                is_asked = model == "cdmpp" and score.group == "all"
                covered = float(np.mean(is_covered[own])) if is_asked else None
                yield replace(score, covered=covered)
            if is_shared.any():
                yield _score(
                    measured, "shared-calls", label, "all", model, seed, predicted, is_shared
                )


def _is_covered(measured: Measured, logs: FloatArray) -> BoolArray:
    """Returns bool [N], whether the error log(measured / predicted) of a row is within those of the
    other devices, as the model's intervals are made.
    """
    found = np.zeros(len(logs), np.bool_)
    groups = [str(group) for group in np.unique(measured.groups)]
    for label in measured.devices:
        others = [other for other in measured.devices if other != label]
        name = unseen_as(get_device(label), others)
        by_group = {
            group: left_out_errors(
                {
                    other: logs[(measured.table.device == other) & (measured.groups == group)]
                    for other in others
                },
                measured.devices,
            )
            for group in groups
        }
        widest = LogErrors.widest(errors.get(UNSEEN) for errors in by_group.values())
        for group, known in by_group.items():
            rows = (measured.table.device == label) & (measured.groups == group)
            nearest = UNSEEN_NAMES[UNSEEN_NAMES.index(name) :]
            errors = next((known[one] for one in nearest if one in known), widest)
            if errors is not None:
                found[rows] = (errors.low <= logs[rows]) & (logs[rows] <= errors.high)
    return found


def _of_references(measured: Measured) -> Iterator[KernelScore]:
    for label in measured.devices:
        own = measured.table.device == label
        measured_s = measured.table.latency_s
        others = {"roofline": measured.work.floor_s, "constant": np.ones(len(own))}
        for model, seconds in others.items():
            seconds = best_factor(measured_s[~own], seconds[~own]) * seconds
            yield from _scores(measured, "device-left-out", label, model, "-", seconds, own)
        seconds = _of_neighbour(measured, label)
        is_shared = np.isfinite(seconds)
        if is_shared.any():
            seconds = best_factor(measured_s[is_shared], seconds[is_shared]) * seconds
            yield _score(
                measured, "shared-calls", label, "all", "neighbour", "-", seconds, is_shared
            )


def _of_neighbour(measured: Measured, label: str) -> FloatArray:
    others = [other for other in measured.devices if other != label]
    return neighbour_s(measured, label, nearest_device(label, others))


def _of_new_shapes(measured: Measured, seed: int) -> Iterator[KernelScore]:
    held = measured.in_fold(seed)
    seconds = np.full(len(held), np.nan)
    seconds[held] = measured.predicted_s(measured.fit(~held, seed=seed), held)
    for label in measured.devices:
        rows = held & (measured.table.device == label)
        yield _score(measured, "new-shapes", label, "all", "cdmpp", seed, seconds, rows)


def _of_larger_shapes(measured: Measured, seed: int) -> Iterator[KernelScore]:
    size = measured.work.size
    limit = np.zeros(len(size))
    for label in measured.devices:
        own = measured.table.device == label
        limit[own] = np.quantile(size[own], _SMALL_SHARE) / _LARGER
    model = measured.fit(size <= limit, seed=seed)
    held = size > _LARGER * limit
    seconds = np.full(len(held), np.nan)
    seconds[held] = measured.predicted_s(model, held)
    for label in measured.devices:
        rows = held & (measured.table.device == label)
        yield _score(measured, "larger-shapes", label, "all", "cdmpp", seed, seconds, rows)


def _scores(
    measured: Measured,
    split: str,
    label: str,
    model: str,
    seed: int | str,
    seconds: FloatArray,
    rows: BoolArray,
) -> Iterator[KernelScore]:
    """Yields the score of all rows, and that of each group where there are several."""
    yield _score(measured, split, label, "all", model, seed, seconds, rows)
    names = np.unique(measured.groups[rows])
    for name in names if len(names) > 1 else ():
        chosen = rows & (measured.groups == name)
        group = str(name).partition(" ")[2]
        yield _score(measured, split, label, group, model, seed, seconds, chosen)


def _score(
    measured: Measured,
    split: str,
    label: str,
    group: str,
    model: str,
    seed: int | str,
    seconds: FloatArray,
    rows: BoolArray,
) -> KernelScore:
    error = np.abs(seconds[rows] / measured.table.latency_s[rows] - 1.0)
    return KernelScore(
        split, measured.family, label, group, model, str(seed),
        float(np.mean(error)), float(np.median(error)), int(rows.sum()),
    )  # fmt: skip


def mean_over_seeds(scores: Sequence[KernelScore]) -> Mapping[tuple[str, ...], KernelScore]:
    """Returns (split, family, device, group, model) -> the score with the means over its seeds."""
    parts: dict[tuple[str, ...], list[KernelScore]] = {}
    for one in scores:
        place = (one.split, one.family, one.device, one.group, one.model)
        parts.setdefault(place, []).append(one)
    return {place: _mean(own) for place, own in parts.items()}


def _mean(own: Sequence[KernelScore]) -> KernelScore:
    covered = [one.covered for one in own if one.covered is not None]
    return replace(
        own[0],
        seed="mean",
        mape=float(np.mean([one.mape for one in own])),
        median_ape=float(np.mean([one.median_ape for one in own])),
        covered=float(np.mean(covered)) if covered else None,
    )
