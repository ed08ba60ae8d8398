"""Block and wave arithmetic, and which algorithm can do what."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.conv.algorithms import (
    ConvAlgorithm,
    conv_variants,
    find_variant,
    from_cudnn,
    is_supported,
    precomp_variant_names,
    to_cudnn,
)
from cdmpp.analytic.conv.blocks import (
    BlockLaunch,
    fft_tiles,
    launch,
    launched_blocks,
    resident_blocks,
)
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, DeviceError

#: Blocks that a Titan Xp holds at once, as published.
PUBLISHED_RESIDENT = {
    "algo0_32x32": 240, "algo0_64x128": 120, "algo0_128x128": 120,
    "algo1_128x32": 150, "algo1_128x64": 120, "algo1_128x128": 60,
    "algo2_32x32": 480, "algo2_64x128": 60, "algo2_128x128": 60,
    "algo6_148": 60, "algo6_228": 60, "algo6_418": 60,
    "algo7_128x64_3x3": 120, "algo7_128x128_3x3": 60,
    "algo7_128x64_5x5": 120, "algo7_128x128_5x5": 60,
}  # fmt: skip


def test_blocks_and_waves_of_an_implicit_gemm() -> None:
    shapes = ConvShapes.of(128, 64, 56, 256, 3, 1, 1)
    found = launch(find_variant("algo0_32x32"), shapes, get_device("titan-xp"))
    assert found.blocks.tolist() == [100_352]
    assert found.resident.tolist() == [240]
    assert found.waves.tolist() == [419]


@pytest.mark.parametrize(
    ("variant", "width", "out_channels", "blocks"),
    [("algo7_128x64_3x3", 28, 128, 3_528), ("algo6_148", 56, 64, 7_168)],
)
def test_blocks_of_winograd(variant: str, width: int, out_channels: int, blocks: int) -> None:
    shapes = ConvShapes.of(128, 64, width, out_channels, 3, 1, 1)
    assert launched_blocks(find_variant(variant), shapes).tolist() == [blocks]


def test_the_large_tile_of_nonfused_winograd_covers_128_channels() -> None:
    shapes = ConvShapes.of(128, 64, 28, 128, 3, 1, 1)
    variant = find_variant("algo7_128x128_3x3")
    assert launched_blocks(variant, shapes).tolist() == [49 * 1 * 36]


def test_tiles_of_fft() -> None:
    shapes = ConvShapes.of(128, 8, 60, 8, 5)
    assert shapes.out_width.tolist() == [56]
    assert fft_tiles(shapes).tolist() == [4]


def test_one_block_more_than_fits_is_another_wave() -> None:
    found = BlockLaunch(np.array([60, 61]), np.array([60, 60]))
    assert found.waves.tolist() == [1, 2]


def test_occupancy_gives_the_published_resident_blocks() -> None:
    device = get_device("titan-xp")
    found = {variant.name: resident_blocks(variant, device) for variant in conv_variants()}
    assert found == PUBLISHED_RESIDENT


def test_another_gpu_needs_its_spec_sheet_only() -> None:
    found = {v.name: resident_blocks(v, get_device("t4")) for v in conv_variants()}
    # Turing has half the warps a multiprocessor and 40 multiprocessors; registers stay the limit.
    assert found["algo1_128x128"] == 80
    assert found["algo1_128x32"] == 3 * 40
    with pytest.raises(DeviceError, match="NVIDIA GPUs only"):
        resident_blocks(find_variant("algo1_128x64"), get_device("mi50"))


@pytest.mark.parametrize(
    ("out_channels", "tile"),
    [(1, 32), (32, 32), (33, 64), (64, 64), (65, 32), (96, 32), (97, 128), (128, 128), (129, 64),
     (192, 64), (193, 128), (256, 128), (257, 64), (320, 64), (321, 128), (2048, 128)],
)  # fmt: skip
def test_the_variant_rule_of_precomp_gemm(out_channels: int, tile: int) -> None:
    assert precomp_variant_names(np.array([out_channels])) == [f"algo1_128x{tile}"]


def test_what_each_algorithm_serves() -> None:
    shapes = ConvShapes.of(8, 4, [40, 40, 40, 40, 300], 4, [3, 3, 5, 7, 3], [1, 2, 1, 1, 1], 1)
    served = {a.name: is_supported(a, shapes).tolist() for a in ConvAlgorithm}
    assert served["IMPLICIT_GEMM"] == served["GEMM"] == [True] * 5
    assert served["DIRECT"] == [False] * 5
    assert served["WINOGRAD"] == [True, False, False, False, True]
    assert served["WINOGRAD_NONFUSED"] == [True, False, True, False, True]
    assert served["FFT"] == [True, False, True, True, False]
    assert served["FFT_TILING"] == [True, False, True, True, True]


def test_conventions() -> None:
    numbers = np.arange(8)
    assert to_cudnn(numbers, "cudnn").tolist() == list(range(8))
    assert to_cudnn(numbers, "readme").tolist() == [0, 1, 2, 3, 6, 7, 4, 5]
    assert from_cudnn(to_cudnn(numbers, "readme"), "readme").tolist() == list(range(8))
    with pytest.raises(DataError, match="algorithm 8"):
        to_cudnn(np.array([8]), "cudnn")


def test_shapes_that_are_none() -> None:
    with pytest.raises(DataError, match="larger than its padded input"):
        ConvShapes.of(1, 1, 3, 1, 5)
    with pytest.raises(DataError, match="below 1"):
        ConvShapes.of(0, 1, 3, 1, 3)
