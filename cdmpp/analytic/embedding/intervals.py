"""Intervals of embedding times, from the models' errors on held-out data and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.analytic.embedding.cpu import CountedWork, CpuConstants, CpuPoint, fit_cpu
from cdmpp.analytic.embedding.devices import KernelDevice
from cdmpp.analytic.embedding.gpu import KernelOptions
from cdmpp.analytic.embedding.gpu_fit import predict_gpu
from cdmpp.analytic.embedding.kernel_table import KernelTable
from cdmpp.analytic.embedding.shapes import Pass
from cdmpp.analytic.intervals import LEAST_ERRORS, ErrorSamples, Evidence, LogErrors
from cdmpp.arrays import FloatArray
from cdmpp.text import counted

_FOLDS = 5
_CPU = "cpu"


def with_errors(
    constants: CpuConstants,
    points: Sequence[CpuPoint],
    measured_s: FloatArray,
    *,
    counted: CountedWork,
) -> CpuConstants:
    """Returns the constants with the errors of their cross-validation, by pass.

    Each of five fits holds out a fifth of the table sizes (rows, width) and is evaluated on them. A
    pass with fewer than 19 points has no errors.

    Args:
        points: points that the constants were fitted to.
        measured_s: float64 [N], seconds.
        counted: work of these points.
    """
    sizes = [(point.shape.rows, point.shape.width) for point in points]
    names = sorted(set(sizes))
    order = np.random.default_rng(0).permutation(len(names))
    fold_of = {names[place]: number % _FOLDS for number, place in enumerate(order)}
    fold = [fold_of[size] for size in sizes]
    samples = ErrorSamples()
    for number in range(_FOLDS):
        rest = [i for i, own in enumerate(fold) if own != number]
        known = {points[i].which for i in rest}
        judged = [i for i, own in enumerate(fold) if own == number and points[i].which in known]
        if not judged:
            continue
        training = [points[i] for i in rest]
        fitted = fit_cpu(training, measured_s[rest], constants.caches, counted=counted)
        predicted_s = fitted.latency_s([points[i] for i in judged], counted=counted)
        which = np.array([points[i].which for i in judged])
        samples.add_rows(np.full(len(judged), _CPU), which, measured_s[judged], predicted_s)
    return replace(constants, errors=samples.by_device().get(_CPU, {}))


def cpu_evidence(constants: CpuConstants, which: Pass) -> tuple[LogErrors | None, Evidence]:
    """Returns the errors of a pass (None if unknown) and their source."""
    again = "cdmpp analytic embedding fit"
    if constants.errors is None:
        why = f"the constants have no validation; refit them with: {again}"
        return None, Evidence(why, False)
    errors = constants.errors.get(which)
    if errors is None:
        why = f"fewer than {LEAST_ERRORS} measurements of {which}; measure more, and {again}"
        return None, Evidence(why, False)
    machine = constants.origin.get("machine", "the CPU")
    source = f"90 % of {errors.count:,} lookups ({which}) on {machine}, table sizes held out"
    return errors, Evidence(f"{source} of the fit", True)


def gpu_evidence(
    measured: KernelTable | None,
    place: Path | None,
    measured_on: KernelDevice,
    asked: KernelDevice,
    point: CpuPoint,
    options: KernelOptions,
) -> tuple[LogErrors | None, Evidence]:
    """Returns the errors of the formulas on a benchmark's kernels (None if unknown) and their
    source. The formulas are not fitted, so no kernel has to be held out.

    Args:
        measured: kernels with the requested pass and access; None without measurements.
        place: file of the measurements.
        measured_on: GPU that ran them.
        asked: requested GPU.

    Raises:
        DataError: the table has no shapes.
    """
    if measured is None:
        return None, Evidence(
            f"no measurements of these kernels on a GPU, so the error of {options.version} is "
            "unknown; give a profiler table of your own: --measured CSV",
            False,
        )
    points = [replace(point, shape=shape) for shape in measured.embedding_shapes()]
    predicted_s = predict_gpu(points, measured_on, options)
    errors = LogErrors.of(np.log(measured.latency_s / predicted_s))
    name = "" if place is None else f" of {place.name}"
    if errors is None:
        why = f"{counted(len(points), 'kernel')}{name}, expected at least {LEAST_ERRORS}"
        return None, Evidence(why, False)
    source = f"90 % of {errors.count:,} kernels{name} on {measured_on.name}"
    if measured_on.name != asked.name:
        source += f"; {asked.name} is an unseen device"
    return errors, Evidence(source, True)
