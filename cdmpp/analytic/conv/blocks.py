"""Thread blocks of a convolution kernel: number of launched and resident blocks, and of waves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvVariant, nonfused_tile
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.rows import Rows
from cdmpp.arrays import IntArray
from cdmpp.devices.occupancy import device_occupancy_limits, occupancy
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError

_FFT_TILE = 32


@dataclass(frozen=True)
class BlockLaunch(Rows):
    """Blocks of a kernel on a device.

    Attributes:
        blocks: int64 [R], launched blocks.
        resident: int64 [R], blocks that the whole device holds at once.
    """

    blocks: IntArray
    resident: IntArray

    @property
    def waves(self) -> IntArray:
        """int64 [R], ceil(blocks / resident)."""
        return -(-self.blocks // self.resident)


def launched_blocks(variant: ConvVariant, shapes: ConvShapes) -> IntArray:
    """Returns int64 [R], number of blocks of the variant's main kernel.

    Differs from the original, which uses 64 channels per block for 128x128 nonfused Winograd.
    """
    if variant.family == "gemm":
        pixels = shapes.batch * shapes.out_width**2
        return _ceil(pixels, variant.tile_pixels) * _ceil(
            shapes.out_channels, variant.tile_channels
        )
    if variant.family == "winograd":
        images, rows = variant.tile_images
        half = _ceil(shapes.in_width, 2)
        return (
            _ceil(shapes.batch, images)
            * _ceil(half, rows)
            * _ceil(half, 8)
            * _ceil(shapes.out_channels, variant.tile_channels)
        )
    tile = nonfused_tile(variant.kernels[0])
    tiles = shapes.batch * _ceil(shapes.out_width, tile) ** 2
    products = (tile + variant.kernels[0] - 1) ** 2
    return (
        _ceil(tiles, variant.tile_pixels)
        * _ceil(shapes.out_channels, variant.tile_channels)
        * products
    )


def resident_blocks(variant: ConvVariant, device: DeviceSpec) -> int:
    """Returns the number of blocks of a variant that a device holds at once, by occupancy rules.

    Raises:
        DeviceError: not an NVIDIA GPU with known limits, unknown number of multiprocessors, or a
            kernel that the device cannot launch.
    """
    if device.core_count is None:
        raise DeviceError(
            f"the number of multiprocessors of {device.name!r} is unknown; add core_count to its "
            "YAML file, see: cdmpp device show"
        )
    found = occupancy(
        device_occupancy_limits(device),
        variant.resources.threads,
        registers_per_thread=variant.resources.registers,
        shared_bytes_per_block=variant.resources.shared_bytes,
    )
    if not found.blocks_per_core:
        raise DeviceError(f"kernel {variant.name} cannot be launched on {device.name!r}")
    return found.blocks_per_core * device.core_count


def launch(variant: ConvVariant, shapes: ConvShapes, device: DeviceSpec) -> BlockLaunch:
    """Returns the launch of a variant's main kernel for these shapes.

    Raises:
        DeviceError: as `resident_blocks`.
    """
    resident = np.full(len(shapes), resident_blocks(variant, device), np.int64)
    return BlockLaunch(launched_blocks(variant, shapes), resident)


def fft_tiles(shapes: ConvShapes) -> IntArray:
    """Returns int64 [R], number of transforms of 32 per output: ceil(Wout / (32 - k + 1))²."""
    return _ceil(shapes.out_width, _FFT_TILE - shapes.kernel + 1) ** 2


def _ceil(values: IntArray, divisor: int | IntArray) -> IntArray:
    return -(-values // divisor)
