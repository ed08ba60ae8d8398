"""Kernels that move or combine elements: the larger of the times of their traffic and arithmetic.

Source: the formulas and constants of the public repository owensgroup/ml_perf_model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.embedding.devices import KernelDevice

#: Name of a copy between host and device.
HOST_COPY = "memcpy"
#: Kernels that only move data; `movement_s` reads their sizes.
MOVEMENTS = ("concat", HOST_COPY, "transpose", "tril")

_ELEMENT_BYTES = 4
#: Share of the DRAM bandwidth that a concatenation achieves.
_CONCAT_SHARE = 0.79


@dataclass(frozen=True)
class ElementWiseWork:
    """Work of an operator per element.

    Attributes:
        flop: operations.
        tensors: number of float32 tensors read and written.
    """

    flop: float
    tensors: float


def element_wise_operators() -> dict[str, ElementWiseWork]:
    """Returns operator name -> work."""
    table = {
        "relu": (1, 2), "relu-backward": (1, 2),
        "sigmoid": (4, 2), "sigmoid-backward": (2, 2),
        "bce-loss": (7, 3), "bce-loss-backward": (4, 3),
        "mse-loss": (3, 3), "mse-loss-backward": (1, 3),
        "add": (1, 3), "mul": (1, 3), "div": (1, 3), "loss-gradient": (1, 3),
        "sum": (1, 1),
        "gelu": (175, 2), "gelu-backward": (255, 2),
        "softmax": (174, 2), "softmax-backward": (2, 4),
        "tanh": (180, 2), "pow": (180, 2), "tanh-backward": (260, 2),
        "dropout-backward": (2, 3),
    }  # fmt: skip
    return {name: ElementWiseWork(*work) for name, work in table.items()}


def element_wise_s(elements: float, work: ElementWiseWork, device: KernelDevice) -> float:
    """Returns the seconds of an element-wise kernel."""
    return max(
        work.flop * elements / device.flop_per_s,
        work.tensors * _ELEMENT_BYTES * elements / device.dram_bytes_per_s,
    )


def concat_s(size_bytes: float, device: KernelDevice) -> float:
    """Returns the seconds of a concatenation with a result of `size_bytes`."""
    return 2.0 * size_bytes / (_CONCAT_SHARE * device.dram_bytes_per_s)


def host_copy_s(size_bytes: float, device: KernelDevice) -> float:
    """Returns the seconds of a copy between host and device."""
    return size_bytes / device.copy_bytes_per_s


def transpose_s(batch: float, m: float, n: float, device: KernelDevice) -> float:
    """Returns the seconds of a batch of transposes at full bandwidth: a lower bound."""
    return 2.0 * batch * m * n * _ELEMENT_BYTES / device.dram_bytes_per_s


def tril_s(batch: float, m: float, n: float, diagonal: int, device: KernelDevice) -> float:
    """Returns the seconds of gathering the lower triangles of a batch of M x N matrices.

    Args:
        diagonal: 0 = without the diagonal, 1 = with it.
    """
    rows = np.arange(int(m))
    kept = float(np.minimum(rows + diagonal, n).sum())
    moved = 2.0 * batch * kept * _ELEMENT_BYTES + 2 * 8 * kept  # int64 row and column indices
    return moved / device.dram_bytes_per_s


def movement_s(kernel: str, sizes: Mapping[str, float], device: KernelDevice) -> float:
    """Returns the seconds of one of `MOVEMENTS` or of an element-wise operator.

    Raises:
        KeyError: missing size or unknown kernel.
    """
    match kernel:
        case "concat":
            return concat_s(sizes["bytes"], device)
        case "memcpy":
            return host_copy_s(sizes["bytes"], device)
        case "transpose":
            return transpose_s(sizes["batch"], sizes["m"], sizes["n"], device)
        case "tril":
            place = int(sizes["diagonal"])
            return tril_s(sizes["batch"], sizes["m"], sizes["n"], place, device)
        case _:
            return element_wise_s(sizes["elements"], element_wise_operators()[kernel], device)
