"""DeviceSpec: description of the hardware, with a source for every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

#: Share of a device's memory up to which a network surely fits: other users need memory too.
SURE_SHARE = 0.9


def fits_into(
    needed: float, limit: float | None, *, least: float | None = None, share: float = SURE_SHARE
) -> bool | None:
    """Returns whether memory fits into a limit; None if that is uncertain or the limit unknown.

    Args:
        needed: estimated bytes; True if they fit into `share` of the limit.
        limit: bytes; None = unknown.
        least: lower bound of `needed`; False if it exceeds the limit. None = `needed`.
    """
    if limit is None:
        return None
    if (needed if least is None else least) > limit:
        return False
    return True if needed <= share * limit else None


@dataclass(frozen=True)
class DeviceSpec:
    """Hardware facts in SI units; None = unknown (never 0).

    Attributes:
        name: device label, e.g. `t4` or `epyc-avx512-2c`.
        core_count: cores or streaming multiprocessors of the device.
        clock_hz: nominal clock.
        peak_*_flop_per_s: arithmetic peak with the label's threads and instruction set.
        simd_bits: vector width of a CPU label; `warp_size` is its GPU counterpart.
        threads: software threads used by the label.
        launch_s: shortest time of a kernel, seconds: a lower bound of predictions, not an input of
            models (not in the device vector).
        peak_bf16_flop_per_s, peak_fp8_flop_per_s, peak_fp4_flop_per_s, peak_int8_op_per_s: dense
            rates of matrix units with fp32 (int32) accumulation; None also if the device has no
            such units. These fields and the following ones are not inputs of learned models (not
            in the device vector).
        link_bandwidth_bytes_per_s: to other devices of the node, per direction, all links together.
        tdp_w: power limit in watts.
        kernel_sweep: file with measured reference kernels of a GPU (`cdmpp device add --sweep`),
            used to correct its kernel times.
        sources: field name -> source of the value.
    """

    name: str
    kind: Literal["gpu", "cpu", "accelerator"]
    vendor: str | None = None
    architecture: str | None = None
    core_count: int | None = None
    clock_hz: float | None = None
    peak_fp32_flop_per_s: float | None = None
    peak_fp16_flop_per_s: float | None = None
    peak_tensor_flop_per_s: float | None = None
    mem_bandwidth_bytes_per_s: float | None = None
    mem_bytes: int | None = None
    l1_bytes: int | None = None
    l2_bytes: int | None = None
    l3_bytes: int | None = None
    l2_bandwidth_bytes_per_s: float | None = None
    shared_mem_bytes_per_core: int | None = None
    registers_per_core: int | None = None
    simd_bits: int | None = None
    warp_size: int | None = None
    threads: int | None = None
    compute_capability: str | None = None
    launch_s: float | None = None
    peak_bf16_flop_per_s: float | None = None
    peak_fp8_flop_per_s: float | None = None
    peak_fp4_flop_per_s: float | None = None
    peak_int8_op_per_s: float | None = None
    link_bandwidth_bytes_per_s: float | None = None
    tdp_w: float | None = None
    kernel_sweep: str | None = None
    sources: dict[str, str] = field(default_factory=dict)


def family(device: DeviceSpec) -> str | None:
    """Returns the family of devices that run programs alike: `x86` for AMD and Intel CPUs, else
    the vendor; None = unknown.
    """
    is_x86 = device.kind == "cpu" and device.vendor in ("AMD", "Intel")
    return "x86" if is_x86 else device.vendor


def architecture_of(device: DeviceSpec) -> tuple[str, str | None, str] | None:
    """Returns (kind, vendor, architecture); None if the architecture is unknown."""
    if device.architecture is None:
        return None
    return device.kind, device.vendor, device.architecture


def same_architecture(device: DeviceSpec, others: Sequence[DeviceSpec]) -> list[str]:
    """Returns the labels of other devices with the device's architecture; [] if it is unknown."""
    own = architecture_of(device)
    return [
        spec.name
        for spec in others
        if own is not None and spec.name != device.name and architecture_of(spec) == own
    ]
