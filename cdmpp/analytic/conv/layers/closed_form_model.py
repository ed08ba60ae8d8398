"""The closed-form model of layers without measured counters.

Each algorithm and device has one smooth form: arithmetic of the waves against traffic, plus a
constant. The columns are times on an ideal device, so that a coefficient is a share of a peak and a
form fitted to several devices applies to unseen ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.analytic.conv.algorithms import ALGORITHM_COUNT, ConvAlgorithm, is_supported
from cdmpp.analytic.conv.layers.closed_forms import (
    LatentWork,
    fft_work,
    latent_work,
    usual_variants,
)
from cdmpp.analytic.conv.layers.table import LayerTable, device_rows
from cdmpp.analytic.conv.seer.regimes import SmoothTimes, fit_smooth_columns
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.stored import from_json, to_json

#: Minimum rows of an algorithm on a device for its own form; with fewer rows the pooled form is
#: used.
MIN_ROWS = 40
#: Key of the forms of all devices.
POOLED = "*"
_FFT = (ConvAlgorithm.FFT, ConvAlgorithm.FFT_TILING)


@dataclass(frozen=True)
class LatentModel:
    """Forms of all algorithms.

    Attributes:
        forms: device label (or `POOLED`) -> algorithm -> form.
    """

    forms: dict[str, dict[ConvAlgorithm, SmoothTimes]]

    def predict(self, shapes: ConvShapes, device: DeviceSpec) -> tuple[FloatArray, IntArray]:
        """Returns (float64 [R, 8] milliseconds, int64 [R, 8] `KernelType`) of every algorithm.

        Values are inf and -1 if cuDNN does not support the algorithm or no measured layer used it.
        """
        time_ms = np.full((len(shapes), ALGORITHM_COUNT), np.inf)
        kind = np.full((len(shapes), ALGORITHM_COUNT), -1, np.int64)
        own = self.forms.get(device.name, {})
        for algorithm, pooled in self.forms[POOLED].items():
            rows = np.flatnonzero(is_supported(algorithm, shapes))
            if not len(rows):
                continue
            columns = work_columns(algorithm, shapes[rows], device)
            form = own.get(algorithm, pooled)
            time_ms[rows, algorithm] = form.predict_columns(columns)
            kind[rows, algorithm] = form.dominant(columns)
        if not np.isfinite(time_ms).any(axis=1).all():
            raise DataError(
                "no fitted algorithm serves one of the layers; fitted: "
                f"{', '.join(algorithm.name for algorithm in self.forms[POOLED])}"
            )
        return time_ms, kind

    def to_json(self) -> dict[str, Any]:
        """Returns a value for JSON."""
        return dict(to_json(self.forms))

    @classmethod
    def from_json(cls, value: Any) -> LatentModel:
        """Reads a value of `to_json`."""
        return cls(from_json(dict[str, dict[ConvAlgorithm, SmoothTimes]], value))


def fit_latent(table: LayerTable) -> LatentModel:
    """Fits a form to each algorithm that the rows name, per device and pooled.

    Raises:
        DataError: no row names its algorithm.
    """
    pooled: dict[ConvAlgorithm, list[tuple[FloatArray, FloatArray]]] = {}
    forms: dict[str, dict[ConvAlgorithm, SmoothTimes]] = {}
    for spec, rows in device_rows(table):
        forms[spec.name] = {}
        for algorithm in ConvAlgorithm:
            chosen = rows[table.algorithm[rows] == int(algorithm)]
            if not len(chosen):
                continue
            columns = work_columns(algorithm, table.shapes[chosen], spec)
            pooled.setdefault(algorithm, []).append((columns, table.time_ms[chosen]))
            if len(chosen) >= MIN_ROWS:
                forms[spec.name][algorithm] = fit_smooth_columns(columns, table.time_ms[chosen])
    if not pooled:
        raise DataError(
            f"none of the {len(table)} layers names its algorithm; expected a column `algorithm`"
        )
    forms[POOLED] = {
        algorithm: fit_smooth_columns(
            np.concatenate([columns for columns, _ in parts]),
            np.concatenate([time_ms for _, time_ms in parts]),
        )
        for algorithm, parts in pooled.items()
    }
    return LatentModel(forms)


def work_columns(algorithm: ConvAlgorithm, shapes: ConvShapes, device: DeviceSpec) -> FloatArray:
    """Returns float64 [R, 5], an algorithm's columns: arithmetic, waves, traffic of the main and
    helper kernels, traffic of the tiles, 1; each row for the ideally fastest variant.
    """
    if algorithm in _FFT:
        works = [fft_work(algorithm, shapes, device)]
    else:
        works = [latent_work(variant, shapes, device) for variant in usual_variants(algorithm)]
    columns = np.stack([_columns(work) for work in works])
    ideal = np.stack([work.tail_ms + work.compulsory_ms + work.helpers_ms for work in works])
    return np.asarray(columns[ideal.argmin(axis=0), np.arange(len(shapes))], np.float64)


def _columns(work: LatentWork) -> FloatArray:
    return np.stack(
        (
            work.tail_ms,
            work.waves,
            work.compulsory_ms + work.helpers_ms,
            work.tiles_ms,
            np.ones(len(work.waves)),
        ),
        axis=1,
    )
