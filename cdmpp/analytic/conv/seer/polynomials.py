"""Times that are polynomials of the shape: FFT algorithms and helper kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.analytic.conv.blocks import fft_tiles
from cdmpp.analytic.conv.least_squares import LinearFit, relative_fit
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import FloatArray
from cdmpp.errors import DataError
from cdmpp.files.stored import from_json, to_json

#: Upper widths of the buckets of FFT.
FFT_BUCKETS = (16, 32, 64, 128, 256)
_FFT_NAMES = ("in_channels", "products", "out_channels", "constant")


@dataclass(frozen=True)
class FftModel:
    """FFT: one polynomial per bucket of the input width.

    Attributes:
        fits: upper width of a bucket -> coefficients; buckets without rows are missing.
    """

    fits: dict[int, LinearFit]

    def predict(self, shapes: ConvShapes) -> FloatArray:
        """Returns float64 [R], milliseconds; inf in buckets without a fit."""
        time_ms = np.full(len(shapes), np.inf)
        bucket = _bucket(shapes)
        columns = channel_columns(shapes)
        for upper, fit in self.fits.items():
            rows = bucket == upper
            time_ms[rows] = fit.predict(columns[rows])
        return time_ms

    def to_json(self) -> dict[str, Any]:
        """Returns a value for JSON."""
        return dict(to_json(self.fits))

    @classmethod
    def from_json(cls, value: Any) -> FftModel:
        """Reads a value of `to_json`."""
        return cls(from_json(dict[int, LinearFit], value))


def fit_fft(shapes: ConvShapes, time_ms: FloatArray) -> FftModel:
    """Fits the polynomials of FFT, one for each bucket with rows."""
    bucket = _bucket(shapes)
    columns = channel_columns(shapes)
    fits = {}
    for upper in FFT_BUCKETS:
        rows = np.flatnonzero(bucket == upper)
        if len(rows):
            fits[upper] = relative_fit(columns[rows], time_ms[rows], _FFT_NAMES)
    if not fits:
        raise DataError(
            f"FFT got {len(time_ms)} rows, none with a width up to {FFT_BUCKETS[-1]}; expected some"
        )
    return FftModel(fits)


def fit_fft_tiling(shapes: ConvShapes, time_ms: FloatArray) -> LinearFit:
    """Fits the polynomial of FFT_TILING: that of FFT, times the number of tiles."""
    return relative_fit(fft_tiling_columns(shapes), time_ms, _FFT_NAMES)


def channel_columns(shapes: ConvShapes) -> FloatArray:
    """Returns float64 [R, 4]: Cin, Cin Cout, Cout, 1."""
    cin = shapes.in_channels.astype(np.float64)
    cout = shapes.out_channels.astype(np.float64)
    return np.stack([cin, cin * cout, cout, np.ones(len(shapes))], axis=1)


def fft_tiling_columns(shapes: ConvShapes) -> FloatArray:
    """Returns float64 [R, 4], `channel_columns` times the tiles of the output."""
    return channel_columns(shapes) * fft_tiles(shapes)[:, None]


def im2col_columns(shapes: ConvShapes) -> tuple[FloatArray, tuple[str, ...]]:
    """Returns (float64 [R, 3], names) for the helper kernel of GEMM.

    Its time is a N Wout² k² Cin + b Cout k² Cin + c.
    """
    columns = (
        shapes.batch * shapes.reduction_by_pixels,
        shapes.reduction_by_channels,
        np.ones(len(shapes)),
    )
    return np.stack(columns, axis=1), ("matrix", "weights", "constant")


def transform_columns(shapes: ConvShapes) -> tuple[FloatArray, tuple[str, ...]]:
    """Returns (float64 [R, 4], names) for the transforms of nonfused Winograd. The filter's term
    scales with the batch as in the original's formula, although the kernel does not.
    """
    weights = shapes.reduction_by_channels * shapes.batch
    columns = (shapes.inputs, weights, shapes.outputs, np.ones(len(shapes)))
    return np.stack(columns, axis=1), ("input", "filter", "output", "constant")


def _bucket(shapes: ConvShapes) -> FloatArray:
    edges = np.array(FFT_BUCKETS, np.float64)
    place = np.searchsorted(edges, shapes.in_width, side="left")
    return np.where(place < len(edges), edges[np.minimum(place, len(edges) - 1)], np.inf)
