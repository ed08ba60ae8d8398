"""Why a program takes long: which store needs most of its roofline time, and of what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cdmpp.analytic.roofline.programs import device_rates, leaf_work
from cdmpp.devices.spec import DeviceSpec
from cdmpp.features.compact_ast import CompactAst
from cdmpp.features.program.loop_tree import stores_with_path
from tvm_helper.tir.loop_tree import loop_tree_from_tir


@dataclass(frozen=True)
class Explanation:
    """The store that needs most of a program's roofline time.

    Attributes:
        buffer: what it writes.
        leaf: its place among the stores, from 1.
        leaves: number of stores.
        share: its part of the sum over stores, in [0, 1].
        bound: what it needs more of.
        roofline_s: sum over stores of max(operations / peak, distinct bytes / bandwidth).
        assumed: which rates of the device are unknown, so that nominal ones were taken.
    """

    buffer: str
    leaf: int
    leaves: int
    share: float
    bound: Literal["compute", "memory"]
    roofline_s: float
    assumed: tuple[str, ...]

    def text(self, latency_s: float) -> str:
        """Returns one line.

        Args:
            latency_s: predicted seconds of the program.
        """
        assumed = f" ({' and '.join(self.assumed)} unknown, nominal taken)" if self.assumed else ""
        times = latency_s / self.roofline_s if self.roofline_s > 0 else float("inf")
        return (
            f"{100 * self.share:.0f} % of its roofline time is store {self.leaf} of {self.leaves}, "
            f"to {self.buffer}, bound by {self.bound}; predicted {times:.2g} times the roofline"
            f"{assumed}"
        )


def explain(module: Any, ast: CompactAst, device: DeviceSpec) -> Explanation | None:
    """Returns what a program's roofline time goes into; None where no store does any work.

    Args:
        module: the program, for the names of its buffers.
        ast: its compact AST.
    """
    work = leaf_work(ast.leaf_features)
    flop_per_s, bytes_per_s = device_rates(device)
    compute_s, memory_s = work.flop / flop_per_s, work.bytes / bytes_per_s
    leaf_s = np.maximum(compute_s, memory_s)
    total = float(leaf_s.sum())
    if total <= 0:
        return None
    leaf = int(np.argmax(leaf_s))
    names = [store.buffer.name for store, _ in stores_with_path(loop_tree_from_tir(module))]
    rates = {
        "peak": device.peak_fp32_flop_per_s, "bandwidth": device.mem_bandwidth_bytes_per_s
    }  # fmt: skip
    return Explanation(
        buffer=names[leaf] if leaf < len(names) else f"buffer {leaf + 1}",
        leaf=leaf + 1,
        leaves=len(leaf_s),
        share=float(leaf_s[leaf]) / total,
        bound="compute" if compute_s[leaf] >= memory_s[leaf] else "memory",
        roofline_s=total,
        assumed=tuple(name for name, value in rates.items() if not value),
    )
