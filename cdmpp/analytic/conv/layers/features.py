"""Input features of the layer model's trees: logs of the physical terms of every variant."""

from __future__ import annotations

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm, conv_variants
from cdmpp.analytic.conv.layers.closed_form_model import LatentModel
from cdmpp.analytic.conv.layers.closed_forms import (
    LatentWork,
    fft_work,
    latent_work,
    roofline_ms,
    usual_variants,
)
from cdmpp.analytic.conv.layers.table import LayerTable, device_rows
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import FloatArray
from cdmpp.devices.spec import DeviceSpec

_TERMS = ("waves_ms", "tail_ms", "compulsory_ms", "tiles_ms", "helpers_ms", "waves")
_SHAPE = ("batch", "in_channels", "out_channels", "in_width", "kernel", "stride", "padding")
_L2_TERMS = ("inputs", "outputs", "reduction_by_channels")
_SMALLEST = 1e-6
_BYTES = 4


def layer_features(table: LayerTable, closed: LatentModel) -> FloatArray:
    """Returns float64 [R, F]: physical terms of each variant, the closed form's time of each
    algorithm, the shape, and rates of the device; times and sizes as natural logs.
    """
    parts: list[tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], FloatArray]] = []
    for spec, rows in device_rows(table):
        parts.append((rows, _device_features(table.shapes[rows], spec, closed)))
    features = np.zeros((len(table), parts[0][1].shape[1]))
    for rows, values in parts:
        features[rows] = values
    return features


def shape_features(shapes: ConvShapes) -> FloatArray:
    """Returns float64 [R, 9], logs of the shape's sizes, and the width modulo 2 and 4."""
    widths = shapes.in_width.astype(np.float64)
    return np.concatenate(
        [_log(shapes.matrix(_SHAPE)), np.stack([widths % 2, widths % 4], axis=1)], axis=1
    )


def _device_features(shapes: ConvShapes, spec: DeviceSpec, closed: LatentModel) -> FloatArray:
    columns = [_log(roofline_ms(shapes, spec)[:, None])]
    for work in _works(shapes, spec):
        columns.append(_log(np.stack([getattr(work, name) for name in _TERMS], axis=1)))
    time_ms, _ = closed.predict(shapes, spec)
    columns.append(_log(np.where(np.isfinite(time_ms), time_ms, 0.0)))
    columns.append(shape_features(shapes))
    l2_bytes = float(spec.l2_bytes or np.nan)
    columns.append(_log(shapes.matrix(_L2_TERMS) * _BYTES / l2_bytes))
    balance = float(spec.peak_fp32_flop_per_s or np.nan) / float(
        spec.mem_bandwidth_bytes_per_s or np.nan
    )
    scales = np.log([balance, float(spec.core_count or np.nan)])
    columns.append(np.broadcast_to(scales, (len(shapes), len(scales))))
    return np.concatenate(columns, axis=1)


def _works(shapes: ConvShapes, spec: DeviceSpec) -> list[LatentWork]:
    """Returns the work of every variant in `usual_variants`, then of the FFT algorithms."""
    usual = {variant.name for a in ConvAlgorithm for variant in usual_variants(a)}
    works = [latent_work(v, shapes, spec) for v in conv_variants() if v.name in usual]
    return [
        *works,
        *(fft_work(a, shapes, spec) for a in (ConvAlgorithm.FFT, ConvAlgorithm.FFT_TILING)),
    ]


def _log(values: FloatArray) -> FloatArray:
    return np.log(np.maximum(values, _SMALLEST))
