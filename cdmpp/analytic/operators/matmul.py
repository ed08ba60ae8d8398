"""Closed form of fp32 matrix products: tiles, waves of thread blocks, traffic, heat."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.operators.fit import Parameter, RowValues
from cdmpp.analytic.operators.operators import Operators
from cdmpp.analytic.operators.rows import soft_max
from cdmpp.arrays import FloatArray

Inputs = Mapping[str, FloatArray]

# Output tiles that a thread block computes; both orientations of a tile share one efficiency.
_TILES = (
    ((32, 32),),
    ((32, 64), (64, 32)),
    ((32, 128), (128, 32)),
    ((64, 64),),
    ((128, 64), (64, 128)),
    ((128, 128),),
    ((256, 128), (128, 256)),
)
# Parts into which the reduction may be split.
_SPLITS = (1, 4, 16)
_CANDIDATES = tuple(
    (size, rows, cols, split)
    for size, shapes in enumerate(_TILES)
    for rows, cols in shapes
    for split in _SPLITS
)
_SIZE = np.array([candidate[0] for candidate in _CANDIDATES])
_SPLIT = np.array([candidate[3] for candidate in _CANDIDATES], np.float64)
_BLOCKS_PER_CORE = 2.0
_WAVE_TILE = 128.0
_BYTES = 4.0
# Kernels longer than this run at the board's sustained clock.
_WARM_S = 2e-3
_LAUNCH = float(np.log(1.5e-5))
_DISPATCH = float(np.log(3e-5))


def parameters() -> tuple[Parameter, ...]:
    """Returns the parameters; the classes are `bmm` and `linear`."""
    last = len(_TILES) - 1
    return (
        *(Parameter(f"tile{i}", "class", -1.0 + i / last) for i in range(len(_TILES))),
        Parameter("quantised", "class", 0.0),
        Parameter("prologue", "class", 3.0, 0.5),
        Parameter("split_cost", "class", 0.3, 2.0),
        Parameter("choice", "class", 1.0),
        Parameter("overlap", "class", 1.0),
        Parameter("wave_traffic", "class", -1.0, 0.5),
        Parameter("compute", "device", -0.1),
        Parameter("memory", "device", -0.2),
        Parameter("launch", "class_device", _LAUNCH),
        Parameter("dispatch", "class_device", _DISPATCH),
        Parameter("sharpness", "all", 1.5),
        Parameter("heat", "class_device", 0.1, least=-0.01, is_coolest=True),
    )


def classes(operators: Operators) -> NDArray[np.intp]:
    """Returns int [N]: 0 = bmm, 1 = linear."""
    return np.asarray(operators.kind == "linear", np.intp)


def inputs(operators: Operators, hardware: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Returns the inputs of `log_time`: `waves` and `log_step_s` float64 [N, candidates], else [N].

    Args:
        hardware: field of `Hardware` -> float64 [N].
    """
    core_rate = hardware["peak_flop_per_s"] / hardware["core_count"]
    waves = [
        operators.batch * np.ceil(operators.m / rows) * np.ceil(operators.n / cols) * split
        / hardware["core_count"]
        for _, rows, cols, split in _CANDIDATES
    ]  # fmt: skip
    steps = [np.log(2.0 * rows * cols / core_rate) for _, rows, cols, _ in _CANDIDATES]
    # A wave of thread blocks computes a square of the output; its side determines the reuse.
    side = _WAVE_TILE * np.sqrt(_BLOCKS_PER_CORE * hardware["core_count"])
    return {
        "waves": np.stack(waves, axis=1),
        "log_step_s": np.stack(steps, axis=1),
        "k": operators.k,
        "dram_s": operators.bytes / hardware["dram_bytes_per_s"],
        "wave_s": operators.flop * _BYTES / side / hardware["dram_bytes_per_s"],
    }


def log_time(inputs: Inputs, values: RowValues, *, is_queued: bool) -> FloatArray:
    """Returns float64 [N], log seconds.

    Compute is a soft minimum over the tiles: waves of blocks, partly rounded up, times the steps of
    the reduction plus a prologue. Compute overlaps with the traffic; a long kernel heats the board.

    Args:
        is_queued: whether the operator is behind others, which hide its dispatch.
    """
    share = (1.0 / (1.0 + np.exp(-values["quantised"])))[:, None]
    waves = inputs["waves"]
    filled = (1.0 - share) * np.maximum(waves, 1.0) + share * np.ceil(waves)
    steps = inputs["k"][:, None] / _SPLIT + np.exp(values["prologue"])[:, None]
    efficiency = np.stack([values[f"tile{size}"] for size in range(len(_TILES))], axis=1)[:, _SIZE]
    cost = values["split_cost"][:, None] * np.log(_SPLIT)
    each = np.log(filled * steps) + inputs["log_step_s"] - efficiency + cost
    power = 4.0 + np.exp(values["choice"])
    best = each.min(axis=1)
    spread = np.exp(-power[:, None] * (each - best[:, None])).sum(axis=1)
    compute = best - np.log(spread) / power - values["compute"]
    traffic = inputs["dram_s"] + np.exp(values["wave_traffic"]) * inputs["wave_s"]
    memory = np.log(traffic) - values["memory"]
    work = soft_max(compute, memory, values["overlap"])
    work = work + values["heat"] / (1.0 + np.exp(np.log(_WARM_S) - work))
    busy = np.logaddexp(work, values["launch"])
    return busy if is_queued else soft_max(busy, values["dispatch"], values["sharpness"])
