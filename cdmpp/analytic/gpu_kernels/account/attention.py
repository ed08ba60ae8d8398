"""Work of attention: prefill by tiles of queries and keys, decode by the bytes of the cache."""

from __future__ import annotations

import numpy as np

from cdmpp.analytic.gpu_kernels.account.work import (
    ChipRows,
    Columns,
    KernelWork,
    is_word,
    logs,
    memory_limits,
    number,
)
from cdmpp.arrays import FloatArray

#: Queries and keys in the tile of a thread block.
_TILE = 128.0
#: Exponentials per core and clock. Source: CUDA C++ Programming Guide, arithmetic throughput of
#: special functions.
_EXP_PER_CLOCK = 16.0
#: Minimum number of cached tokens per thread block.
_CHUNK = 256.0
#: Rows that a matrix unit takes at once; fewer queries per key-value head leave it partly idle.
_UNIT_ROWS = 16.0
_OUT_BYTES = 2.0
_PREFILL_PRIOR = {"busiest": 1.3, "exponentials": 0.5, "cache": 0.4, "beyond": 1.2}
_DECODE_PRIOR = {"beyond": 1.15, "port": 1.0, "units": 0.4, "converting": 0.4}
_PREFILL_LAUNCH_S = 10.0e-6
_DECODE_LAUNCH_S = 9.0e-6
_FADE = 0.5
#: Window of tokens without a window.
_NO_WINDOW = 1e12


def prefill_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of causal attention (`PrefillAttention`)."""
    batch, length, past, heads, kv_heads, size = (
        number(columns, name)
        for name in ("batch", "length", "past", "heads", "kv_heads", "head_size")
    )
    window, eights = _window(columns), _is_eight(columns)
    pairs = pairs_looked_at(length, past, window)
    flop = 4.0 * batch * heads * size * pairs
    cached = _cache_bytes(columns)
    own = batch * length * size * (2.0 * heads + 2.0 * kv_heads)
    before = np.minimum(past, window) * batch * 2.0 * kv_heads * size * cached
    moved = own * np.where(eights, 1.0, _OUT_BYTES) + before
    limits = {
        "compute": flop / attention_peak(columns, chip),
        **memory_limits(moved, chip),
        "launch": chip["least_s"],
    }
    rows = np.ceil(length / _TILE)
    seen = np.ceil(past / _TILE)
    reach = np.ceil(window / _TILE) + 1.0
    tiles = batch * heads * pairs_looked_at(rows, seen, reach)
    longest = np.minimum(rows + seen, reach)
    blocks = batch * heads * rows
    cores = chip["core_count"]
    share = np.maximum(np.maximum(tiles / cores, longest), tiles / blocks * np.ceil(blocks / cores))
    tile_flop = 4.0 * _TILE * _TILE * size
    busiest = share * tile_flop / (attention_peak(columns, chip) / cores)
    bf16 = share * tile_flop / (chip["bf16_flop_per_s"] / cores)
    exponentials = share * _TILE * _TILE / (_EXP_PER_CLOCK * chip["clock_hz"])
    cache = tiles * _TILE * size * 2.0 * cached / chip["l2_bytes_per_s"]
    memory = (own * _OUT_BYTES * 2.0 + before) / chip["dram_bytes_per_s"]
    return KernelWork(
        limits,
        terms={
            "busiest": busiest, "exponentials": exponentials, "cache": cache,
            "beyond": limits["memory"],
        },
        prior=_PREFILL_PRIOR,
        launch_s=_PREFILL_LAUNCH_S,
        fade=_FADE,
        times={
            "bf16": bf16, "memory": memory, "compute": limits["compute"],
            "floor": np.maximum.reduce(list(limits.values())),
        },
        inputs={
            **logs(
                waves=blocks / cores, use=tiles / (share * cores), longest=longest,
                fits=moved / chip["l2_bytes"], filled=pairs * batch * heads / (tiles * _TILE**2),
                batch=batch, length=length, heads=heads, group=heads / kv_heads, size=size,
                window=np.minimum(window, length) / length,
            ),
            **_types(columns),
        },
        size=flop,
    )  # fmt: skip


def decode_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of attention of one token per sequence (`DecodeAttention`)."""
    batch, context, heads, kv_heads, size = (
        number(columns, name) for name in ("batch", "context", "heads", "kv_heads", "head_size")
    )
    tokens = np.minimum(context, _window(columns))
    element = _cache_bytes(columns)
    cache_bytes = batch * tokens * kv_heads * size * 2.0 * element
    own = batch * size * (2.0 * heads + 2.0 * kv_heads)
    moved = cache_bytes + own * np.where(_is_eight(columns), 1.0, _OUT_BYTES)
    flop = 4.0 * batch * heads * size * tokens
    limits = {
        "compute": flop / attention_peak(columns, chip),
        **memory_limits(moved, chip),
        "launch": chip["least_s"],
    }
    cores = chip["core_count"]
    pairs = batch * kv_heads
    parts = np.clip(np.floor(cores / pairs), 1.0, np.ceil(tokens / _CHUNK))
    blocks = pairs * parts
    waves = np.ceil(blocks / cores)
    a_block = cache_bytes / blocks
    port = waves * a_block / (chip["l2_bytes_per_s"] / cores)
    group = heads / kv_heads
    padded = np.ceil(group / _UNIT_ROWS) * _UNIT_ROWS
    units = waves * 4.0 * padded * size * (tokens / parts) / (chip["bf16_flop_per_s"] / cores)
    converting = waves * 2.0 * size * (tokens / parts) / (chip["fp32_flop_per_s"] / cores)
    return KernelWork(
        limits,
        terms={"beyond": limits["memory"], "port": port, "units": units, "converting": converting},
        prior=_DECODE_PRIOR,
        launch_s=_DECODE_LAUNCH_S,
        fade=_FADE,
        times={
            "memory": moved / chip["dram_bytes_per_s"], "compute": limits["compute"],
            "own": own / chip["dram_bytes_per_s"],
            "floor": np.maximum.reduce(list(limits.values())),
        },
        inputs={
            **logs(
                waves=pairs / cores, use=blocks / (waves * cores), parts=parts,
                fits=moved / chip["l2_bytes"], chunk=tokens / parts, batch=batch, tokens=tokens,
                context=context, heads=heads, kv_heads=kv_heads, group=group, size=size,
            ),
            "is_windowed": np.asarray(number(columns, "window") > 0, np.float64),
            **_types(columns),
        },
        size=moved,
    )  # fmt: skip


def pairs_looked_at(length: FloatArray, past: FloatArray, window: FloatArray) -> FloatArray:
    """Returns float64 [N], the sum over tokens i = 1 ... length of min(past + i, window)."""
    growing = np.clip(window - past, 0.0, length)
    within = growing * past + growing * (growing + 1.0) / 2.0
    return np.asarray(within + (length - growing) * window, np.float64)


def attention_peak(columns: Columns, chip: ChipRows) -> FloatArray:
    """Returns float64 [N], operations per second: fp8 if the GPU has it and the arithmetic or the
    cache is fp8, since kernels with an fp8 cache compute in fp8.
    """
    can = _is_eight(columns) & (chip["fp8_flop_per_s"] > 0)
    return np.where(can, chip["fp8_flop_per_s"], chip["bf16_flop_per_s"])


def _window(columns: Columns) -> FloatArray:
    window = number(columns, "window")
    return np.where(window > 0, window, _NO_WINDOW)


def _is_eight(columns: Columns) -> np.ndarray:
    return is_word(columns, "dtype", "fp8") | is_word(columns, "kv_dtype", "fp8")


def _cache_bytes(columns: Columns) -> FloatArray:
    return np.where(is_word(columns, "kv_dtype", "fp8"), 1.0, 2.0)


def _types(columns: Columns) -> dict[str, FloatArray]:
    return {
        "is_fp8": np.asarray(is_word(columns, "dtype", "fp8"), np.float64),
        "is_fp8_cache": np.asarray(is_word(columns, "kv_dtype", "fp8"), np.float64),
    }
