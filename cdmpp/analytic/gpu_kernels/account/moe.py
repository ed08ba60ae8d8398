"""Work of an expert layer: grouped products, by the load of the busiest rank and its experts."""

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
from cdmpp.analytic.gpu_kernels.serving_calls import MOE_DTYPES, MOE_KERNELS
from cdmpp.arrays import FloatArray

_EIGHTS = ("fp8", "fp8_block", "w4a8_mxfp4_mxfp8", "w4afp8")
_FOURS = ("nvfp4", "int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "w4afp8")
#: Bytes of a 4-bit weight, including scales.
_FOUR_BYTES = 0.5 + 1 / 32
_TILE_COLS = 128.0
_LEAST_ROWS, _MOST_ROWS = 16.0, 128.0
#: Minimum rows of a tile that keep a matrix unit busy.
_FULL_ROWS = 64.0
#: Draws of a power law range from 1 to this share of the tokens.
_LARGEST_SHARE = 0.8
#: Quantiles of the distribution at which the share of experts with a token is computed.
_PLACES = (np.arange(32) + 0.5) / 32
_PRIOR = {"longest": 1.0, "busiest": 0.2, "memory": 0.3, "tokens": 1.0, "cache": 0.3}
_LAUNCH_S = 20.0e-6
#: Distribution of rows whose tokens draw experts uniformly, where the source does not describe the
#: draw; fewer experts are read than with an even spread.
_DRAWN = "drawn"
#: A draw is assumed to hit at least the mean number of experts minus this many standard deviations.
_DEVIATIONS = 3.0


def tuned_moe_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of expert layers (`MoeLayer`) of AMD's library: without version and kind of
    kernel, and with tokens that draw their experts.
    """
    count = len(columns["tokens"])
    fixed = {
        "distribution": np.full(count, _DRAWN), "kernel": np.full(count, ""),
        "release": np.zeros(count),
    }  # fmt: skip
    return moe_work({"gated": np.ones(count), **columns, **fixed}, chip)


def moe_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of expert layers (`MoeLayer`, and `release`).

    The lower bound assumes evenly spread tokens (a power law's busiest rank has at least as many)
    and the fewest experts that can hold them or that a draw hits.
    """
    tokens, hidden, inter, top_k, experts, shared, ranks = (
        number(columns, name)
        for name in (
            "tokens", "hidden", "inter", "top_k", "experts", "tensor_parallel", "expert_parallel",
        )
    )  # fmt: skip
    inter = inter / shared
    local = experts / ranks
    share, top_share, used = expert_loads(columns)
    pairs, used = tokens * top_k * share, np.maximum(1.0, local * used)
    used = np.minimum(used, np.maximum(1.0, pairs))
    even = tokens * top_k / ranks
    is_even = is_word(columns, "distribution", "balanced")
    least = np.where(is_even, np.minimum(local, even), np.minimum(local, top_k / ranks))
    if np.any(is_drawn := is_word(columns, "distribution", _DRAWN)):
        spread = np.sqrt(used * np.maximum(0.0, 1.0 - used / local))
        least = np.where(is_drawn, np.maximum(least, used - _DEVIATIONS * spread), least)
    products = 2.0 + number(columns, "gated")
    weight = hidden * inter * products
    peak = moe_peak(columns, chip)
    element = weight_bytes(columns)
    flop = 2.0 * pairs * weight
    moved = used * weight * element + 2.0 * pairs * (hidden + inter)
    floor_moved = least * weight * element
    limits = {
        "compute": 2.0 * even * weight / peak,
        **memory_limits(floor_moved, chip),
        "launch": chip["least_s"],
    }
    cores = chip["core_count"]
    rows = pairs / used
    tile = np.clip(2.0 ** np.ceil(np.log2(np.maximum(rows, 1.0))), _LEAST_ROWS, _MOST_ROWS)
    high = tokens * top_k * top_share
    row_tiles = np.maximum(np.ceil(rows / tile) * used, np.ceil(high / tile))
    one = 2.0 * tile * _TILE_COLS * np.maximum(1.0, _FULL_ROWS / tile) / (peak / cores)
    blocks = {
        "up": (row_tiles * np.ceil((products - 1.0) * inter / _TILE_COLS), hidden),
        "down": (row_tiles * np.ceil(hidden / _TILE_COLS), inter),
    }
    turns, passed_on = np.zeros(len(pairs)), np.zeros(len(pairs))
    for count, depth in blocks.values():
        turns = turns + depth * np.ceil(count / cores)
        passed_on = passed_on + count * (tile * 2.0 + _TILE_COLS * element) * depth
    busiest, cache = one * turns, passed_on / chip["l2_bytes_per_s"]
    memory = moved / chip["dram_bytes_per_s"]
    passes = tokens * hidden * 2.0 + pairs * (4.0 * hidden + 4.0 * inter) * 2.0
    passed = passes / chip["dram_bytes_per_s"]
    return KernelWork(
        limits,
        terms={
            "longest": np.maximum.reduce([busiest, memory, cache]), "busiest": busiest,
            "memory": memory, "tokens": passed, "cache": cache,
        },
        prior=_PRIOR,
        launch_s=_LAUNCH_S,
        fade=0.0,
        times={
            "floor": np.maximum.reduce(list(limits.values())), "compute": flop / peak,
            "bf16": flop / chip["bf16_flop_per_s"],
        },
        inputs={
            **logs(
                rows=rows, used=used, local=local, blocks=blocks["up"][0] / cores,
                down=blocks["down"][0] / cores, hidden=hidden, inter=inter, pairs=pairs,
                tokens=tokens, top_k=top_k, high=high, fits=moved / chip["l2_bytes"],
                ranks=ranks, shared=shared,
            ),
            "gated": number(columns, "gated"),
            "is_even": np.asarray(is_even, np.float64),
            "release": number(columns, "release"),
            **flags(columns["dtype"], MOE_DTYPES),
            **flags(columns["kernel"], MOE_KERNELS[1:]),
        },
        size=flop,
    )  # fmt: skip


def expert_loads(columns: Columns) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns float64 [N] each: the share of all (token, expert) pairs on the busiest rank and on
    its busiest expert, and the share of the rank's experts with a token.

    A power law spreads the experts' loads like draws from 1 to 80 % of the tokens; its quantiles
    replace the draws. An expert has at most one pair of a token. If tokens draw their experts, the
    load of the busiest is the mean plus the expected maximum of that many normal deviates.
    """
    tokens, top_k, experts, ranks = (
        number(columns, name) for name in ("tokens", "top_k", "experts", "expert_parallel")
    )
    pairs, local = tokens * top_k, experts / ranks
    shares = np.stack([1.0 / ranks, 1.0 / experts, np.minimum(1.0, pairs / experts)])
    if np.any(is_drawn := is_word(columns, "distribution", _DRAWN)):
        chance, mean = np.minimum(top_k / experts, 1.0), pairs / experts
        top = mean + np.sqrt(2.0 * mean * (1.0 - chance) * np.log(np.maximum(experts, 1.0)))
        hit = -np.expm1(tokens * np.log1p(-np.minimum(chance, 1.0 - 1e-12)))
        shares[1] = np.where(is_drawn, np.clip(top / pairs, 1.0 / experts, 1.0 / top_k), shares[1])
        shares[2] = np.where(is_drawn, hit, shares[2])
    for word in np.unique(columns["distribution"]):
        if not str(word).startswith("power_law"):
            continue
        rows = np.flatnonzero(columns["distribution"] == word)
        exponent = float(str(word).rpartition("_")[2])
        end = np.maximum(2.0, _LARGEST_SHARE * tokens[rows])
        draws = np.stack([_quantile(place, end, exponent) for place in _PLACES])
        mean = draws.mean(axis=0)
        top = _quantile(1.0 - 0.5 / experts[rows], end, exponent)
        busiest = np.minimum(top / (mean * experts[rows]), 1.0 / top_k[rows])
        busiest = np.maximum(busiest, 1.0 / experts[rows])
        others = (local[rows] - 1.0) / np.maximum(experts[rows] - 1.0, 1.0)
        expected = pairs[rows] / experts[rows] * draws / mean
        shares[0, rows] = busiest + (1.0 - busiest) * others
        shares[1, rows] = busiest
        shares[2, rows] = (1.0 - np.exp(-expected)).mean(axis=0)
    return shares[0], shares[1], shares[2]


def _quantile(place: FloatArray | float, end: FloatArray, exponent: float) -> FloatArray:
    """Returns float64 [N], the quantile of a density proportional to x^-exponent on [1, end]."""
    power = 1.0 - exponent
    return np.asarray((1.0 + place * (end**power - 1.0)) ** (1.0 / power), np.float64)


def weight_bytes(columns: Columns) -> FloatArray:
    """Returns float64 [N], bytes of a weight, including scales."""
    size = np.where(is_word(columns, "dtype", "fp8", "fp8_block"), 1.0, 2.0)
    return np.where(is_word(columns, "dtype", *_FOURS), _FOUR_BYTES, size)


def moe_peak(columns: Columns, chip: ChipRows) -> FloatArray:
    """Returns float64 [N], operations per second of the arithmetic's type, or of 16 bits if the GPU
    lacks it.
    """
    bf16, fp8, fp4 = (chip[f"{name}_flop_per_s"] for name in ("bf16", "fp8", "fp4"))
    peak = np.where(is_word(columns, "dtype", *_EIGHTS) & (fp8 > 0), fp8, bf16)
    return np.where(is_word(columns, "dtype", "nvfp4") & (fp4 > 0), fp4, peak)
