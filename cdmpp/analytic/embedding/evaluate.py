"""Evaluates the embedding models on measurements: splits by shape, several seeds, baselines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cdmpp.analytic.embedding.campaign import CampaignRow, LookupCampaign, best_of_rounds
from cdmpp.analytic.embedding.cpu import CountedWork, CpuCaches, CpuConstants, CpuPoint, fit_cpu
from cdmpp.analytic.embedding.cpu_probe import MemorySweep
from cdmpp.analytic.embedding.devices import KernelDevice
from cdmpp.analytic.embedding.errors import HIT_FLOOR, KernelErrors, kernel_errors
from cdmpp.analytic.embedding.gpu import VERSIONS, KernelOptions
from cdmpp.analytic.embedding.gpu_fit import calibrate, predict_gpu
from cdmpp.analytic.embedding.intervals import with_errors
from cdmpp.analytic.embedding.kernel_table import KernelTable
from cdmpp.analytic.embedding.shapes import Pass
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError, UsageError

Split = Literal["shape", "table", "rows"]
_TEST_SHARE = 0.3


@dataclass(frozen=True)
class Judgement:
    """Predictions of one model for the test part of one split and seed.

    Attributes:
        line: name of the model.
        points: the test points.
        measured_s, predicted_s: float64 [N], seconds.
    """

    line: str
    split: Split
    seed: int
    points: tuple[CpuPoint, ...]
    measured_s: FloatArray
    predicted_s: FloatArray

    def errors(
        self, which: Pass | None = None, *, least_rows: int = 0, hit_floor: float = HIT_FLOOR
    ) -> KernelErrors | None:
        """Returns the errors of one pass (None = all) on tables of at least `least_rows` rows; None
        without such points.

        Args:
            hit_floor: as in `kernel_errors`.
        """
        keep = np.array(
            [which in (None, p.which) and p.shape.rows >= least_rows for p in self.points]
        )
        if not keep.any():
            return None
        return kernel_errors(self.measured_s[keep], self.predicted_s[keep], hit_floor=hit_floor)


def points_of(rows: Sequence[CampaignRow]) -> tuple[list[CpuPoint], FloatArray]:
    """Returns (points, float64 [N] seconds) of a campaign's rows.

    Raises:
        DataError: unknown pass.
    """
    known: dict[str, Pass] = {
        "forward": "forward", "backward-sgd": "backward-sgd", "backward-dense": "backward-dense",
    }  # fmt: skip
    for row in rows:
        if row.pass_name not in known:
            raise DataError(
                f"embedding measurements: pass {row.pass_name!r}, expected {', '.join(known)}"
            )
    points = [CpuPoint(known[row.pass_name], row.shape, row.zipf_exponent) for row in rows]
    return points, np.array([row.latency_s for row in rows], np.float64)


def split_points(points: Sequence[CpuPoint], split: Split, seed: int) -> tuple[IntArray, IntArray]:
    """Returns (training rows, test rows).

    `shape`: no shape is in both parts, for any pass or access. `table`: no table size (rows, width)
    is in both. `rows`: the largest number of rows is the test part, for any seed.

    Raises:
        DataError: a part would be empty.
    """
    if split == "rows":
        largest = max(point.shape.rows for point in points)
        is_test = np.array([point.shape.rows == largest for point in points])
    else:
        groups = [
            point.shape if split == "shape" else (point.shape.rows, point.shape.width)
            for point in points
        ]
        names = sorted(set(groups), key=repr)
        order = np.random.default_rng(seed).permutation(len(names))
        chosen = {names[index] for index in order[: round(_TEST_SHARE * len(names))]}
        is_test = np.array([group in chosen for group in groups])
    training, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if len(training) == 0 or len(test) == 0:
        raise DataError(
            f"split {split}: {len(training)} training and {len(test)} test measurements; measure "
            "more shapes: cdmpp analytic embedding measure"
        )
    return training, test


def fit_campaign(campaign: LookupCampaign) -> CpuConstants:
    """Fits the costs of a campaign's machine to the fastest round of every point, and validates
    them.

    Raises:
        DataError: as `fit_cpu`.
    """
    points, measured_s = points_of(best_of_rounds(campaign.rows))
    machine = campaign.machine
    origin = {
        "machine": machine.get("processor", "a CPU"), "versions": machine.get("versions", {}),
    }  # fmt: skip
    counted = CountedWork(campaign.caches)
    constants = fit_cpu(points, measured_s, campaign.caches, origin=origin, counted=counted)
    return with_errors(constants, points, measured_s, counted=counted)


def judge_campaign(
    campaign: LookupCampaign, splits: Iterable[tuple[Split, int]]
) -> tuple[int, list[Judgement]]:
    """Returns the number of points and the predictions of every model for every split.

    Args:
        splits: (kind, seed) of each split.

    Raises:
        DataError: as `judge`.
    """
    points, measured_s = points_of(best_of_rounds(campaign.rows))
    counted = CountedWork(campaign.caches)
    judged = [
        found
        for split, seed in splits
        for found in judge(
            points, measured_s, campaign.caches, campaign.sweep,
            split=split, seed=seed, counted=counted,
        )
    ]  # fmt: skip
    return len(points), judged


def predict_table(
    table: KernelTable,
    device: KernelDevice,
    which: Pass,
    options: KernelOptions,
    *,
    zipf_exponent: float = 0.0,
) -> dict[str, FloatArray]:
    """Returns version -> float64 [N] seconds of a benchmark's kernels, without the versions that do
    not describe the pass.

    Raises:
        UsageError: no version describes the pass.
    """
    points = [CpuPoint(which, shape, zipf_exponent) for shape in table.embedding_shapes()]
    predicted: dict[str, FloatArray] = {}
    for version in VERSIONS:
        with contextlib.suppress(UsageError):
            predicted[version] = predict_gpu(points, device, replace(options, version=version))
    if not predicted:
        raise UsageError(f"no version describes {which} on a GPU; choose another --pass")
    return predicted


def cpu_as_kernel_device(caches: CpuCaches, sweep: MemorySweep) -> KernelDevice:
    """Returns one CPU thread as a device of the GPU formulas.

    The device has one core with one warp. Its cache is the L3, and its two bandwidths are the
    sweep's rates at half the L3 and at the largest size. Arithmetic never bounds the time.
    """
    return KernelDevice(
        "cpu",
        1,
        caches.l3_bytes,
        None,
        sweep.rate_near(max(sweep.size_bytes)),
        sweep.rate_near(caches.l3_bytes / 2),
        1e15,
        source="memory sweep",
    )


def judge(
    points: Sequence[CpuPoint],
    measured_s: FloatArray,
    caches: CpuCaches,
    sweep: MemorySweep,
    *,
    split: Split,
    seed: int,
    counted: CountedWork | None = None,
) -> list[Judgement]:
    """Returns every model's predictions for the test part; models are fitted on the training part.

    Raises:
        DataError: as `split_points` and the fits.
    """
    training, test = split_points(points, split, seed)
    first, second = [points[i] for i in training], [points[i] for i in test]
    device = cpu_as_kernel_device(caches, sweep)
    # A bag that is read and written once is one warp with one row; rows_per_block has no effect.
    predicted: dict[str, FloatArray] = {
        "cpu": fit_cpu(first, measured_s[training], caches, counted=counted).latency_s(
            second, counted=counted
        ),
        "trees": _trees(first, measured_s[training], second, seed),
    }
    found = [
        Judgement(line, split, seed, tuple(second), measured_s[test], value)
        for line, value in predicted.items()
    ]
    # Dense gradients have no GPU kernel and therefore no formula.
    kept_first = [i for i in training if points[i].which != "backward-dense"]
    kept = [i for i in test if points[i].which != "backward-dense"]
    on_gpu_words = tuple(_one_row_a_block(points[i]) for i in kept)
    calibrated = np.zeros(len(kept))
    for which in ("forward", "backward-sgd"):
        train = [i for i in kept_first if points[i].which == which]
        rows = [index for index, i in enumerate(kept) if points[i].which == which]
        if not rows:
            continue
        fit = calibrate([_one_row_a_block(points[i]) for i in train], measured_s[train], device)
        calibrated[rows] = predict_gpu(
            [on_gpu_words[index] for index in rows], device, fit.options(KernelOptions())
        )
    found.append(
        Judgement("lru-calibrated", split, seed, on_gpu_words, measured_s[kept], calibrated)
    )
    for version in ("lru", "resident", "cold-start", "plain"):
        options = KernelOptions(version=version)
        value = predict_gpu(on_gpu_words, device, options)
        found.append(Judgement(version, split, seed, on_gpu_words, measured_s[kept], value))
    return found


def _one_row_a_block(point: CpuPoint) -> CpuPoint:
    return replace(point, shape=replace(point.shape, rows_per_block=1))


def _trees(
    training: Sequence[CpuPoint],
    measured_s: FloatArray,
    test: Sequence[CpuPoint],
    seed: int,
) -> FloatArray:
    from sklearn.ensemble import HistGradientBoostingRegressor

    found = np.zeros(len(test))
    for which in {point.which for point in test}:
        rows = [i for i, point in enumerate(training) if point.which == which]
        asked = [i for i, point in enumerate(test) if point.which == which]
        if not rows:
            raise DataError(f"trees: no training measurement of {which}; measure more shapes")
        model = HistGradientBoostingRegressor(
            max_iter=300, learning_rate=0.08, min_samples_leaf=3, random_state=seed
        )
        model.fit(_log_shapes([training[i] for i in rows]), np.log(measured_s[rows]))
        found[asked] = np.exp(model.predict(_log_shapes([test[i] for i in asked])))
    return found


def _log_shapes(points: Sequence[CpuPoint]) -> FloatArray:
    return np.array(
        [
            [
                *np.log((p.shape.batch, p.shape.rows, p.shape.tables, p.shape.lookups)),
                np.log(p.shape.width),
                np.log(p.shape.lookup_count),
                np.log(p.shape.lookup_count * p.shape.width),
                p.zipf_exponent,
            ]
            for p in points
        ]
    )
