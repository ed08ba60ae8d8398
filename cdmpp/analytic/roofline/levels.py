"""The roofline of a program leaf by leaf: compute, each memory level and the launch.

It estimates what bounds an untuned program; leaves that share data or overlap take less time.
`cdmpp.analytic.roofline.floor` has the true lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.operators.device import L2_BYTES_PER_CLOCK
from cdmpp.analytic.roofline.programs import _BUFFER_SLOTS, device_rates, leaf_work
from cdmpp.arrays import FloatArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.compact_ast import has_added_columns
from cdmpp.programs.schema import LEAF_FEATURE_NAMES

#: What can bound a leaf; `launch` is per program.
Level = Literal["compute", "dram", "l2", "launch"]

_LINE_BYTES = 64.0
_TRAFFIC = ("bytes", "unique_bytes", "lines", "unique_lines")


@dataclass(frozen=True)
class LeafBound:
    """The roofline of one leaf by level, in seconds.

    Attributes:
        compute_s: operations at the arithmetic peak.
        dram_s: traffic that misses the last cache, at the memory bandwidth.
        l2_s: traffic that misses the first cache, at the L2 bandwidth; None if unknown.
        level: level with the largest time.
    """

    compute_s: float
    dram_s: float
    l2_s: float | None
    level: Level

    @property
    def seconds(self) -> float:
        """The largest of the three."""
        return max(self.compute_s, self.dram_s, self.l2_s or 0.0)


@dataclass(frozen=True)
class ProgramBound:
    """The roofline of a program: its launch and its leaves in sequence.

    Attributes:
        device: label.
        launch_s: seconds of an empty launch; 0 for a program that is called on the host.
        leaves: in program order.
    """

    device: str
    launch_s: float
    leaves: tuple[LeafBound, ...]

    @property
    def seconds(self) -> float:
        """Launch plus leaves."""
        return self.launch_s + sum(leaf.seconds for leaf in self.leaves)

    def shares(self) -> list[tuple[float, Level, int | None]]:
        """Returns (share of the time, level, leaf number or None for the launch), largest first."""
        total = self.seconds or 1.0
        parts: list[tuple[float, Level, int | None]] = [
            (leaf.seconds / total, leaf.level, number) for number, leaf in enumerate(self.leaves)
        ]
        parts.append((self.launch_s / total, "launch", None))
        return sorted(parts, key=lambda part: -part[0])

    def sentence(self) -> str:
        """Returns e.g. `87 % of the time is DRAM traffic of store 3 of 5`."""
        share, level, number = self.shares()[0]
        what = {
            "compute": "arithmetic of", "dram": "DRAM traffic of", "l2": "L2 traffic of",
            "launch": "the launch",
        }[level]  # fmt: skip
        where = "" if number is None else f" store {number + 1} of {len(self.leaves)}"
        return f"{100 * share:.0f} % of the time is {what}{where}"


def program_bound(
    leaf_features: NDArray[np.float32], device: DeviceSpec, *, launch_s: float = 0.0
) -> ProgramBound:
    """Returns the roofline of one program on a device.

    An access whose reuse distance exceeds a cache fetches its lines every time; any other access
    fetches the distinct lines once. An unknown cache has size 0.

    Args:
        leaf_features: float32 [leaves, 164].
        launch_s: seconds of an empty launch.
    """
    flop_per_s, bytes_per_s = device_rates(device)
    work = leaf_work(leaf_features)
    levels = [work.flop / flop_per_s, _traffic(leaf_features, _last_cache(device)) / bytes_per_s]
    l2_bytes_per_s = _l2_rate(device)
    if l2_bytes_per_s is not None:
        levels.append(_traffic(leaf_features, _first_cache(device)) / l2_bytes_per_s)
    names: tuple[Level, ...] = ("compute", "dram", "l2")
    leaves = []
    for values in np.stack(levels, axis=1):
        leaves.append(
            LeafBound(
                compute_s=float(values[0]),
                dram_s=float(values[1]),
                l2_s=float(values[2]) if len(values) > 2 else None,
                level=names[int(np.argmax(values))],
            )
        )
    return ProgramBound(device.name, launch_s, tuple(leaves))


def in_memory(
    leaf_features: NDArray[np.float32], leaf_extra: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Returns leaf features without the traffic of registers and shared memory, which never reaches
    a cache.

    Args:
        leaf_extra: float32 [leaves, E]; E = 0 if unknown, which returns the features unchanged.
    """
    if not has_added_columns(leaf_extra):
        return leaf_features
    found = leaf_features.copy()
    for slot in range(_BUFFER_SLOTS):
        near = [LEAF_EXTRA_NAMES.index(f"scope.B{slot}.{name}") for name in ("shared", "local")]
        columns = [LEAF_FEATURE_NAMES.index(f"B{slot}.{name}") for name in _TRAFFIC]
        is_near = (leaf_extra[:, near] > 0).any(axis=1)
        found[np.ix_(np.flatnonzero(is_near), np.array(columns))] = 0.0
    return found


def _traffic(leaf_features: NDArray[np.float32], cache_bytes: float) -> FloatArray:
    """Returns float64 [leaves], bytes that a cache of this size does not serve."""

    def values(name: str) -> FloatArray:
        columns = [LEAF_FEATURE_NAMES.index(f"B{slot}.{name}") for slot in range(_BUFFER_SLOTS)]
        logs = np.asarray(leaf_features[:, columns], np.float64)
        return np.asarray(np.exp2(logs) - 1.0, np.float64)

    is_missed = values("reuse_dis_bytes") > cache_bytes
    # Scattered accesses overstate the distinct lines: one per element.
    distinct = np.minimum(values("unique_lines"), values("lines"))
    lines = np.where(is_missed, values("lines"), distinct)
    return np.asarray((lines * _LINE_BYTES).sum(axis=1), np.float64)


def _last_cache(device: DeviceSpec) -> float:
    """Returns the bytes of the last cache before memory; the L2 of a CPU is per core."""
    if device.kind == "cpu":
        return float(device.l3_bytes or device.l2_bytes or 0)
    return float(device.l2_bytes or 0)


def _first_cache(device: DeviceSpec) -> float:
    cores = (device.core_count or 1) if device.kind == "gpu" else (device.threads or 1)
    return float((device.l1_bytes or 0) * cores)


def _l2_rate(device: DeviceSpec) -> float | None:
    if device.l2_bandwidth_bytes_per_s is not None:
        return device.l2_bandwidth_bytes_per_s
    if device.kind != "gpu" or device.core_count is None or device.clock_hz is None:
        return None
    return L2_BYTES_PER_CLOCK * device.core_count * device.clock_hz
