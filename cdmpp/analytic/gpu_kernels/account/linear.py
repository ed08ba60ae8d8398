"""Work of the steps of linear attention: a short convolution, and a chunked recurrence."""

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
)
from cdmpp.analytic.gpu_kernels.serving_calls import LINEAR_KERNELS, LINEAR_KINDS

#: Tokens per chunk; within a chunk the recurrence is a matrix product.
_CHUNK = 64.0
#: Seconds per sequential chunk.
_ROUND_S = 1.0e-6
_PRIOR = {"memory": 1.5, "units": 2.0, "rounds": 0.5}
_LAUNCH_S = 6.0e-6


def linear_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of steps of linear attention (`LinearAttention`)."""
    batch, length, keys, values, key, value = (
        number(columns, name)
        for name in ("batch", "length", "key_heads", "value_heads", "key_size", "value_size")
    )
    is_scan, is_decode = is_word(columns, "step", "scan"), is_word(columns, "phase", "decode")
    tokens = batch * length
    channels = 2.0 * keys * key + values * value
    state = batch * values * key * value
    conv = 2.0 * 2.0 * tokens * channels
    scan = 2.0 * tokens * (channels + values * value) + 2.0 * 2.0 * state
    moved = np.where(is_scan, scan, conv)
    inside = np.minimum(_CHUNK, length)
    flop = np.where(
        is_scan, 2.0 * tokens * values * (inside * (key + value) / 2.0 + 2.0 * key * value), 0.0
    )
    limits = {
        "compute": flop / chip["bf16_flop_per_s"],
        **memory_limits(moved / 2.0, chip),
        "launch": chip["least_s"],
    }
    cores = chip["core_count"]
    chunks = np.ceil(length / _CHUNK)
    blocks = np.where(is_scan, batch * values, batch * channels / 128.0 * chunks)
    waves = np.ceil(blocks / cores)
    units = flop / blocks * waves / (chip["bf16_flop_per_s"] / cores)
    return KernelWork(
        limits,
        terms={
            "memory": moved / chip["dram_bytes_per_s"], "units": units,
            "rounds": np.where(is_scan & ~is_decode, chunks * waves * _ROUND_S, 0.0),
        },
        prior=_PRIOR,
        launch_s=_LAUNCH_S,
        fade=0.5,
        times={
            "floor": np.maximum.reduce(list(limits.values())),
            "state": 8.0 * np.where(is_scan, state, 0.0) / chip["dram_bytes_per_s"],
        },
        inputs={
            **logs(
                waves=blocks / cores, batch=batch, length=length, tokens=tokens, keys=keys,
                values=values, channels=channels, fits=moved / chip["l2_bytes"], chunks=chunks,
            ),
            "is_scan": np.asarray(is_scan, np.float64),
            "is_decode": np.asarray(is_decode, np.float64),
            "release": number(columns, "release"),
            **flags(columns["kind"], LINEAR_KINDS),
            **flags(columns["kernel"], LINEAR_KERNELS[1:]),
        },
        size=moved,
    )  # fmt: skip
