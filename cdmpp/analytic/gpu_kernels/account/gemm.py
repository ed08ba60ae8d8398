"""Work of a matrix product: tiles, waves of thread blocks and the load of the busiest core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cdmpp.analytic.gpu_kernels.account.work import (
    ChipRows,
    Columns,
    KernelWork,
    flags,
    is_word,
    logs,
    memory_limits,
    number,
)
from cdmpp.analytic.gpu_kernels.calls import GEMM_DTYPES
from cdmpp.arrays import FloatArray

#: Rows and columns of the tiles that a library may choose for a thread block.
_TILES = (
    (16, 64), (16, 128), (64, 64), (128, 64), (64, 128), (128, 128), (128, 256), (256, 128),
    (256, 256),
)  # fmt: skip
#: Numbers of parts into which the sum over k may be split, each computed by its own block.
_SPLITS = (1, 2, 4, 8, 16)
#: Tile of a library with a single tile and no split sums. It has the least log error of five sets
#: of tiles on a fifth of the H100's weights (docs/lab/experiments.md).
_ONE_TILE = ((128, 128),)
#: Elements of k per step of a block, and minimum seconds of a step: a round trip to the L2 that
#: neighbouring steps hide in part.
_K_STEP = 64
_STEP_S = 2.5e-8
#: Minimum rows of a tile that keep a matrix unit busy.
_FULL_ROWS = 64
#: Seconds to add up the parts of a split sum.
_SPLIT_S = 1.5e-6
#: Share of the shorter pipes' time that is not hidden behind the longest.
_NOT_HIDDEN = 0.3
_OUT_BYTES = 2.0
_PRIOR = {"longest": 1.0, "busiest": 0.2, "cache": 0.2, "memory": 0.2, "steps": 0.5}
_LAUNCH_S = 3.0e-6


def tuned_gemm_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of products (`Gemm`) of AMD's library. Products with scales in blocks use
    other kernels at half the efficiency and have their own weight of the longest pipe.
    """
    work = gemm_work(columns, chip)
    longest = work.terms["longest"]
    in_blocks = longest * is_word(columns, "dtype", "fp8_block")
    return replace(
        work,
        terms={**work.terms, "longest": longest - in_blocks, "longest_in_blocks": in_blocks},
        prior={**work.prior, "longest_in_blocks": work.prior["longest"]},
        times={**work.times, "longest_of_all": longest},
    )


def tile_gemm_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of products (`Gemm`) of a library with one tile."""
    return gemm_work(columns, chip, tiles=_ONE_TILE, splits=(1,))


def gemm_work(
    columns: Columns,
    chip: ChipRows,
    *,
    tiles: Sequence[tuple[int, int]] = _TILES,
    splits: Sequence[int] = _SPLITS,
) -> KernelWork:
    """Returns the work of products (`Gemm`).

    Args:
        tiles: rows and columns of the candidate tiles.
        splits: candidate numbers of parts of the sum over k.
    """
    m, n, k = (number(columns, name) for name in "mnk")
    element = element_bytes(columns)
    peak = gemm_peak(columns, chip)
    flop = 2.0 * m * n * k
    moved = (m * k + n * k) * element + _OUT_BYTES * m * n
    limits = {
        "compute": flop / peak,
        **memory_limits(moved, chip),
        "launch": chip["least_s"],
    }
    best = _best_tiling(m, n, k, element, moved, peak, chip, tiles, splits)
    dram_s = moved / chip["dram_bytes_per_s"]
    scaled = is_word(columns, "dtype", "fp8", "nvfp4")
    return KernelWork(
        limits,
        terms={name: best.pop(name) for name in _PRIOR},
        prior=_PRIOR,
        launch_s=_LAUNCH_S,
        fade=0.0,
        times={
            "floor": np.maximum.reduce(list(limits.values())), "compute": limits["compute"],
            "scaling": np.where(scaled, m * k * 4 / chip["dram_bytes_per_s"], 0.0),
        },
        inputs={
            **logs(
                **best, m=m, n=n, k=k, fits=moved / chip["l2_bytes"],
                balance=limits["compute"] / dram_s,
            ),
            "is_aligned": np.asarray((n % 128 == 0) & (k % 128 == 0), np.float64),
            **flags(columns["dtype"], GEMM_DTYPES),
        },
        size=flop,
    )  # fmt: skip


def element_bytes(columns: Columns) -> FloatArray:
    """Returns float64 [N], bytes per element of the factors, including scales."""
    size = np.where(is_word(columns, "dtype", "nvfp4"), 0.5 + 1 / 16, 2.0)
    return np.where(is_word(columns, "dtype", "fp8", "fp8_static", "fp8_block"), 1.0, size)


def gemm_peak(columns: Columns, chip: ChipRows) -> FloatArray:
    """Returns float64 [N], operations per second; fp8 runs in 16 bits without fp8 units."""
    eight = np.where(chip["fp8_flop_per_s"] > 0, chip["fp8_flop_per_s"], chip["bf16_flop_per_s"])
    peak = np.where(
        is_word(columns, "dtype", "nvfp4"), chip["fp4_flop_per_s"], chip["bf16_flop_per_s"]
    )
    return np.where(is_word(columns, "dtype", "fp8", "fp8_static", "fp8_block"), eight, peak)


def _best_tiling(
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    element: FloatArray,
    moved: FloatArray,
    peak: FloatArray,
    chip: ChipRows,
    tiles: Sequence[tuple[int, int]],
    splits: Sequence[int],
) -> dict[str, FloatArray]:
    """Returns the terms of the tiling with the smallest nominal time, float64 [N] each."""
    cores = chip["core_count"]
    best: dict[str, FloatArray] = {}
    for rows, cols in tiles:
        for parts in splits:
            depth = np.ceil(k / parts / _K_STEP) * _K_STEP
            blocks = np.ceil(m / rows) * np.ceil(n / cols) * parts
            waves = np.ceil(blocks / cores)
            active = np.minimum(blocks, cores) / cores
            shape = 2.0 * rows * cols * max(1.0, _FULL_ROWS / rows)
            busiest = waves * shape * depth / (peak / cores)
            traffic = blocks * (rows + cols) * depth * element
            traffic += 8.0 * m * n * parts * (parts > 1)
            cache = 1.5 * traffic / (chip["l2_bytes_per_s"] * active)
            memory = moved / chip["dram_bytes_per_s"] / np.minimum(1.0, 3.0 * active)
            steps = waves * depth / _K_STEP * _STEP_S + _SPLIT_S * (parts > 1)
            longest = np.maximum.reduce([busiest, cache, memory, steps])
            found = {
                "nominal": longest + _NOT_HIDDEN * (busiest + cache + memory),
                "longest": longest,
                "busiest": busiest,
                "cache": cache,
                "memory": memory,
                "steps": steps,
                "waves": waves,
                "use": blocks / (waves * cores),
                "tile": np.full(len(m), float(rows * cols)),
                "parts": np.full(len(m), float(parts)),
            }
            is_better = found["nominal"] < best["nominal"] if best else np.ones(len(m), bool)
            best = {
                name: np.where(is_better, term, best.get(name, term))
                for name, term in found.items()
            }
    return best
