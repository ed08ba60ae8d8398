"""Explanation of a program's time: the share of each store and its bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.roofline.floor import FLOOR_WORDS, LEAST_CALL_S, program_floor
from cdmpp.analytic.roofline.levels import in_memory, program_bound
from cdmpp.analytic.roofline.programs import LeafWork, device_rates, leaf_work
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.loops.loop_tree import Loop, LoopTree, Node, stores_with_path
from cdmpp.programs.work import ProgramWork
from cdmpp.text import seconds_text

#: Bottlenecks of a store.
Limit = Literal["operations", "threads", "memory", "l2"]
LIMITS: dict[Limit, str] = {
    "operations": "its operations at the peak",
    "threads": "its operations on the threads in use",
    "memory": "its bytes at the memory bandwidth",
    "l2": "its bytes at the L2 bandwidth",
}


@dataclass(frozen=True)
class LoopAround:
    """A loop around a store.

    Attributes:
        extent: number of iterations; None if not constant.
    """

    var: str
    extent: int | None
    kind: str


@dataclass(frozen=True)
class LeafExplanation:
    """A store of a program.

    Attributes:
        leaf: position among the stores, from 1.
        buffer: name of the written buffer.
        share: share of the predicted time, in [0, 1].
        roofline_s: max(operations / peak, distinct bytes in memory / bandwidth).
        limits_s: estimated seconds by each limit of the device with known rates; caches and fusion
            can be faster.
        loops: loops around the store, outermost first.
        data_bytes: distinct bytes read and written in memory, without registers and shared memory.
        fits: the smallest memory of known size that holds these bytes.
    """

    leaf: int
    buffer: str
    share: float
    roofline_s: float
    limits_s: dict[Limit, float]
    loops: tuple[LoopAround, ...]
    data_bytes: float
    fits: Literal["L1", "L2", "L3", "memory"]

    @property
    def bound(self) -> Limit:
        """The limit with the longest time."""
        return max(self.limits_s, key=lambda name: self.limits_s[name])

    @property
    def ahead(self) -> float | None:
        """Ratio of the longest to the second-longest limit; None without a second one."""
        first, *others = sorted(self.limits_s.values(), reverse=True)
        return first / others[0] if others and others[0] > 0 else None


@dataclass(frozen=True)
class Explanation:
    """Breakdown of a program's time.

    Attributes:
        leaves: stores in program order, at least one.
        shares_by: source of the shares: the model, or the roofline if the model does not sum over
            stores.
        assumed: unknown rates of the device, replaced by nominal ones.
        least_s: lower bound of the program on the device, in seconds.
        least_why: the limit that sets the lower bound.
    """

    leaves: tuple[LeafExplanation, ...]
    shares_by: Literal["model", "roofline"]
    assumed: tuple[str, ...]
    least_s: float
    least_why: str

    @property
    def roofline_s(self) -> float:
        """Sum over stores of max(operations / peak, distinct bytes / bandwidth)."""
        return sum(one.roofline_s for one in self.leaves)

    @property
    def dearest(self) -> LeafExplanation:
        """The store with the largest share."""
        return max(self.leaves, key=lambda one: one.share)

    def to_json(self, latency_s: float) -> dict[str, Any]:
        """Returns the explanation in a row of `predict --json`.

        Args:
            latency_s: predicted seconds of the program.
        """
        return {
            "buffer": self.dearest.buffer,
            "leaf": self.dearest.leaf,
            "leaves": len(self.leaves),
            "share": self.dearest.share,
            "shares_by": self.shares_by,
            "bound": self.dearest.bound,
            "roofline_s": self.roofline_s,
            "least_s": self.least_s,
            "least_why": self.least_why,
            "unknown_rates": list(self.assumed),
            "text": self.text(latency_s),
        }

    def text(self, latency_s: float) -> str:
        """Returns the explanation as one line of text.

        Args:
            latency_s: predicted seconds of the program.
        """
        one = self.dearest
        assumed = (
            f" ({' and '.join(self.assumed)} unknown, nominal values used)" if self.assumed else ""
        )
        whose = "its time" if self.shares_by == "model" else "its roofline time"
        said = (
            f"{100 * one.share:.0f} % of {whose} is spent in store {one.leaf} of "
            f"{len(self.leaves)}, to {one.buffer}, bound by {LIMITS[one.bound]}{assumed}"
        )
        is_launch = self.least_why == FLOOR_WORDS["launch"]
        is_unknown = is_launch and (self.assumed or self.least_s <= LEAST_CALL_S)
        if len(self.assumed) > 1 or is_unknown:  # the lower bound is unknown or only a call
            return said
        ratio = latency_s / self.least_s
        times = f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:,.0f}"
        return (
            f"{said}; predicted {times} times the lower bound, "
            f"{seconds_text(self.least_s)} ({self.least_why})"
        )


def explain(
    tree: LoopTree,
    ast: CompactAst,
    device: DeviceSpec,
    shares: NDArray[np.float64] | None,
    work: ProgramWork | None = None,
) -> Explanation | None:
    """Returns the breakdown of a program's time; None if no store does any work.

    Args:
        tree: the program, for the names of its buffers and loops.
        ast: its compact AST.
        device: the device as described by the registry.
        shares: float64 [leaves], the model's leaf shares; None if it has none.
        work: minimum work of the program; None if not counted.
    """
    leaf_features = in_memory(ast.leaf_features, ast.leaf_extra)
    leaf = leaf_work(leaf_features)
    flop_per_s, bytes_per_s = device_rates(device)
    roofline_s = np.maximum(leaf.flop / flop_per_s, leaf.bytes / bytes_per_s)
    if roofline_s.sum() <= 0:
        return None
    places = list(stores_with_path(tree))
    limits = _limits(leaf_features, leaf, device)
    floor = program_floor(device, ast.leaf_features, ast.leaf_extra, work)
    parts = roofline_s / roofline_s.sum() if shares is None else shares
    leaves = []
    for place, share in enumerate(parts.tolist()):
        store, path = places[place] if len(places) == len(parts) else (None, ())
        leaves.append(
            LeafExplanation(
                leaf=place + 1,
                buffer=f"buffer {place + 1}" if store is None else store.buffer.name,
                share=share,
                roofline_s=float(roofline_s[place]),
                limits_s=limits[place],
                loops=_loops(path),
                data_bytes=float(leaf.bytes[place]),
                fits=_fits(float(leaf.bytes[place]), device),
            )
        )
    rates = {
        "peak": device.peak_fp32_flop_per_s, "bandwidth": device.mem_bandwidth_bytes_per_s
    }  # fmt: skip
    return Explanation(
        leaves=tuple(leaves),
        shares_by="roofline" if shares is None else "model",
        assumed=tuple(name for name, value in rates.items() if not value),
        least_s=float(floor.seconds[0]),
        least_why=floor.why(0),
    )


def _limits(
    leaf_features: NDArray[np.float32], work: LeafWork, device: DeviceSpec
) -> list[dict[Limit, float]]:
    """Returns the seconds of every leaf by limit.

    If the device's last cache is known, data that no cache holds counts at each fetch; otherwise
    distinct bytes count once.
    """
    has_cache = bool(device.l2_bytes or device.l3_bytes)
    _, bytes_per_s = device_rates(device)
    workers = _workers(device)
    found = []
    for place, bound in enumerate(program_bound(leaf_features, device).leaves):
        distinct_s = float(work.bytes[place]) / bytes_per_s
        limits: dict[Limit, float] = {
            "operations": bound.compute_s,
            "memory": max(bound.dram_s, distinct_s) if has_cache else distinct_s,
        }
        busy = float(work.parallelism[place])
        if workers is not None and busy < workers:
            limits["threads"] = bound.compute_s * workers / busy
        if bound.l2_s is not None:
            limits["l2"] = bound.l2_s
        found.append(limits)
    return found


def _workers(device: DeviceSpec) -> int | None:
    """Returns the minimum number of parallel iterations for the peak; None if unknown."""
    if device.kind == "cpu":
        return device.threads or device.core_count
    if not device.core_count or not device.warp_size:
        return None
    return device.core_count * device.warp_size


def _fits(data_bytes: float, device: DeviceSpec) -> Literal["L1", "L2", "L3", "memory"]:
    if device.l1_bytes and data_bytes <= device.l1_bytes:
        return "L1"
    if device.l2_bytes and data_bytes <= device.l2_bytes:
        return "L2"
    return "L3" if device.l3_bytes and data_bytes <= device.l3_bytes else "memory"


def _loops(path: Sequence[Node]) -> tuple[LoopAround, ...]:
    return tuple(
        LoopAround(one.var, one.extent if isinstance(one.extent, int) else None, one.kind)
        for one in path
        if isinstance(one, Loop)
    )
