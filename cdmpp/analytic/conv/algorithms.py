"""cuDNN's forward algorithms, their tile variants, and the shapes that each supports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError

AlgoConvention = Literal["cudnn", "readme"]
KernelFamily = Literal["gemm", "winograd", "winograd_nonfused"]


class ConvAlgorithm(IntEnum):
    """cuDNN's numbers of its forward algorithms. DIRECT is not implemented in any version."""

    IMPLICIT_GEMM = 0
    IMPLICIT_PRECOMP_GEMM = 1
    GEMM = 2
    DIRECT = 3
    FFT = 4
    FFT_TILING = 5
    WINOGRAD = 6
    WINOGRAD_NONFUSED = 7


ALGORITHM_COUNT = len(ConvAlgorithm)
#: Number in the original's readme -> cuDNN's number: the readme swaps 4, 5 with 6, 7. The mapping
#: is its own inverse.
_README_TO_CUDNN = (0, 1, 2, 3, 6, 7, 4, 5)
_LARGEST_FFT_WIDTH = 256
_NONFUSED_TILE = {3: 4, 5: 9}
#: Products that the largest Winograd tile in use leaves: F(6x6, 3x3) takes 8 x 8 for 6 x 6 outputs
#: of 9 each. Source: NNPACK (`wt8x8`), which torch calls on CPUs; MIOpen has it too.
_LARGEST_WINOGRAD = 64 / (36 * 9)


@dataclass(frozen=True)
class KernelResources:
    """Resources of one thread block of a kernel.

    Attributes:
        threads: threads per block.
        registers: registers per thread.
        shared_bytes: shared memory per block.
    """

    threads: int
    registers: int
    shared_bytes: int = 0


@dataclass(frozen=True)
class ConvVariant:
    """One tile variant of an algorithm's main kernel.

    The threads are those of the kernels' launches. Registers and shared memory are inferred: the
    smallest round numbers for which the occupancy rules give the resident blocks published for the
    Titan Xp. Measured tables have their own resident blocks.

    Attributes:
        name: name in the original's workbooks, e.g. `algo0_32x32`.
        algorithm: algorithm of the variant.
        family: selects the formulas of blocks and the features of the counters.
        tile_pixels: output pixels (nonfused Winograd: input tiles) of a block.
        tile_channels: output channels of a block.
        tile_images: (images, rows of 2x2 tiles) of a block; fused Winograd only.
        kernels: filter widths that the variant supports; empty = all.
        resources: resources of a block.
    """

    name: str
    algorithm: ConvAlgorithm
    family: KernelFamily
    tile_pixels: int
    tile_channels: int
    resources: KernelResources
    tile_images: tuple[int, int] = (1, 1)
    kernels: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Returns the name, which a model file stores for a variant."""
        return self.name

    @classmethod
    def from_json(cls, name: str) -> ConvVariant:
        """Returns the variant with this name; see `find_variant`."""
        return find_variant(name)


_SMALL = KernelResources(64, 128)
_MIDDLE = KernelResources(128, 128)
_LARGE = KernelResources(256, 128)


def conv_variants() -> tuple[ConvVariant, ...]:
    """Returns all variants, ordered by algorithm and tile."""
    gemm, precomp, explicit = (
        ConvAlgorithm.IMPLICIT_GEMM,
        ConvAlgorithm.IMPLICIT_PRECOMP_GEMM,
        ConvAlgorithm.GEMM,
    )
    rows: list[tuple[ConvAlgorithm, int, int, KernelResources]] = [
        (gemm, 32, 32, _SMALL),
        (gemm, 64, 128, _MIDDLE),
        (gemm, 128, 128, _MIDDLE),
        (precomp, 128, 32, KernelResources(64, 120, 19 * 1024)),
        (precomp, 128, 64, _MIDDLE),
        (precomp, 128, 128, _LARGE),
        (explicit, 32, 32, KernelResources(64, 64)),
        (explicit, 64, 128, _LARGE),
        (explicit, 128, 128, _LARGE),
    ]
    found = [
        ConvVariant(f"algo{int(a)}_{m}x{n}", a, "gemm", m, n, resources)
        for a, m, n, resources in rows
    ]
    winograd, nonfused = ConvAlgorithm.WINOGRAD, ConvAlgorithm.WINOGRAD_NONFUSED
    found += [
        ConvVariant(f"algo6_{name}", winograd, "winograd", 32, 32, _LARGE, images, (3,))
        for name, images in (("148", (1, 4)), ("228", (2, 2)), ("418", (4, 1)))
    ]
    found += [
        ConvVariant(
            f"algo7_128x{n}_{k}x{k}", nonfused, "winograd_nonfused", 128, n, resources, (1, 1), (k,)
        )
        for k in (3, 5)
        for n, resources in ((64, _MIDDLE), (128, _LARGE))
    ]
    return tuple(found)


def find_variant(name: str) -> ConvVariant:
    """Returns a variant by name.

    Raises:
        DataError: unknown variant.
    """
    for variant in conv_variants():
        if variant.name == name:
            return variant
    raise DataError(
        f"unknown kernel variant {name!r}; known: {', '.join(v.name for v in conv_variants())}"
    )


def variants_of(algorithm: ConvAlgorithm) -> tuple[ConvVariant, ...]:
    """Returns the variants of one algorithm; empty for the FFT ones, which are not modelled by
    kernel.
    """
    return tuple(variant for variant in conv_variants() if variant.algorithm == algorithm)


def to_cudnn(numbers: IntArray, convention: AlgoConvention) -> IntArray:
    """Returns int64 [R], cuDNN's numbers of algorithms numbered by a convention.

    Raises:
        DataError: a number is not an algorithm.
    """
    numbers = np.asarray(numbers, np.int64)
    wrong = (numbers < 0) | (numbers >= ALGORITHM_COUNT)
    if wrong.any():
        raise DataError(
            f"algorithm {int(numbers[wrong][0])} is not an algorithm of cuDNN; expected 0 to "
            f"{ALGORITHM_COUNT - 1}"
        )
    return numbers if convention == "cudnn" else np.array(_README_TO_CUDNN, np.int64)[numbers]


def from_cudnn(algorithms: IntArray, convention: AlgoConvention) -> IntArray:
    """Returns int64 [R], the numbers of cuDNN's algorithms in a convention."""
    return to_cudnn(algorithms, convention)


def is_supported(algorithm: ConvAlgorithm, shapes: ConvShapes) -> NDArray[np.bool_]:
    """Returns bool [R], whether cuDNN supports the algorithm for these shapes.

    FFT and FFT_TILING need stride 1, FFT a width of at most 256; WINOGRAD a 3x3 filter and stride
    1; WINOGRAD_NONFUSED a 3x3 or 5x5 filter and stride 1; DIRECT is never supported.
    """
    everywhere = np.ones(len(shapes), np.bool_)
    unit: NDArray[np.bool_] = shapes.stride == 1
    served = everywhere
    if algorithm == ConvAlgorithm.DIRECT:
        served = ~everywhere
    elif algorithm == ConvAlgorithm.FFT:
        served = unit & (shapes.in_width <= _LARGEST_FFT_WIDTH)
    elif algorithm == ConvAlgorithm.FFT_TILING:
        # A transform of 32 fits a filter of at most 32.
        served = unit & (shapes.kernel <= 32)
    elif algorithm == ConvAlgorithm.WINOGRAD:
        served = unit & (shapes.kernel == 3)
    elif algorithm == ConvAlgorithm.WINOGRAD_NONFUSED:
        served = unit & np.isin(shapes.kernel, tuple(_NONFUSED_TILE))
    return np.asarray(served, np.bool_)


def least_product_share(window: ArrayLike, stride: ArrayLike) -> FloatArray:
    """Returns float64 [R], the share of a convolution's products that no algorithm in use saves.

    With a stride of 1, Winograd's algorithms save most for windows of up to 3x3. For larger ones,
    Fourier transforms of large tiles leave at least one product for each output and pair of
    channels.

    Args:
        window: elements of a filter in one channel, from 1 up.
        stride: of all axes, or their mean.
    """
    window = np.asarray(window, np.float64)
    fast = np.maximum(1.0 / window, np.where(window <= 9, _LARGEST_WINOGRAD, 0.0))
    return np.asarray(np.where(np.asarray(stride) == 1, fast, 1.0), np.float64)


def nonfused_tile(kernel: int) -> int:
    """Returns the width of the output tile of nonfused Winograd: 4 for 3x3, 9 for 5x5.

    Raises:
        DataError: unsupported filter.
    """
    if kernel not in _NONFUSED_TILE:
        raise DataError(f"nonfused Winograd serves 3x3 and 5x5 filters; got {kernel}x{kernel}")
    return _NONFUSED_TILE[kernel]


def precomp_variant_names(out_channels: IntArray) -> list[str]:
    """Returns the variant of IMPLICIT_PRECOMP_GEMM for each number of output channels."""
    upper = (
        (32, 32), (64, 64), (96, 32), (128, 128), (192, 64), (256, 128), (320, 64),
    )  # fmt: skip
    edges = np.array([edge for edge, _ in upper])
    tiles = [*(tile for _, tile in upper), 128]
    return [f"algo1_128x{tiles[i]}" for i in np.searchsorted(edges, out_channels, side="left")]
