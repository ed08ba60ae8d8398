"""Measured rates of GPUs for the embedding and data-movement models.

Source: the device tables of the public repository owensgroup/ml_perf_model. They have rates that
kernels achieve, while `cdmpp.devices` has those of data sheets.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.analytic.device_numbers import numbers_of
from cdmpp.analytic.embedding.memory_curve import MemoryCurve
from cdmpp.devices.spec import DeviceSpec

_MEBI = 1024 * 1024
#: Assumed rate of copies between host and device without a measurement: that of the a100-40 and the
#: v100, the fastest measured ones.
_HOST_BYTES_PER_S = 8.1e9


@dataclass(frozen=True)
class KernelDevice:
    """Achievable rates and cache of a GPU.

    Attributes:
        name: device label.
        core_count: number of streaming multiprocessors.
        l2_bytes: size of the L2.
        shared_mem_bytes: shared memory of one multiprocessor; None if unknown.
        dram_bytes_per_s, l2_bytes_per_s, flop_per_s: rates that large kernels achieve.
        host_bytes_per_s: rate between host and device; None if not measured.
        dram_curve: time over size of DRAM traffic; None = `dram_bytes_per_s` at every size.
        source: source of the values.
    """

    name: str
    core_count: int
    l2_bytes: int
    shared_mem_bytes: int | None
    dram_bytes_per_s: float
    l2_bytes_per_s: float
    flop_per_s: float
    host_bytes_per_s: float | None = None
    dram_curve: MemoryCurve | None = None
    source: str = ""

    @property
    def copy_bytes_per_s(self) -> float:
        """Bytes per second between host and device; assumed if not measured."""
        return self.host_bytes_per_s or _HOST_BYTES_PER_S

    @property
    def assumption(self) -> str:
        """The assumption about copies from the host, as a clause; "" if they were measured."""
        if self.host_bytes_per_s:
            return ""
        return (
            f"host link assumed: {_HOST_BYTES_PER_S / 1e9:g} GB/s, as measured on a100-40 and v100"
        )

    def dram_time_s(self, size_bytes: float) -> float:
        """Returns the seconds of DRAM traffic of this size."""
        if self.dram_curve is not None:
            return self.dram_curve.time_s(size_bytes)
        return size_bytes / self.dram_bytes_per_s


def measured_devices() -> dict[str, KernelDevice]:
    """Returns label -> GPU with measured rates.

    `v100-reference` has the constants of the first version, with an L2 of four times the real size;
    it exists only for golden numbers. Titan Xp and P100 have no size-dependent curve.
    """
    source = "measured, ml_perf_model (owensgroup)"
    devices = (
        KernelDevice("a100-40", 108, 40 * _MEBI, 160 * 1024, 1391.103e9, 2270.919e9, 15026.615e9,
                     8.1e9, MemoryCurve(14, 29, 1391.103e9, 6.450239e-6, 2.20955621, 20.35203082,
                                        0.62528837, 0.93242722), source),
        KernelDevice("v100", 80, 6 * _MEBI, 64 * 1024, 816.953e9, 2847.457e9, 15441.524e9,
                     8.1e9, MemoryCurve(16, 30, 816.953e9, 4.83328223e-6, 1.9472268, 19.81699009,
                                        0.55556443, 0.95523816), source),
        KernelDevice("gv100", 80, 6 * _MEBI, 64 * 1024, 601.045e9, 2466.657e9, 13035.91e9,
                     5.0e9, MemoryCurve(15, 28, 601.045e9, 6.963206e-6, 2.56635526, 18.54562595,
                                        0.4196576, 0.27275451), source),
        KernelDevice("titan-xp", 30, 3 * _MEBI, 48 * 1024, 438.699e9, 1406.454e9, 10768.622e9,
                     3.43e9, None, source),
        KernelDevice("p100", 56, 4 * _MEBI, 64 * 1024, 543.406e9, 1591.259e9, 9343.711e9,
                     7.62e9, None, source),
        KernelDevice("v100-reference", 80, 4 * 6 * _MEBI, None, 809e9, 2888e9, 12200e9,
                     source="first version of ml_perf_model; L2 four times the real size"),
    )  # fmt: skip
    return {device.name: device for device in devices}


def kernel_device(name: str) -> KernelDevice:
    """Returns the GPU of a label, with measured rates or else those of its data sheet.

    Data sheets have no L2 bandwidth: if the registry lacks it, three times the DRAM bandwidth is
    assumed, as on the measured V100, and named in `source`.

    Raises:
        DeviceError: unknown name, not a GPU, or a value is missing.
    """
    from cdmpp.devices.registry import get_device

    return measured_devices().get(name) or rates_of(get_device(name))


def rates_of(spec: DeviceSpec) -> KernelDevice:
    """Returns the measured rates of a device, or else those of its data sheet (see `from_spec`)."""
    return measured_devices().get(spec.name) or from_spec(spec)


def from_spec(spec: DeviceSpec) -> KernelDevice:
    """Returns the GPU of a DeviceSpec, at the rates of its data sheet.

    Raises:
        DeviceError: not a GPU, or a value is missing.
    """
    needed = {
        "core_count": spec.core_count,
        "l2_bytes": spec.l2_bytes,
        "mem_bandwidth_bytes_per_s": spec.mem_bandwidth_bytes_per_s,
        "peak_fp32_flop_per_s": spec.peak_fp32_flop_per_s,
    }
    hint = "; a CPU is predicted with --constants, from: cdmpp analytic embedding fit"
    value = numbers_of(spec, needed, what="embedding model", hint=hint)
    dram_rate = value["mem_bandwidth_bytes_per_s"]
    l2_rate = spec.l2_bandwidth_bytes_per_s
    source = "data sheet" if l2_rate else "data sheet; L2 at three times the DRAM bandwidth"
    return KernelDevice(
        spec.name,
        int(value["core_count"]),
        int(value["l2_bytes"]),
        spec.shared_mem_bytes_per_core,
        dram_rate,
        l2_rate or 3.0 * dram_rate,
        value["peak_fp32_flop_per_s"],
        source=source,
    )
