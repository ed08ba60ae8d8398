"""Evaluates the kernel models on held-out devices, new shapes and larger shapes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cdmpp.analytic.gpu_kernels.calls import SERVING, Family
from cdmpp.analytic.gpu_kernels.frameworks import release_of
from cdmpp.analytic.gpu_kernels.measured import Measured, read_measured
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.gpu_kernels.references import (
    best_factor,
    nearest_device,
    neighbour_s,
    version_before_s,
)
from cdmpp.analytic.gpu_kernels.table import asked_families, families_in
from cdmpp.analytic.gpu_kernels.unseen import errors_of, left_out_errors
from cdmpp.analytic.intervals import LogErrors
from cdmpp.analytic.scores import Score
from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError

logger = logging.getLogger(__name__)

#: Devices on whose leave-one-out errors (seed 0) the settings were selected.
DEVELOPMENT_DEVICES = ("b60", "gb300", "h100", "l40s")
#: Quantile of the work per device that sets the limits of the larger-shapes split.
_SMALL_SHARE = 0.75
#: Minimum ratio of the sizes of test shapes to the largest size in the fit.
_LARGER = 4.0
#: Group of the calls that are in no other group of a family.
_OTHER_CALLS = "other calls"


@dataclass(frozen=True)
class EvaluatedKernels:
    """Result of `evaluate_kernels`.

    Splits: `device-left-out`; `shared-calls` (the same, for calls that the neighbour has too);
    `new-shapes`; `larger-shapes`. Families of `SERVING` also have `version-left-out`, whose device
    is `software version`, and `shared-versions` (calls that the previous version has on the same
    device). `evaluate_packaged` has the split `packaged`. Models: `cdmpp`; `cdmpp-one-factor`
    (times the best factor on the device); `roofline` (times one factor from the other devices);
    `constant`; `neighbour` (times the best factor on the device); `version-before` (times the best
    factor on each device). The last two also exist as `-as-is`, without a factor.

    Attributes:
        scores: scores of all predictions; `covered` is the share of the rows inside the interval
            from the errors on the other devices, each held out of a fit.
        left_out: family -> reason -> number of rows that are not evaluated.
    """

    scores: Sequence[Score]
    left_out: Mapping[Family, Mapping[str, int]]


def evaluate_kernels(
    folder: Path, seeds: Sequence[int], families: Sequence[str] = ()
) -> EvaluatedKernels:
    """Returns the errors of fits to a folder of measured kernels. A family with a single device has
    no split `device-left-out` or `shared-calls`.

    Args:
        families: families to evaluate; empty = all of the folder.

    Raises:
        DataError, DeviceError: as `read_measured`.
        UsageError: the folder lacks a named family.
    """
    scores: list[Score] = []
    left_out: dict[Family, Mapping[str, int]] = {}
    for family in asked_families(folder, families):
        measured = read_measured(folder, family)
        left_out[family] = measured.left_out
        scores += _of_references(measured) if measured.has_several_devices else ()
        for seed in seeds:
            logger.info("evaluating %s, seed %d", family, seed)
            scores += _of_left_out_devices(measured, seed) if measured.has_several_devices else ()
            scores += _of_new_shapes(measured, seed)
            scores += _of_larger_shapes(measured, seed)
            if family in SERVING:
                scores += _of_left_out_versions(measured, seed)
    return EvaluatedKernels(scores, left_out)


def evaluate_packaged(folder: Path, model: GpuKernels) -> EvaluatedKernels:
    """Returns the errors of a fitted model on all rows of the families that model and folder share.
    If the folder was used for the fit, these rows include the training rows.

    Raises:
        DataError, DeviceError: as `read_measured`; or model and folder share no family.
    """
    scores: list[Score] = []
    left_out: dict[Family, Mapping[str, int]] = {}
    known = [family for family in families_in(folder) if family in model.families]
    if not known:
        raise DataError(
            f"{folder}: has no family of the model; expected files of {', '.join(model.families)}"
        )
    for family in known:
        measured = read_measured(folder, family)
        left_out[family] = measured.left_out
        table, everywhere = measured.table, np.ones(len(measured.table), np.bool_)
        seconds = measured.predicted_s(model.families[family], everywhere)
        low_s, high_s = model.ends_of_rows(measured, seconds)
        is_covered = (low_s <= table.latency_s) & (table.latency_s <= high_s)
        for label in measured.devices:
            own = table.device == label
            others = {"roofline": measured.work.floor_s, "constant": np.ones(len(own))}
            for score in _scores(measured, "packaged", label, "cdmpp", "-", seconds, own):
                is_all = score.group == "all"
                covered = float(np.mean(is_covered[own])) if is_all else None
                scores.append(replace(score, covered=covered))
            for name, one in others.items():
                one_s = best_factor(table.latency_s[own], one[own]) * one
                scores.append(_score(measured, "packaged", label, "all", name, "-", one_s, own))
    return EvaluatedKernels(scores, left_out)


def _of_left_out_versions(measured: Measured, seed: int) -> Iterator[Score]:
    """Yields the errors on versions that were each held out of a fit, and those of the previous
    version; the interval is from the errors on the other versions (`LogErrors.of_unseen_group`).
    """
    table = measured.table
    seconds = measured.version_left_out_s(seed)
    whose = table.software_version
    before = {
        "version-before": version_before_s(measured),
        "version-before-as-is": version_before_s(measured, has_factor=False),
    }
    logs = np.log(table.latency_s / seconds)
    is_judged = np.isfinite(seconds)
    names = sorted(map(str, np.unique(whose[is_judged])), key=_version_order)
    for name in names:
        own = is_judged & (whose == name)
        others = LogErrors.of_unseen_group(
            [logs[is_judged & (whose == other)] for other in names if other != name]
        )
        covered = None if others is None else float(np.mean(others.holds(logs[own])))
        score = _score(measured, "version-left-out", name, "all", "cdmpp", seed, seconds, own)
        yield replace(score, covered=covered)
        shared = own & np.isfinite(before["version-before"])
        if shared.any():
            for model, one in {"cdmpp": seconds, **before}.items():
                yield _score(measured, "shared-versions", name, "all", model, seed, one, shared)


def _version_order(name: str) -> tuple[str, float]:
    software, version = name.split()
    return software, release_of(version)


def _of_left_out_devices(measured: Measured, seed: int) -> Iterator[Score]:
    measured_s, seconds = measured.table.latency_s, measured.left_out_s(seed)
    apart = np.log(measured_s / measured.chip_left_out_s(seed))
    is_covered = _is_covered(measured, np.log(measured_s / seconds), apart)
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


def _is_covered(measured: Measured, logs: FloatArray, apart: FloatArray) -> BoolArray:
    """Returns bool [N], whether a row's error log(measured / predicted) is inside the interval from
    the errors on the other devices, computed like the model's intervals.

    Args:
        logs, apart: as in `left_out_errors`.
    """
    found = np.zeros(len(logs), np.bool_)
    table, fitted = measured.table, measured.devices
    for label in fitted:
        others = [other for other in fitted if other != label]
        known = left_out_errors(
            logs, apart, table.device, measured.groups, fitted, but=label,
            is_near=measured.is_near,
        )  # fmt: skip
        for group in map(str, np.unique(measured.groups)):
            errors = errors_of(known, group, get_device(label), others)
            rows = (table.device == label) & (measured.groups == group)
            if errors is not None:
                found[rows] = errors.holds(logs[rows])
    return found


def _of_references(measured: Measured) -> Iterator[Score]:
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
            factor = best_factor(measured_s[is_shared], seconds[is_shared])
            for model, one in {"neighbour": factor * seconds, "neighbour-as-is": seconds}.items():
                yield _score(measured, "shared-calls", label, "all", model, "-", one, is_shared)


def _of_neighbour(measured: Measured, label: str) -> FloatArray:
    others = [other for other in measured.devices if other != label]
    return neighbour_s(measured, label, nearest_device(label, others))


def _of_new_shapes(measured: Measured, seed: int) -> Iterator[Score]:
    """Yields the errors on held-out shapes. If every shape was held out, it also yields them by
    group, next to the roofline times one factor from the device's other shapes, and times its own
    best factor; the interval is from the errors on the device's other shapes.
    """
    parts = measured.held_shapes(seed)
    seconds = measured.shape_left_out_s(seed)
    if len(parts) == 1:
        for label in measured.devices:
            rows = parts[0] & (measured.table.device == label)
            yield _score(measured, "new-shapes", label, "all", "cdmpp", seed, seconds, rows)
        return
    measured_s, floor_s = measured.table.latency_s, measured.work.floor_s
    for label in measured.devices:
        own = measured.table.device == label
        roofline_s = np.full(len(own), np.nan)
        for held in parts:
            others = own & ~held
            factor = best_factor(measured_s[others], floor_s[others])
            roofline_s[own & held] = factor * floor_s[own & held]
        is_covered = _is_shape_covered(measured, np.log(measured_s / seconds), own)
        oracle_s = best_factor(measured_s[own], floor_s[own]) * floor_s
        for model, one in {
            "cdmpp": seconds, "roofline": roofline_s, "roofline-best-factor": oracle_s,
        }.items():  # fmt: skip
            for score in _scores(measured, "new-shapes", label, model, seed, one, own):
                judged = own if score.group == "all" else own & _is_of(measured, score.group)
                known = is_covered[judged & np.isfinite(is_covered)]
                has = model == "cdmpp" and len(known) > 0
                yield replace(score, covered=float(np.mean(known)) if has else None)


def _is_shape_covered(measured: Measured, logs: FloatArray, own: BoolArray) -> FloatArray:
    """Returns float64 [N], 1 if the error of a device's row is inside the interval from the
    device's other shapes, 0 if not; NaN without an interval.
    """
    found = np.full(len(logs), np.nan)
    shapes = measured.shapes()
    for shape in np.unique(shapes[own]):
        others = own & (shapes != shape)
        for group in map(str, np.unique(measured.groups[own & (shapes == shape)])):
            rows = own & (shapes == shape) & (measured.groups == group)
            errors = measured.errors(logs[others], measured.groups[others], group)
            if errors is not None:
                found[rows] = errors.holds(logs[rows])
    return found


def _is_of(measured: Measured, name: str) -> BoolArray:
    """Returns bool [N], the rows of a group, by its name without the family."""
    return np.asarray(measured.groups == f"{measured.family} {name}", np.bool_)


def _of_larger_shapes(measured: Measured, seed: int) -> Iterator[Score]:
    size = measured.work.size
    limit = np.zeros(len(size))
    for label in measured.devices:
        own = measured.table.device == label
        limit[own] = np.quantile(size[own], _SMALL_SHARE) / _LARGER
    held = size > _LARGER * limit
    return _of_held_out(measured, "larger-shapes", size <= limit, held, seed)


def _of_held_out(
    measured: Measured, split: str, fitted: BoolArray, held: BoolArray, seed: int
) -> Iterator[Score]:
    seconds = np.full(len(held), np.nan)
    seconds[held] = measured.predicted_s(measured.fit_part(fitted, seed=seed), held)
    for label in measured.devices:
        rows = held & (measured.table.device == label)
        yield _score(measured, split, label, "all", "cdmpp", seed, seconds, rows)


def _scores(
    measured: Measured,
    split: str,
    label: str,
    model: str,
    seed: int | str,
    seconds: FloatArray,
    rows: BoolArray,
) -> Iterator[Score]:
    """Yields the score of all rows, and of each group if there are several."""
    yield _score(measured, split, label, "all", model, seed, seconds, rows)
    names = np.unique(measured.groups[rows])
    for name in names if len(names) > 1 else ():
        chosen = rows & (measured.groups == name)
        group = str(name).partition(" ")[2] or _OTHER_CALLS
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
) -> Score:
    return Score.of(
        measured.table.latency_s[rows], seconds[rows], split=split, device=label, group=group,
        model=model, seed=str(seed), family=measured.family,
    )  # fmt: skip


def mean_over_seeds(scores: Sequence[Score]) -> Mapping[tuple[str, ...], Score]:
    """Returns (split, family, device, group, model) -> the score averaged over its seeds."""
    parts: dict[tuple[str, ...], list[Score]] = {}
    for one in scores:
        place = (one.split, one.family, one.device, one.group, one.model)
        parts.setdefault(place, []).append(one)
    return {place: _mean(own) for place, own in parts.items()}


def _mean(own: Sequence[Score]) -> Score:
    covered = [one.covered for one in own if one.covered is not None]
    return replace(
        own[0],
        seed="mean",
        mape=float(np.mean([one.mape for one in own])),
        median_ape=float(np.mean([one.median_ape for one in own])),
        covered=float(np.mean(covered)) if covered else None,
    )
