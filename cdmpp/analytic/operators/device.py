"""Hardware features of a GPU for operator models, and the similarity of two GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from cdmpp.analytic.device_numbers import numbers_of
from cdmpp.arrays import FloatArray, TextArray
from cdmpp.devices.spec import DeviceSpec

#: L2 bytes per core and clock, for a GPU without L2 bandwidth in the registry: close to published
#: measurements of Volta and Turing (2,155 GB/s on a V100, 1,270 GB/s on a T4: 19.5 and 20).
#: Source: Jia et al., "Dissecting the NVidia Turing T4 GPU via Microbenchmarking", 2019, table 3.1.
L2_BYTES_PER_CLOCK = 20.0
_NEEDED = (
    "core_count", "clock_hz", "peak_fp32_flop_per_s", "mem_bandwidth_bytes_per_s", "l2_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Hardware:
    """Hardware features of a GPU, SI units.

    Attributes:
        core_count: number of streaming multiprocessors.
        clock_hz: clock of the multiprocessors.
        peak_flop_per_s: fp32 without tensor cores.
        dram_bytes_per_s: memory bandwidth.
        l2_bytes: size of the L2.
        l2_bytes_per_s: bandwidth of the L2; nominal if unknown.
    """

    core_count: float
    clock_hz: float
    peak_flop_per_s: float
    dram_bytes_per_s: float
    l2_bytes: float
    l2_bytes_per_s: float


def hardware(device: DeviceSpec) -> Hardware:
    """Returns the hardware features of a GPU.

    Raises:
        DeviceError: not a GPU, or the registry lacks one of the values.
    """
    value = numbers_of(
        device, {name: getattr(device, name) for name in _NEEDED}, what="operator model"
    )
    nominal = L2_BYTES_PER_CLOCK * value["core_count"] * value["clock_hz"]
    return Hardware(
        core_count=value["core_count"],
        clock_hz=value["clock_hz"],
        peak_flop_per_s=value["peak_fp32_flop_per_s"],
        dram_bytes_per_s=value["mem_bandwidth_bytes_per_s"],
        l2_bytes=value["l2_bytes"],
        l2_bytes_per_s=device.l2_bandwidth_bytes_per_s or nominal,
    )


def hardware_rows(labels: TextArray, known: Mapping[str, Hardware]) -> dict[str, FloatArray]:
    """Returns field of `Hardware` -> float64 [N] for the labels of N rows."""
    names, place = np.unique(labels, return_inverse=True)
    table = [asdict(known[str(name)]) for name in names]
    return {field: np.array([row[field] for row in table])[place] for field in table[0]}


def similarity_weights(
    device: Hardware, others: Sequence[Hardware], *, octaves: float | None
) -> FloatArray:
    """Returns float64 [D], weights of the known devices for `device`; they sum to 1.

    The distance is the sum of the absolute differences in octaves (log2) of peak, bandwidth, cores,
    L2 size and peak over bandwidth. The weight falls by e every `octaves`; None = equal weights.
    Devices at distance 0 (other labels of the same chip) get all the weight.
    """
    place = _coordinates(device)
    distance = np.array([float(np.abs(place - _coordinates(other)).sum()) for other in others])
    if distance.min() == 0.0:
        return np.asarray((distance == 0.0) / np.sum(distance == 0.0), np.float64)
    if octaves is None:
        return np.full(len(others), 1.0 / len(others))
    weight = np.exp(-(distance - distance.min()) / octaves)
    return np.asarray(weight / weight.sum(), np.float64)


def _coordinates(device: Hardware) -> FloatArray:
    return np.log2(
        [
            device.peak_flop_per_s,
            device.dram_bytes_per_s,
            device.core_count,
            device.l2_bytes,
            device.peak_flop_per_s / device.dram_bytes_per_s,
        ]
    )
