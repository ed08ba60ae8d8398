"""Closed form of memory-bound operators: element-wise, softmax, layer norm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.operators.fit import Parameter, RowValues
from cdmpp.analytic.operators.operators import Operators
from cdmpp.arrays import FloatArray

Inputs = Mapping[str, FloatArray]

#: Longest row that the softmax kernel keeps in the registers of a warp.
WARP_SOFTMAX_COLS = 1024
# Elements per step of a block of the layer norm kernel: 128 threads, 4 each.
_LN_STEP = 512.0
# Rows in flight per multiprocessor.
_ROWS_IN_FLIGHT = 8.0
_BYTES = 4.0
_LAUNCH = float(np.log(1.5e-5))
_DISPATCH = float(np.log(2.7e-5))
# Traits of the shape that change the efficiency, by family.
_TRAITS = {
    "elementwise": (),
    "softmax": ("warp_fill", "warp_line", "block_vector", "block_line", "second_read"),
    "ln": ("fill", "line", "sector", "second_read", "short_row"),
}


def parameters(family: str) -> tuple[Parameter, ...]:
    """Returns the parameters of `elementwise`, `softmax` or `ln`."""
    return (
        Parameter("sharpness", "all", 1.5),
        Parameter("l2_share", "all", 0.0),
        Parameter("launch", "device", _LAUNCH, 0.5),
        Parameter("dispatch", "device", _DISPATCH, 0.5),
        Parameter("memory", "class_device", -0.2, 0.5),
        *(Parameter(name, "all", 0.1) for name in _TRAITS[family]),
    )


def classes(operators: Operators, family: str) -> NDArray[np.intp]:
    """Returns int [N]: 1 for a softmax with rows too long for a warp's registers, else 0."""
    if family != "softmax":
        return np.zeros(len(operators), np.intp)
    return np.asarray(operators.cols > WARP_SOFTMAX_COLS, np.intp)


def inputs(
    operators: Operators, hardware: Mapping[str, FloatArray], family: str
) -> dict[str, FloatArray]:
    """Returns the inputs of `log_time`, float64 [N] each.

    Args:
        hardware: field of `Hardware` -> float64 [N].
    """
    cols = operators.cols
    result = {
        "bytes": operators.bytes,
        "l2_bytes": hardware["l2_bytes"],
        "dram_s": operators.bytes / hardware["dram_bytes_per_s"],
        "l2_s": operators.bytes / hardware["l2_bytes_per_s"],
    }
    # If the rows in flight do not fit into the L2, a second pass reads them from DRAM again.
    in_flight = np.log2(
        hardware["core_count"] * _ROWS_IN_FLIGHT * cols * _BYTES / hardware["l2_bytes"]
    )
    second_read = -1.0 / (1.0 + np.exp(-2.0 * (in_flight + 1.0)))
    if family == "softmax":
        is_warp = np.asarray(cols <= WARP_SOFTMAX_COLS, np.float64)
        is_block = 1.0 - is_warp
        result |= {
            "warp_fill": is_warp * np.log(cols / np.exp2(np.ceil(np.log2(cols)))),
            "warp_line": is_warp * _flag(cols, 32),
            "block_vector": is_block * _flag(cols, 4),
            "block_line": is_block * _flag(cols, 32),
            "second_read": is_block * second_read,
        }
    elif family == "ln":
        result |= {
            "fill": np.log(cols / (_LN_STEP * np.ceil(cols / _LN_STEP))),
            "line": _flag(cols, 32),
            "sector": _flag(cols, 8),
            "second_read": second_read,
            "short_row": -np.log2(cols / 1024.0),
        }
    return result


def log_time(inputs: Inputs, values: RowValues, family: str, *, is_queued: bool) -> FloatArray:
    """Returns float64 [N], log seconds: launch plus traffic, at least the time of dispatch.

    Traffic that fits into the L2 moves at the L2 bandwidth. The memory efficiency is the device's
    own efficiency times a factor of the shape.

    Args:
        is_queued: whether the operator is behind others, which hide its dispatch.
    """
    ratio = inputs["bytes"] / (inputs["l2_bytes"] * np.exp(values["l2_share"]))
    hit = 1.0 / (1.0 + ratio**4)
    efficiency = values["memory"] + sum(values[name] * inputs[name] for name in _TRAITS[family])
    traffic = ((1.0 - hit) * inputs["dram_s"] + hit * inputs["l2_s"]) * np.exp(-efficiency)
    busy = np.log(np.exp(values["launch"]) + traffic)
    return busy if is_queued else soft_max(busy, values["dispatch"], values["sharpness"])


def soft_max(left: FloatArray, right: FloatArray, sharpness: FloatArray) -> FloatArray:
    """Returns the log of the p-norm of exp(left) and exp(right), p = 1 + exp(sharpness)."""
    power = 1.0 + np.exp(sharpness)
    return np.asarray(np.logaddexp(power * left, power * right) / power, np.float64)


def _flag(cols: FloatArray, multiple: int) -> FloatArray:
    return np.asarray(cols % multiple == 0, np.float64)
