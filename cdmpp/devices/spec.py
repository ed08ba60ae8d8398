"""DeviceSpec: what the hardware is, with a source for every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

#: No device's memory is all one network's: above this share it is not sure that it fits.
SURE_SHARE = 0.9


def fits_into(
    needed: float, limit: float | None, *, least: float | None = None, share: float = SURE_SHARE
) -> bool | None:
    """Returns whether so many bytes surely fit into that share of a limit; False where even the
    least that is needed is above all of it; None in between, or where no limit is known.
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
        peak_*_flop_per_s: arithmetic peak of the label as used (its threads, its instruction set).
        simd_bits: vector width of a CPU label; `warp_size` is its GPU counterpart.
        threads: software threads used by the label.
        launch_s: smallest time of a kernel, seconds; not an input of models (not in the device
            vector), only a lower bound of predictions.
        peak_bf16_flop_per_s, peak_fp8_flop_per_s, peak_fp4_flop_per_s, peak_int8_op_per_s: dense
            rates of matrix units, sums in fp32 (int32); None also where the device has no such
            units. These and what follows are no inputs of learned models (not in the device
            vector).
        link_bandwidth_bytes_per_s: to other devices of the node, each way, all links together.
        tdp_w: power limit in watts.
        kernel_sweep: file with measured reference kernels of a GPU (`cdmpp device add --sweep`),
            by which its kernel times are corrected.
        sources: field name -> where the value is from.
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
    """Returns whose devices of its kind run programs as it does: `x86` of CPUs by AMD and Intel,
    else its vendor; None = unknown.
    """
    is_x86 = device.kind == "cpu" and device.vendor in ("AMD", "Intel")
    return "x86" if is_x86 else device.vendor


def architecture_of(device: DeviceSpec) -> tuple[str, str | None, str] | None:
    """Returns what devices of one architecture have in common; None where it is not known."""
    if device.architecture is None:
        return None
    return device.kind, device.vendor, device.architecture


def same_architecture(device: DeviceSpec, others: Sequence[DeviceSpec]) -> list[str]:
    """Returns the labels of other devices of a device's architecture: hardware of its sort under
    other names. None where its architecture is not known.
    """
    own = architecture_of(device)
    return [
        spec.name
        for spec in others
        if own is not None and spec.name != device.name and architecture_of(spec) == own
    ]
