"""Shapes of convolution layers, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cdmpp.analytic.rows import Rows
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError

#: Names of the eight columns, in the order of the original's tables.
SHAPE_NAMES = (
    "batch", "in_channels", "in_width", "out_channels", "out_width", "kernel", "stride", "padding",
)  # fmt: skip
_BYTES = 4


@dataclass(frozen=True)
class ConvShapes(Rows):
    """Square convolution layers in fp32.

    Attributes:
        batch: int64 [R], images.
        in_channels: int64 [R].
        in_width: int64 [R], width and height of the input.
        out_channels: int64 [R].
        out_width: int64 [R], width and height of the output.
        kernel: int64 [R], width and height of the filter.
        stride: int64 [R].
        padding: int64 [R], on each side.
    """

    batch: IntArray
    in_channels: IntArray
    in_width: IntArray
    out_channels: IntArray
    out_width: IntArray
    kernel: IntArray
    stride: IntArray
    padding: IntArray

    @classmethod
    def of(
        cls,
        batch: ArrayLike,
        in_channels: ArrayLike,
        in_width: ArrayLike,
        out_channels: ArrayLike,
        kernel: ArrayLike,
        stride: ArrayLike = 1,
        padding: ArrayLike = 0,
    ) -> ConvShapes:
        """Computes the output width; scalars are broadcast.

        Raises:
            DataError: a value below 1 (padding: below 0), or a filter larger than its input.
        """
        values = np.broadcast_arrays(
            *(
                np.atleast_1d(np.asarray(value, np.int64))
                for value in (batch, in_channels, in_width, out_channels, kernel, stride, padding)
            )
        )
        n, cin, win, cout, k, s, pad = (np.array(value, np.int64) for value in values)
        if any(bool((value < 1).any()) for value in (n, cin, win, cout, k, s)) or (pad < 0).any():
            raise DataError(
                "a convolution has a size below 1 or a negative padding; expected batch, channels, "
                "width, kernel and stride of at least 1"
            )
        wout = (win + 2 * pad - k) // s + 1
        if (wout < 1).any():
            row = int(np.flatnonzero(wout < 1)[0])
            raise DataError(
                f"a convolution's filter of {k[row]} is larger than its padded input of "
                f"{win[row] + 2 * pad[row]}"
            )
        return cls(n, cin, win, cout, wout, k, s, pad)

    def row(self, row: int) -> dict[str, int]:
        """Returns one layer as name -> size."""
        return {name: int(getattr(self, name)[row]) for name in SHAPE_NAMES}

    def matrix(self, names: Sequence[str]) -> FloatArray:
        """Returns float64 [R, len(names)], the named columns (attributes or properties)."""
        return np.stack([np.asarray(getattr(self, name), np.float64) for name in names], axis=1)

    @property
    def reduction(self) -> FloatArray:
        """float64 [R], products per output element: k² Cin."""
        return (self.kernel**2 * self.in_channels).astype(np.float64)

    @property
    def reduction_by_channels(self) -> FloatArray:
        """float64 [R], weights: k² Cin Cout."""
        return self.reduction * self.out_channels

    @property
    def reduction_by_pixels(self) -> FloatArray:
        """float64 [R], elements of the im2col matrix per image: Wout² Cin k²."""
        return self.reduction * self.out_width.astype(np.float64) ** 2

    @property
    def inputs(self) -> FloatArray:
        """float64 [R], elements of the input: N Cin Win²."""
        return self.batch * self.in_channels * self.in_width.astype(np.float64) ** 2

    @property
    def outputs(self) -> FloatArray:
        """float64 [R], elements of the output: N Cout Wout²."""
        return self.batch * self.out_channels * self.out_width.astype(np.float64) ** 2

    @property
    def multiplications(self) -> FloatArray:
        """float64 [R], multiply-adds of the direct method: N Cout Wout² k² Cin."""
        return self.outputs * self.reduction

    @property
    def compulsory_bytes(self) -> FloatArray:
        """float64 [R], bytes of input, weights and output, each once."""
        return _BYTES * (self.inputs + self.reduction_by_channels + self.outputs)
