"""Minimum compute and traffic of a kernel, as substitutes for unmeasured counters.

Differs from the paper, where trees predict measured DRAM transactions. Without counters the traffic
is bounded from both sides: every byte moved once, and every block loading its own tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.conv.algorithms import (
    ConvAlgorithm,
    ConvVariant,
    find_variant,
    nonfused_tile,
)
from cdmpp.analytic.conv.blocks import BlockLaunch, fft_tiles, launch
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import FloatArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError

_BYTES = 4
_MS = 1e3
_FLOP_PER_PRODUCT = 2
_REDUCTION_STEP = 8
#: Products of one 2x2 output tile of fused Winograd: (2 + 3 - 1)².
_FUSED_PRODUCTS = 16
_FUSED_TILE = 4


@dataclass(frozen=True)
class LatentWork:
    """Work of a variant, as times on an ideal device.

    Attributes:
        waves_ms: float64 [R], arithmetic of all waves, each counted as full.
        tail_ms: float64 [R], the same, with the last wave as deep as its fullest multiprocessor.
        compulsory_ms: float64 [R], every byte of the main kernel moved once.
        tiles_ms: float64 [R], every block loads its tiles from DRAM.
        helpers_ms: float64 [R], traffic of the helper kernels (transforms, im2col).
        waves: float64 [R], number of waves.
    """

    waves_ms: FloatArray
    tail_ms: FloatArray
    compulsory_ms: FloatArray
    tiles_ms: FloatArray
    helpers_ms: FloatArray
    waves: FloatArray


def device_peaks(device: DeviceSpec) -> tuple[float, float, int]:
    """Returns (fp32 operations/s, bytes/s, multiprocessors).

    Raises:
        DeviceError: one of them is unknown.
    """
    values = (
        device.peak_fp32_flop_per_s,
        device.mem_bandwidth_bytes_per_s,
        device.core_count,
    )
    flop_per_s, bytes_per_s, cores = values
    if flop_per_s is None or bytes_per_s is None or cores is None:
        raise DeviceError(
            f"the convolution model needs peak_fp32_flop_per_s, mem_bandwidth_bytes_per_s and "
            f"core_count of {device.name!r}; see: cdmpp device show {device.name}"
        )
    return flop_per_s, bytes_per_s, cores


def latent_work(variant: ConvVariant, shapes: ConvShapes, device: DeviceSpec) -> LatentWork:
    """Returns the work of a variant on a device.

    Raises:
        DeviceError: as `device_peaks` and `cdmpp.analytic.conv.blocks.resident_blocks`.
    """
    flop_per_s, bytes_per_s, cores = device_peaks(device)
    started = launch(variant, shapes, device)
    products, tile_elements, moved, helpers = _parts(variant, shapes)
    block_ms = products * _FLOP_PER_PRODUCT / (flop_per_s / cores) * _MS
    per_core = started.resident / cores
    deep = _deepest(started, cores)
    return LatentWork(
        waves_ms=started.waves * per_core * block_ms,
        tail_ms=((started.waves - 1) * per_core + deep) * block_ms,
        compulsory_ms=moved * _BYTES / bytes_per_s * _MS,
        tiles_ms=started.blocks * tile_elements * _BYTES / bytes_per_s * _MS,
        helpers_ms=helpers * _BYTES / bytes_per_s * _MS,
        waves=started.waves.astype(np.float64),
    )


def fft_work(algorithm: ConvAlgorithm, shapes: ConvShapes, device: DeviceSpec) -> LatentWork:
    """Returns the work of an FFT algorithm: transforms as traffic, products of frequencies."""
    flop_per_s, bytes_per_s, _ = device_peaks(device)
    if algorithm == ConvAlgorithm.FFT_TILING:
        size = np.full(len(shapes), 32.0)
        count = fft_tiles(shapes).astype(np.float64)
    else:
        size = 2.0 ** np.ceil(np.log2(shapes.in_width + 2 * shapes.padding))
        count = np.ones(len(shapes))
    # A real transform has half of the frequencies, two numbers each.
    spectrum = count * size * (size / 2 + 1) * 2
    n, cin, cout = (
        getattr(shapes, name).astype(np.float64)
        for name in ("batch", "in_channels", "out_channels")
    )
    transformed = spectrum * (n * cin + n * cout) + spectrum / count * cin * cout
    # A complex product is three or four real ones; the fitted coefficient absorbs the difference.
    products = spectrum / 2 * 4 * n * cin * cout
    arithmetic = products * _FLOP_PER_PRODUCT / flop_per_s * _MS
    return LatentWork(
        waves_ms=np.zeros(len(shapes)),
        tail_ms=arithmetic,
        compulsory_ms=shapes.compulsory_bytes / bytes_per_s * _MS,
        tiles_ms=np.zeros(len(shapes)),
        helpers_ms=transformed * _BYTES / bytes_per_s * _MS,
        waves=count,
    )


def usual_variants(algorithm: ConvAlgorithm) -> tuple[ConvVariant, ...]:
    """Returns the variants that represent an algorithm with an unknown kernel."""
    names = {
        ConvAlgorithm.IMPLICIT_GEMM: ("algo0_32x32", "algo0_128x128"),
        ConvAlgorithm.IMPLICIT_PRECOMP_GEMM: ("algo1_128x32", "algo1_128x64", "algo1_128x128"),
        ConvAlgorithm.GEMM: ("algo2_32x32", "algo2_64x128"),
        ConvAlgorithm.WINOGRAD: ("algo6_148", "algo6_228", "algo6_418"),
        ConvAlgorithm.WINOGRAD_NONFUSED: ("algo7_128x64_3x3", "algo7_128x128_3x3"),
    }.get(algorithm, ())
    return tuple(find_variant(name) for name in names)


def roofline_ms(shapes: ConvShapes, device: DeviceSpec) -> FloatArray:
    """Returns float64 [R], max(direct operations / peak, compulsory bytes / bandwidth)."""
    flop_per_s, bytes_per_s, _ = device_peaks(device)
    return np.maximum(
        _FLOP_PER_PRODUCT * shapes.multiplications / flop_per_s,
        shapes.compulsory_bytes / bytes_per_s,
    ) * np.float64(_MS)


def _deepest(started: BlockLaunch, cores: int) -> FloatArray:
    """Returns float64 [R], blocks of the last wave on the fullest multiprocessor."""
    last = started.blocks - (started.waves - 1) * started.resident
    return np.ceil(last / cores)


def _parts(
    variant: ConvVariant, shapes: ConvShapes
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Returns float64 [R] each: products of a block, elements that a block loads, minimum elements
    that the main kernel moves, elements that the helper kernels move.
    """
    pixels, channels = variant.tile_pixels, variant.tile_channels
    weights = shapes.reduction_by_channels
    nothing = np.zeros(len(shapes))
    if variant.family == "gemm":
        length = _whole_steps(shapes.reduction)
        moved = shapes.inputs + weights + shapes.outputs
        helpers = nothing
        if variant.algorithm == ConvAlgorithm.GEMM:
            helpers = 2.0 * shapes.batch * shapes.reduction_by_pixels
        return pixels * channels * length, (pixels + channels) * length, moved, helpers
    length = _whole_steps(shapes.in_channels.astype(np.float64))
    if variant.family == "winograd":
        tiles = variant.tile_pixels
        loads = (tiles * _FUSED_TILE + channels * 9) * length
        moved = shapes.inputs + weights + shapes.outputs
        return tiles * channels * _FUSED_PRODUCTS * length, loads, moved, nothing
    kernel = variant.kernels[0]
    tile = nonfused_tile(kernel)
    frequencies = float((tile + kernel - 1) ** 2)
    tiles = shapes.batch * np.ceil(shapes.out_width / tile) ** 2
    inner = frequencies * tiles * shapes.in_channels
    outer = frequencies * tiles * shapes.out_channels
    filters = frequencies * shapes.in_channels * shapes.out_channels
    helpers = shapes.inputs + inner + weights + filters + outer + shapes.outputs
    return (
        pixels * channels * length,
        (pixels + channels) * length,
        inner + filters + outer,
        helpers,
    )


def _whole_steps(length: FloatArray) -> FloatArray:
    return np.ceil(length / _REDUCTION_STEP) * _REDUCTION_STEP
