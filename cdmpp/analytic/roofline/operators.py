"""The roofline of a framework operator: compute, DRAM, L2 and launch, all at full efficiency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.operators.device import Hardware
from cdmpp.analytic.operators.operators import MATMUL_KINDS, Operators

_TILE = 128.0
_BYTES = 4.0


@dataclass(frozen=True)
class OperatorBound:
    """The roofline of one operator by level, in seconds; cached data take less.

    Attributes:
        compute_s: operations at the fp32 peak.
        dram_s: each tensor once, at the memory bandwidth.
        l2_s: bytes that the thread blocks fetch, at the L2 bandwidth: a product in tiles of
            128 x 128 reads its operands once per tile; other operators read each tensor once.
        launch_s: an empty launch.
    """

    compute_s: float
    dram_s: float
    l2_s: float
    launch_s: float

    @property
    def seconds(self) -> float:
        """Launch plus the largest of the others."""
        return self.launch_s + max(self.compute_s, self.dram_s, self.l2_s)

    def sentence(self) -> str:
        """Returns e.g. `87 % of the time is DRAM traffic`."""
        parts = {
            "arithmetic": self.compute_s, "DRAM traffic": self.dram_s, "L2 traffic": self.l2_s,
        }  # fmt: skip
        name = max(parts, key=lambda part: parts[part])
        share = parts[name] / self.seconds
        if share < 0.5:
            return f"{100 * (1 - share):.0f} % of the time is the launch"
        return f"{100 * share:.0f} % of the time is {name}"


def operator_bound(
    operators: Operators, index: int, hardware: Hardware, *, launch_s: float = 0.0
) -> OperatorBound:
    """Returns the roofline of one operator.

    Args:
        index: row in `operators`.
        launch_s: seconds of an empty launch.
    """
    one = operators[np.array([index])]
    moved = float(one.bytes[0])
    fetched = moved
    if str(one.kind[0]) in MATMUL_KINDS:
        tiles = one.batch[0] * np.ceil(one.m[0] / _TILE) * np.ceil(one.n[0] / _TILE)
        panels = min(one.m[0], _TILE) + min(one.n[0], _TILE)
        written = one.batch[0] * one.m[0] * one.n[0]
        fetched = float((tiles * panels * one.k[0] + written) * _BYTES)
    return OperatorBound(
        compute_s=float(one.flop[0]) / hardware.peak_flop_per_s,
        dram_s=moved / hardware.dram_bytes_per_s,
        l2_s=fetched / hardware.l2_bytes_per_s,
        launch_s=launch_s,
    )
