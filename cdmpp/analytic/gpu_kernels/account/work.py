"""Work of kernels on a GPU: lower bounds by what sets them, terms of the time, other inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.rows import Rows
from cdmpp.arrays import BoolArray, FloatArray

#: Columns of calls: numbers as int64 or float64 [N], words as text [N].
Columns = Mapping[str, NDArray[np.generic]]
#: Field of `Chip` -> float64 [N].
ChipRows = Mapping[str, FloatArray]

#: Repeated calls find all of their bytes in the L2 up to the first share of its size, and none from
#: the second on. On an L40S times jump by a factor of 2.5 between the two.
_KEPT, _LOST = 0.9, 1.1
#: Minimum of a term under the logarithm, seconds.
_NOTHING = 1e-12


@dataclass(frozen=True)
class KernelWork(Rows):
    """The work of N calls.

    Attributes:
        limits: what sets the lower bound (`compute`, `memory`, `cache`, `link`, `launch`) ->
            float64 [N], minimum seconds.
        terms: float64 [N] each, seconds; the nominal time is their weighted sum plus a launch.
        prior: name of a term -> prior weight.
        launch_s: prior of a launch, seconds.
        fade: decay of the learned part beyond the largest call of the fit, as a power of the ratio
            of sizes; 0 = no decay.
        times: float64 [N] each, further seconds that the learned part reads, relative to the
            nominal time like the terms.
        inputs: float64 [N] each, other inputs of the learned part; logarithms or flags.
        size: float64 [N], device-independent size of a call: operations, or bytes if memory-bound.
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
        """What sets the lower bound of each call."""
        names = list(self.limits)
        return [names[i] for i in np.argmax(np.stack(list(self.limits.values())), axis=0)]


def number(columns: Columns, name: str) -> FloatArray:
    """Returns a column of numbers, float64 [N]."""
    return np.asarray(columns[name], np.float64)


def is_word(columns: Columns, name: str, *words: str) -> BoolArray:
    """Returns bool [N], whether a column of words has one of `words`."""
    return np.isin(columns[name], words)


def logs(**terms: FloatArray) -> dict[str, FloatArray]:
    """Returns the natural logarithm of each term."""
    return {name: np.log(np.maximum(term, _NOTHING)) for name, term in terms.items()}


def flags(column: NDArray[np.generic], words: tuple[str, ...]) -> dict[str, FloatArray]:
    """Returns word -> float64 [N], 1 where the column equals it."""
    return {word: np.asarray(column == word, np.float64) for word in words}


def memory_limits(moved: FloatArray, chip: ChipRows) -> dict[str, FloatArray]:
    """Returns the lower bounds for bytes that are read or written once: bytes beyond the size of
    the L2 come from memory, and all bytes pass between L2 and cores.
    """
    return {
        "memory": np.maximum(moved - chip["l2_bytes"], 0.0) / chip["dram_bytes_per_s"],
        "cache": moved / chip["l2_bytes_per_s"],
    }


def repeated_memory_s(moved: FloatArray, chip: ChipRows) -> FloatArray:
    """Returns float64 [N], seconds of memory traffic of a call that runs repeatedly: data that fit
    into the L2 stay there, larger data evict themselves.
    """
    lost = np.clip((moved / chip["l2_bytes"] - _KEPT) / (_LOST - _KEPT), 0.0, 1.0)
    return np.asarray(lost * moved / chip["dram_bytes_per_s"], np.float64)
