"""A made-up GPU whose convolutions obey the model's formulas exactly, and its tables."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.conv.algorithms import (
    ALGORITHM_COUNT,
    ConvAlgorithm,
    ConvVariant,
    find_variant,
    is_supported,
    precomp_variant_names,
    variants_of,
)
from cdmpp.analytic.conv.blocks import BlockLaunch, fft_tiles, launched_blocks, resident_blocks
from cdmpp.analytic.conv.seer.table import ConvTable, KernelType
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import FloatArray
from cdmpp.devices.registry import get_device

DEVICE = get_device("titan-xp")
LEVELS = {0: (9.0, 3.0), 1: (4.0, 9.0), 2: (5.0, 5.0)}
FFT_COEFFICIENTS = {
    16: (0.02, 0.0003, 0.01, 1.1),
    32: (0.03, 0.0004, 0.02, 1.2),
    64: (0.04, 0.0005, 0.03, 1.3),
    128: (0.05, 0.0006, 0.04, 1.4),
    256: (0.06, 0.0007, 0.05, 1.5),
}
TILING_COEFFICIENTS = (0.002, 0.00002, 0.001, 0.3)
IM2COL_COEFFICIENTS = (2e-9, 3e-9, 0.4)
TRANSFORM_COEFFICIENTS = (3e-9, 1e-10, 2e-9, 0.2)


def times_alone(shapes: ConvShapes, algorithm: int, time_ms: FloatArray) -> ConvTable:
    """Returns a table in which only the times were measured."""
    unknown = np.full(len(shapes), np.nan)
    numbers = np.full(len(shapes), algorithm, np.int64)
    return ConvTable(shapes, numbers, time_ms, *[unknown] * 7)


def grid(*, kernels: tuple[int, ...], strides: tuple[int, ...], padding: int) -> ConvShapes:
    """Returns a full grid of layers of batch 128."""
    rows = np.array(
        list(
            itertools.product(
                (16, 64, 96, 160, 300, 512), (14, 28, 40, 100), (24, 48, 120, 200, 300, 400, 640),
                kernels, strides,
            )
        )
    )  # fmt: skip
    return ConvShapes.of(128, *(rows[:, i] for i in range(5)), padding=padding)


def layers() -> ConvShapes:
    """Returns the layers that every algorithm is measured on where it can."""
    return grid(kernels=(1, 3, 5), strides=(1, 2), padding=1)


@dataclass(frozen=True)
class Truth:
    """What a kernel really does for some layers."""

    launch: BlockLaunch
    instructions: np.ndarray
    reads: np.ndarray
    writes: np.ndarray
    kind: np.ndarray
    time_ms: np.ndarray


def kernel_truth(variant: ConvVariant, shapes: ConvShapes) -> Truth:
    """Returns counters, types and times of a variant, each by a rule that a small tree can hold."""
    number = [v.name for a in ConvAlgorithm for v in variants_of(a)].index(variant.name) + 1
    blocks = launched_blocks(variant, shapes)
    launch = BlockLaunch(blocks, np.full(len(shapes), resident_blocks(variant, DEVICE)))
    cin = shapes.in_channels
    steps = shapes.reduction if variant.family == "gemm" else np.ceil(cin / 8)
    instructions = 900.0 * steps + 40.0 * number
    unit = shapes.reduction if variant.family == "gemm" else cin.astype(float)
    reads = np.where(shapes.out_channels <= 100, 2.0, 3.5) * (1 + 0.1 * number) * unit
    writes = np.where(shapes.in_width <= 30, 70.0, 110.0) + number
    kind = np.where(
        cin <= 80,
        int(KernelType.DRAM_BOUND),
        np.where(cin <= 200, int(KernelType.UNDER_UTILISED), int(KernelType.COMPUTE_BOUND)),
    )
    waves = launch.waves.astype(float)
    filled = launch.blocks.astype(float)
    scale = 1e-8 * (1 + 0.03 * number)
    compute = waves * (scale * launch.resident * instructions + 0.002)
    memory = filled * 10 * scale * (reads + writes) + 0.3
    mixed = filled * scale * (12 * reads + 15 * writes) + 0.4 * scale * waves * (
        launch.resident * instructions
    )
    time_ms = np.select([kind == 0, kind == 1], [compute, memory], mixed + 0.25)
    return Truth(launch, instructions, reads, writes, kind, time_ms)


def kernel_table(variant: ConvVariant, shapes: ConvShapes) -> ConvTable:
    """Returns what measuring a variant gives, without noise."""
    truth = kernel_truth(variant, shapes)
    levels = np.array([LEVELS[int(kind)] for kind in truth.kind])
    blocks = truth.launch.blocks.astype(float)
    return ConvTable(
        shapes,
        np.full(len(shapes), int(variant.algorithm)),
        truth.time_ms,
        truth.instructions * blocks,
        truth.reads * blocks,
        truth.writes * blocks,
        truth.launch.resident.astype(float),
        blocks,
        levels[:, 0],
        levels[:, 1],
    )


def variant_names(algorithm: ConvAlgorithm, shapes: ConvShapes) -> np.ndarray:
    """Returns the variant that an algorithm really takes."""
    if algorithm == ConvAlgorithm.IMPLICIT_PRECOMP_GEMM:
        return np.array(precomp_variant_names(shapes.out_channels))
    names = [variant.name for variant in variants_of(algorithm)]
    if algorithm == ConvAlgorithm.WINOGRAD_NONFUSED:
        small = shapes.out_channels <= 150
        return np.array(
            [
                f"algo7_128x{64 if is_small else 128}_{k}x{k}"
                for is_small, k in zip(small, shapes.kernel, strict=True)
            ]
        )
    place = np.digitize(shapes.out_channels, (100, 250))
    return np.array(names)[place]


def polynomial(columns: tuple[np.ndarray, ...], coefficients: tuple[float, ...]) -> np.ndarray:
    """Returns the sum of columns times coefficients, the last one alone."""
    parts = zip(columns, coefficients[:-1], strict=True)
    return sum(column * factor for column, factor in parts) + coefficients[-1]


def channel_polynomial(shapes: ConvShapes, coefficients: tuple[float, ...]) -> np.ndarray:
    """Returns a Cin + b Cin Cout + c Cout + d."""
    cin, cout = shapes.in_channels.astype(float), shapes.out_channels.astype(float)
    return polynomial((cin, cin * cout, cout), coefficients)


def helper_ms(algorithm: ConvAlgorithm, shapes: ConvShapes) -> np.ndarray:
    """Returns the time of an algorithm's helper kernels."""
    n, cin, win, cout, wout, k = (
        getattr(shapes, name).astype(float)
        for name in ("batch", "in_channels", "in_width", "out_channels", "out_width", "kernel")
    )
    if algorithm == ConvAlgorithm.GEMM:
        columns = (n * wout**2 * k**2 * cin, cout * k**2 * cin)
        return polynomial(columns, IM2COL_COEFFICIENTS)
    columns = (n * cin * win**2, n * cin * cout * k**2, n * cout * wout**2)
    return polynomial(columns, TRANSFORM_COEFFICIENTS)


def fft_ms(shapes: ConvShapes) -> np.ndarray:
    """Returns the time of FFT."""
    time_ms = np.full(len(shapes), np.inf)
    lower = 0
    for upper, coefficients in FFT_COEFFICIENTS.items():
        rows = (shapes.in_width > lower) & (shapes.in_width <= upper)
        time_ms[rows] = channel_polynomial(shapes, coefficients)[rows]
        lower = upper
    return time_ms


def tiling_ms(shapes: ConvShapes) -> np.ndarray:
    """Returns the time of FFT_TILING."""
    return channel_polynomial(shapes, TILING_COEFFICIENTS) * fft_tiles(shapes)


def layer_truth(shapes: ConvShapes) -> np.ndarray:
    """Returns float64 [R, 8], the real time of every algorithm; inf = not available."""
    time_ms = np.full((len(shapes), ALGORITHM_COUNT), np.inf)
    for algorithm in ConvAlgorithm:
        rows = np.flatnonzero(is_supported(algorithm, shapes))
        part = shapes[rows]
        if algorithm == ConvAlgorithm.FFT:
            time_ms[rows, algorithm] = fft_ms(part)
        elif algorithm == ConvAlgorithm.FFT_TILING:
            time_ms[rows, algorithm] = tiling_ms(part)
        elif len(rows):
            names = variant_names(algorithm, part)
            for name in np.unique(names):
                chosen = np.flatnonzero(names == name)
                found = kernel_truth(find_variant(name), part[chosen]).time_ms
                if algorithm in (ConvAlgorithm.GEMM, ConvAlgorithm.WINOGRAD_NONFUSED):
                    found = found + helper_ms(algorithm, part[chosen])
                time_ms[rows[chosen], algorithm] = found
    return time_ms


def tables(shapes: ConvShapes) -> dict[str, ConvTable]:
    """Returns every table of the layers, by the names of the workbooks."""
    found: dict[str, ConvTable] = {}
    for algorithm in ConvAlgorithm:
        part = shapes[is_supported(algorithm, shapes)]
        if algorithm == ConvAlgorithm.FFT:
            found["algo4"] = times_alone(part, int(algorithm), fft_ms(part))
        elif algorithm == ConvAlgorithm.FFT_TILING:
            found["algo5"] = times_alone(part, int(algorithm), tiling_ms(part))
        elif len(part):
            names = variant_names(algorithm, part)
            for name in np.unique(names):
                own = part[names == name]
                found[str(name)] = kernel_table(find_variant(str(name)), own)
                if algorithm == ConvAlgorithm.WINOGRAD_NONFUSED:
                    found[f"{name}_pre"] = times_alone(
                        own, int(algorithm), helper_ms(algorithm, own)
                    )
            if algorithm == ConvAlgorithm.GEMM:
                found["algo2_pre"] = times_alone(part, int(algorithm), helper_ms(algorithm, part))
    return found
