"""Type aliases for numpy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
TextArray = NDArray[np.str_]


def items_of(offset: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Returns int64 [I] each: the places of the items of the chosen lists, in order, and the index
    in `rows` of each item's list.

    Args:
        offset: int64 [L + 1]; the items of list l are at offset[l]:offset[l + 1].
        rows: int64, lists.
    """
    first = offset[rows]
    lengths = offset[rows + 1] - first
    before = np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(rows), dtype=np.int64), lengths)
    return (first - before)[owner] + np.arange(len(owner), dtype=np.int64), owner
