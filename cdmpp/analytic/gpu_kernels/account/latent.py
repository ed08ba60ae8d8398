"""Work of multi-head latent attention: prefill with full heads, decode with one shared latent."""

from __future__ import annotations

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
    repeated_memory_s,
)
from cdmpp.analytic.gpu_kernels.serving_calls import LATENT_KERNELS
from cdmpp.arrays import FloatArray

#: Elements per head of queries and keys (128 + 64 with positions), and of values. Source:
#: DeepSeek-V2 (Liu et al. 2024), table of hyper-parameters.
_KEY, _VALUE = 192.0, 128.0
#: Elements of a token's latent, without and with the part for positions.
_LATENT, _CACHED = 512.0, 576.0
_TILE, _CHUNK, _GROUP_HEADS = 128.0, 256.0, 64.0
#: Rows of the smallest product of the matrix units: for one warp, and for a group of four warps.
_WARP_ROWS, _GROUPED_ROWS = 16.0, 64.0
_PREFILL_PRIOR = {"busiest": 1.3, "exponentials": 0.4, "memory": 1.2}
_DECODE_PRIOR = {"longest": 1.0, "memory": 0.3, "units": 0.4}
_PREFILL_LAUNCH_S, _DECODE_LAUNCH_S = 12.0e-6, 9.0e-6
_FADE = 0.5


def latent_prefill_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of latent attention of new tokens (`LatentPrefill`)."""
    batch, length, heads = (number(columns, name) for name in ("batch", "length", "heads"))
    pairs = length * (length + 1.0) / 2.0
    flop = 2.0 * batch * heads * pairs * (_KEY + _VALUE)
    peak = _peak(columns, chip)
    element = _cache_bytes(columns)
    moved = batch * length * heads * (2.0 * _KEY * 1.0 + _VALUE + 2.0 * _VALUE)
    limits = {
        "compute": flop / peak, **memory_limits(moved, chip), "launch": chip["least_s"],
    }  # fmt: skip
    cores = chip["core_count"]
    rows = np.ceil(length / _TILE)
    tiles = batch * heads * rows * (rows + 1.0) / 2.0
    blocks = batch * heads * rows
    share = np.maximum.reduce([tiles / cores, rows, tiles / blocks * np.ceil(blocks / cores)])
    tile_flop = 2.0 * _TILE * _TILE * (_KEY + _VALUE)
    busiest = share * tile_flop / (chip["bf16_flop_per_s"] / cores)
    exponentials = share * _TILE * _TILE / (chip["exp_per_clock"] * chip["clock_hz"])
    memory = 2.0 * moved / chip["dram_bytes_per_s"]
    return KernelWork(
        limits,
        terms={"busiest": busiest, "exponentials": exponentials, "memory": memory},
        prior=_PREFILL_PRIOR,
        launch_s=_PREFILL_LAUNCH_S,
        fade=_FADE,
        times={
            "compute": limits["compute"], "floor": np.maximum.reduce(list(limits.values())),
        },
        inputs={
            **logs(
                waves=blocks / cores, rows=rows, filled=pairs * batch * heads / (tiles * _TILE**2),
                batch=batch, length=length, heads=heads, fits=moved / chip["l2_bytes"],
                new=batch * length,
            ),
            "cached": element,
            **_common(columns),
        },
        size=flop,
    )  # fmt: skip


def latent_decode_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of latent attention of one token per sequence (`LatentDecode`)."""
    batch, context, heads = (number(columns, name) for name in ("batch", "context", "heads"))
    element = _cache_bytes(columns)
    cache_bytes = batch * context * _CACHED * element
    moved = cache_bytes + batch * heads * (_CACHED + _LATENT) * element
    flop = 2.0 * batch * heads * context * (_CACHED + _LATENT)
    limits = {
        "compute": flop / _peak(columns, chip), **memory_limits(moved, chip),
        "launch": chip["least_s"],
    }  # fmt: skip
    cores = chip["core_count"]
    groups = np.ceil(heads / _GROUP_HEADS)
    pairs = batch * groups
    parts = np.clip(np.floor(cores / pairs), 1.0, np.ceil(context / _CHUNK))
    blocks = pairs * parts
    waves = np.ceil(blocks / cores)
    least = np.where(chip["is_grouped"] > 0, _GROUPED_ROWS, _WARP_ROWS)
    rows = np.ceil(np.minimum(heads, _GROUP_HEADS) / least) * least
    padded = rows * 2.0 * (_CACHED + _LATENT) * context / parts
    units = waves * padded / (chip["bf16_flop_per_s"] / cores)
    port = waves * (context / parts) * _CACHED * element / (chip["l2_bytes_per_s"] / cores)
    memory = repeated_memory_s(moved, chip)
    return KernelWork(
        limits,
        terms={
            "longest": np.maximum.reduce([units, port, memory]), "memory": memory, "units": units,
        },
        prior=_DECODE_PRIOR,
        launch_s=_DECODE_LAUNCH_S,
        fade=_FADE,
        times={
            "compute": limits["compute"], "port": port,
            "floor": np.maximum.reduce(list(limits.values())),
        },
        inputs={
            **logs(
                waves=pairs / cores, use=blocks / (waves * cores), parts=parts,
                chunk=context / parts, fits=moved / chip["l2_bytes"], batch=batch,
                context=context, heads=heads,
            ),
            "cached": element,
            "is_grouped": chip["is_grouped"],
            **_common(columns),
        },
        size=flop,
    )  # fmt: skip


def _peak(columns: Columns, chip: ChipRows) -> FloatArray:
    """Returns float64 [N], operations per second: fp8 if the cache is fp8 and the GPU has it."""
    can = is_word(columns, "kv_dtype", "fp8") & (chip["fp8_flop_per_s"] > 0)
    return np.where(can, chip["fp8_flop_per_s"], chip["bf16_flop_per_s"])


def _cache_bytes(columns: Columns) -> FloatArray:
    return np.where(is_word(columns, "kv_dtype", "fp8"), 1.0, 2.0)


def _common(columns: Columns) -> dict[str, FloatArray]:
    return {
        "release": number(columns, "release"),
        **flags(columns["kernel"], LATENT_KERNELS[1:]),
    }
