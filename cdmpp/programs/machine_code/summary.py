"""Summary of a compiled CPU program, from its machine-code columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.programs.machine_code.columns import BOUNDS, MACHINE_CODE_NAMES

_WORDS = {
    "arithmetic": "arithmetic", "load": "loads", "store": "stores",
    "shuffle": "shuffles, divisions and calls", "issue": "instruction issue",
    "chain": "dependent sums",
}  # fmt: skip
_WIDTHS = {"512": 512, "256": 256, "128": 128, "_scalar": 32}


@dataclass(frozen=True)
class CodeSummary:
    """Summary of a compiled program.

    Attributes:
        vector_bits: width of most of its floating-point arithmetic; None without any.
        flop: floating-point operations per run.
        cycles: estimated cycles per run on a generic core, without cache misses.
        bounds: kind of bound -> its share of the sum over all bounds.
        hottest_share: share of the cycles in the hottest block.
        hottest_flop_per_cycle: floating-point operations per cycle of the hottest block.
        hottest_depth: number of loops around the hottest block.
        hottest_trips: iterations of the innermost of these loops.
        unknown_loops: share of loops with an unknown trip count.
    """

    vector_bits: int | None
    flop: float
    cycles: float
    bounds: dict[str, float]
    hottest_share: float
    hottest_flop_per_cycle: float
    hottest_depth: int
    hottest_trips: float
    unknown_loops: float

    @property
    def text(self) -> str:
        """The summary as one line."""
        wide = "no floating-point arithmetic" if self.vector_bits is None else (
            "scalar arithmetic" if self.vector_bits == 32 else f"{self.vector_bits} bit vectors"
        )  # fmt: skip
        first, second = sorted(self.bounds, key=lambda name: -self.bounds[name])[:2]
        return (
            f"{wide}; {100 * self.hottest_share:.0f} % of its cycles are in a block inside "
            f"{self.hottest_depth} loops, at {self.hottest_flop_per_cycle:.3g} operations a "
            f"cycle; its main limits are {_WORDS[first]} and {_WORDS[second]}"
        )


def summary_of(columns: NDArray[np.float32]) -> CodeSummary:
    """Returns the summary of a program's machine-code columns.

    Args:
        columns: float32 [len(MACHINE_CODE_NAMES)].
    """
    values = dict(zip(MACHINE_CODE_NAMES, columns.tolist(), strict=True))

    def amount(name: str) -> float:
        return float(np.exp2(values[name]) - 1.0)

    by_width = {
        bits: amount(f"total.fma{width}") + amount(f"total.float{width}")
        for width, bits in _WIDTHS.items()
    }
    widest = max(by_width, key=lambda bits: by_width[bits])
    bounds = {name: amount(f"bound.{name}") for name in BOUNDS}
    whole = sum(bounds.values()) or 1.0
    return CodeSummary(
        vector_bits=widest if by_width[widest] > 0 else None,
        flop=amount("flops"),
        cycles=amount("cycles"),
        bounds={name: value / whole for name, value in bounds.items()},
        hottest_share=values["hottest.share"],
        hottest_flop_per_cycle=values["hottest.flops_each"],
        hottest_depth=round(values["hottest.depth"]),
        hottest_trips=amount("hottest.trips"),
        unknown_loops=values["unknown_loops"],
    )
