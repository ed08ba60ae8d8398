"""What kernels must do on a GPU: floors by what sets them, terms of their time, other inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.rows import Rows
from cdmpp.arrays import BoolArray, FloatArray

#: Columns of calls: numbers int64 or float64 [N], words text [N].
Columns = Mapping[str, NDArray[np.generic]]
#: Field of `Chip` -> float64 [N].
ChipRows = Mapping[str, FloatArray]

#: Bytes of a call, as a share of the L2, up to which a repeated call finds all of them in it, and
#: from which on it finds none. On an L40S times jump by a factor of 2.5 between the two.
_KEPT, _LOST = 0.9, 1.1
#: Where a term is nothing, its logarithm is that of a time no kernel is made of, seconds.
_NOTHING = 1e-12


@dataclass(frozen=True)
class KernelWork(Rows):
    """The work of N calls.

    Attributes:
        limits: what sets a floor (`compute`, `memory`, `cache`, `link`, `launch`) -> float64 [N],
            seconds that no kernel can beat.
        terms: float64 [N] each, seconds whose weighted sum, with a launch, is the nominal time.
        prior: name of a term -> weight that it has where the data do not tell.
        launch_s: the same of a launch, seconds.
        fade: how fast what was learned fades beyond the largest call of the fit: the power of the
            ratio of sizes; 0 = not at all.
        times: float64 [N] each, more seconds that the learned part sees, relative to the nominal
            time as the terms are.
        inputs: float64 [N] each, what else it sees; logarithms or flags.
        size: float64 [N], how large the call is on any GPU: operations, or bytes where they count.
    """

    limits: Mapping[str, FloatArray]
    terms: Mapping[str, FloatArray]
    prior: Mapping[str, float]
    launch_s: float
    fade: float
    times: Mapping[str, FloatArray]
    inputs: Mapping[str, FloatArray]
    size: FloatArray

    @property
    def floor_s(self) -> FloatArray:
        """float64 [N], the largest limit."""
        return np.asarray(np.maximum.reduce(list(self.limits.values())), np.float64)

    @property
    def bound(self) -> list[str]:
        """What sets the floor of each call."""
        names = list(self.limits)
        return [names[i] for i in np.argmax(np.stack(list(self.limits.values())), axis=0)]


def number(columns: Columns, name: str) -> FloatArray:
    """Returns a column of numbers, float64 [N]."""
    return np.asarray(columns[name], np.float64)


def is_word(columns: Columns, name: str, *words: str) -> BoolArray:
    """Returns bool [N], whether a column of words has one of these."""
    return np.isin(columns[name], words)


def logs(**terms: FloatArray) -> dict[str, FloatArray]:
    """Returns the natural logarithm of each term."""
    return {name: np.log(np.maximum(term, _NOTHING)) for name, term in terms.items()}


def flags(column: NDArray[np.generic], words: tuple[str, ...]) -> dict[str, FloatArray]:
    """Returns word -> float64 [N], 1 where the column has it."""
    return {word: np.asarray(column == word, np.float64) for word in words}


def memory_limits(moved: FloatArray, chip: ChipRows) -> dict[str, FloatArray]:
    """Returns the floors of bytes that are read or written once: what no L2 can have kept comes
    from memory, and all of it passes between L2 and cores.
    """
    return {
        "memory": np.maximum(moved - chip["l2_bytes"], 0.0) / chip["dram_bytes_per_s"],
        "cache": moved / chip["l2_bytes_per_s"],
    }


def repeated_memory_s(moved: FloatArray, chip: ChipRows) -> FloatArray:
    """Returns float64 [N], seconds of bytes from memory where the same call runs again and again:
    what fits into the L2 stays in it, and what does not pushes itself out.
    """
    lost = np.clip((moved / chip["l2_bytes"] - _KEPT) / (_LOST - _KEPT), 0.0, 1.0)
    return np.asarray(lost * moved / chip["dram_bytes_per_s"], np.float64)
