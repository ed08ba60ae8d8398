"""Measures forward convolutions with cuDNN: given algorithms, or the one that cuDNN chooses."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm, is_supported
from cdmpp.analytic.conv.collect.cudnn_library import (
    Convolution,
    CudnnError,
    CudnnLibrary,
    MathType,
)
from cdmpp.analytic.conv.layers.table import LAYER_COLUMNS
from cdmpp.analytic.conv.shapes import SHAPE_NAMES, ConvShapes
from cdmpp.errors import DataError, UsageError


@dataclass(frozen=True)
class CollectOptions:
    """Options of the measurement.

    Attributes:
        algorithms: cuDNN's numbers; empty = all that support a layer.
        is_free: whether cuDNN chooses; then `algorithms` is ignored.
        repeats: number of timed runs; the result is their median.
        warmups: number of runs before them.
        flush_bytes: bytes copied before each timed run; 0 = caches stay warm.
        math: `fma` for fp32 products, which the model needs.
        max_workspace_bytes: algorithms that need more are skipped.
    """

    algorithms: tuple[int, ...] = ()
    is_free: bool = False
    repeats: int = 10
    warmups: int = 3
    flush_bytes: int = 0
    math: MathType = "fma"
    max_workspace_bytes: int = 4 << 30


@dataclass(frozen=True)
class Collected:
    """One measured (layer, algorithm).

    Attributes:
        row: index of the layer.
        algorithm: cuDNN's number; -1 if cuDNN could not choose or the layer could not be created.
        time_ms: median of the runs; None if not measured.
        reason: why it was not measured; "" if measured.
        times_ms: all timed runs.
    """

    row: int
    algorithm: int
    time_ms: float | None
    reason: str = ""
    times_ms: tuple[float, ...] = ()


def collect(
    library: CudnnLibrary, layers: ConvShapes, options: CollectOptions | None = None
) -> Iterator[Collected]:
    """Yields the measurements layer by layer; failed ones have a reason."""
    options = options or CollectOptions()
    for row in range(len(layers)):
        n, cin, win, cout, wout, k, s, pad = (
            int(getattr(layers, name)[row]) for name in SHAPE_NAMES
        )
        try:
            with library.convolution((n, cin, win, cout, wout, k, s, pad), options.math) as layer:
                if options.is_free:
                    asked: Sequence[int] = (layer.choose(),)
                else:
                    asked = _allowed(layers[np.array([row])], options.algorithms)
                for algorithm in asked:
                    yield _measured(layer, row, algorithm, options)
        except CudnnError as error:
            # The layer could not be created (e.g. out of memory); the next one may.
            yield Collected(row, -1, None, str(error))


def collected_rows(
    layers: ConvShapes, found: Iterable[Collected], *, device: str
) -> list[dict[str, Any]]:
    """Returns the measurements as rows of a layer file, with the reason of failed ones."""
    return [
        {
            "device": device,
            **{name: size for name, size in layers.row(value.row).items() if name in LAYER_COLUMNS},
            "algorithm": (
                "" if value.algorithm < 0 else ConvAlgorithm(value.algorithm).name.lower()
            ),
            "time_ms": value.time_ms,
            "reason": value.reason,
        }
        for value in found
    ]


def _measured(layer: Convolution, row: int, algorithm: int, options: CollectOptions) -> Collected:
    try:
        needed = layer.workspace_bytes(algorithm)
        if needed > options.max_workspace_bytes:
            return Collected(
                row, algorithm, None,
                f"needs {needed} bytes of workspace, more than {options.max_workspace_bytes}",
            )  # fmt: skip
        times = layer.time_ms(
            algorithm,
            repeats=options.repeats,
            warmups=options.warmups,
            flush_bytes=options.flush_bytes,
        )
    except CudnnError as error:
        return Collected(row, algorithm, None, str(error))
    return Collected(row, algorithm, float(np.median(times)), "", tuple(times))


def _allowed(layer: ConvShapes, algorithms: tuple[int, ...]) -> list[int]:
    asked = algorithms or tuple(int(algorithm) for algorithm in ConvAlgorithm)
    return [number for number in asked if bool(is_supported(ConvAlgorithm(number), layer)[0])]


def original_grid(algorithm: ConvAlgorithm) -> ConvShapes:
    """Returns the layers on which the original measured an algorithm for training.

    Raises:
        UsageError: DIRECT, which cuDNN does not implement.
    """
    if algorithm == ConvAlgorithm.DIRECT:
        raise UsageError("cuDNN does not implement the algorithm DIRECT; expected another one")
    channels = (3, 16, 64, 128, 512, 1024)
    widths = (10, 40, 80, 160, 224, 320)
    kernels: tuple[int, ...] = (1, 3, 5, 7, 9)
    strides: tuple[int, ...] = (1, 2, 3, 4)
    padding = 0
    if algorithm in (ConvAlgorithm.FFT, ConvAlgorithm.FFT_TILING):
        strides = (1,)
    elif algorithm in (ConvAlgorithm.WINOGRAD, ConvAlgorithm.WINOGRAD_NONFUSED):
        kernels = (3,) if algorithm == ConvAlgorithm.WINOGRAD else (3, 5)
        strides, padding = (1,), 1
    rows = np.array(list(itertools.product(channels, widths, channels, kernels, strides)), np.int64)
    cin, width, cout, kernel, stride = rows.T
    layers = ConvShapes.of(128, cin, width, cout, kernel, stride, padding)
    return layers[is_supported(algorithm, layers)]


def read_layer_list(path: Path) -> ConvShapes:
    """Reads a list of layers: a count, then lines of eight whole numbers (batch, input channels,
    input width, output channels, output width, kernel, stride, padding). A `#` starts a comment.

    Raises:
        DataError: the file is missing or malformed.
    """
    try:
        lines = [
            line.partition("#")[0].split()
            for line in Path(path).read_text(encoding="utf-8").splitlines()
        ]
        numbered = [(n, [int(w) for w in line]) for n, line in enumerate(lines, 1) if line]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read the list of layers ({error})") from None
    rows = [row for _, row in numbered]
    count = rows[0][0] if rows and len(rows[0]) == 1 else -1
    if count < 1 or count != len(rows) - 1 or any(len(row) != len(SHAPE_NAMES) for row in rows[1:]):
        raise DataError(
            f"{path}: got {max(len(rows) - 1, 0)} lines after the first; expected a count and that "
            f"many lines of {len(SHAPE_NAMES)} whole numbers: {' '.join(SHAPE_NAMES)}"
        )
    array = np.array(rows[1:], np.int64).reshape(-1, len(SHAPE_NAMES))
    layers = ConvShapes.of(*(array[:, i] for i in (0, 1, 2, 3, 5, 6, 7)))
    wrong = np.flatnonzero(layers.out_width != array[:, 4])
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{path}: line {numbered[row + 1][0]} has output width {array[row, 4]}; expected "
            f"from its other numbers: {layers.out_width[row]}"
        )
    return layers
