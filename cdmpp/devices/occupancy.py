"""Occupancy: how many thread blocks of a kernel run at once on a multiprocessor of an NVIDIA GPU.

Source: CUDA C++ Programming Guide, technical specifications per compute capability (limits);
`cuda_occupancy.h` of the CUDA toolkit (allocation units and the order of rounding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, UsageError

Limiter = Literal["warps", "blocks", "registers", "shared_memory"]

_KIB = 1024
_GP100 = "6.0"
_GP10X = "6.1"


@dataclass(frozen=True)
class OccupancyLimits:
    """Limits on the blocks of one multiprocessor, for a compute capability.

    Attributes:
        compute_capability: e.g. `7.5`.
        max_warps_per_core: maximum resident warps per multiprocessor.
        max_blocks_per_core: maximum resident blocks per multiprocessor.
        registers_per_core: registers of 4 bytes per multiprocessor.
        shared_bytes_per_core: shared memory per multiprocessor with the largest carve-out.
        shared_bytes_per_block: maximum shared memory of a block (opt-in limit, if there is one).
        shared_allocation_bytes: allocation unit of shared memory.
        reserved_shared_bytes_per_block: shared memory per block that the system reserves.
        partition_count: partitions of a multiprocessor; a warp's registers are in one of them.
        registers_per_block: maximum registers per block.
        max_registers_per_thread: maximum registers that a compiler assigns to a thread.
        register_allocation_unit: allocation unit of a warp's registers.
        max_threads_per_block: maximum threads per block.
        warp_size: threads per warp.
    """

    compute_capability: str
    max_warps_per_core: int
    max_blocks_per_core: int
    registers_per_core: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    shared_allocation_bytes: int
    reserved_shared_bytes_per_block: int = 0
    partition_count: int = 4
    registers_per_block: int = 65536
    max_registers_per_thread: int = 255
    register_allocation_unit: int = 256
    max_threads_per_block: int = 1024
    warp_size: int = 32


@dataclass(frozen=True)
class Occupancy:
    """Occupancy of a multiprocessor by a kernel.

    Attributes:
        blocks_per_core: resident blocks per multiprocessor; 0 = the kernel cannot be launched.
        warps_per_block: warps per block.
        warps_per_core: resident warps per multiprocessor.
        occupancy: `warps_per_core` as a share of the maximum, 0 to 1.
        limiters: the limiting resources, several if tied.
        block_limits: blocks that each resource alone would allow; None = not used by the kernel.
        registers_per_block: registers per block after rounding.
        shared_bytes_per_block: shared memory per block after rounding, including the reserve.
    """

    blocks_per_core: int
    warps_per_block: int
    warps_per_core: int
    occupancy: float
    limiters: tuple[Limiter, ...]
    block_limits: dict[Limiter, int | None]
    registers_per_block: int
    shared_bytes_per_block: int


# capability, warps, blocks, registers, shared KiB per core and block, shared unit, reserve, parts
_ROWS = (
    ("3.7", 64, 16, 131072, 112, 48, 256, 0, 4),
    ("5.2", 64, 32, 65536, 96, 48, 256, 0, 4),
    ("6.0", 64, 32, 65536, 64, 48, 256, 0, 2),
    ("6.1", 64, 32, 65536, 96, 48, 256, 0, 4),
    ("7.0", 64, 32, 65536, 96, 96, 256, 0, 4),
    ("7.5", 32, 16, 65536, 64, 64, 256, 0, 4),
    ("8.0", 64, 32, 65536, 164, 163, 128, 1024, 4),
    ("8.6", 48, 16, 65536, 100, 99, 128, 1024, 4),
    ("8.9", 48, 24, 65536, 100, 99, 128, 1024, 4),
    ("9.0", 64, 32, 65536, 228, 227, 128, 1024, 4),
    ("10.0", 64, 32, 65536, 228, 227, 128, 1024, 4),
    ("10.3", 64, 32, 65536, 228, 227, 128, 1024, 4),
    ("12.0", 48, 24, 65536, 100, 99, 128, 1024, 4),
)
#: Compute capabilities with known limits.
COMPUTE_CAPABILITIES = tuple(row[0] for row in _ROWS)


def occupancy_limits(compute_capability: str) -> OccupancyLimits:
    """Returns the limits of a compute capability.

    Raises:
        DeviceError: its limits are unknown.
    """
    for row in _ROWS:
        if row[0] == compute_capability:
            name, warps, blocks, registers, per_core, per_block, unit, reserve, parts = row
            return OccupancyLimits(
                compute_capability=name,
                max_warps_per_core=warps,
                max_blocks_per_core=blocks,
                registers_per_core=registers,
                shared_bytes_per_core=per_core * _KIB,
                shared_bytes_per_block=per_block * _KIB,
                shared_allocation_bytes=unit,
                reserved_shared_bytes_per_block=reserve,
                partition_count=parts,
            )
    raise DeviceError(
        f"no occupancy limits for compute capability {compute_capability!r}; known: "
        f"{', '.join(COMPUTE_CAPABILITIES)}"
    )


def device_occupancy_limits(device: DeviceSpec) -> OccupancyLimits:
    """Returns the limits of a device.

    Raises:
        DeviceError: the device is not an NVIDIA GPU, or the limits of its compute capability are
            unknown.
    """
    if device.kind != "gpu" or (device.vendor or "NVIDIA") != "NVIDIA":
        what = f"{device.vendor} {device.kind}" if device.vendor else device.kind
        raise DeviceError(
            f"occupancy is not supported for {device.name!r} ({what}): the calculator supports "
            "NVIDIA GPUs only; list them with: cdmpp device list --kind gpu"
        )
    if device.compute_capability is None:
        raise DeviceError(
            f"the compute capability of {device.name!r} is unknown, and so are its limits; known "
            f"limits: {', '.join(COMPUTE_CAPABILITIES)}; add compute_capability to its YAML file"
        )
    return occupancy_limits(device.compute_capability)


def occupancy(
    limits: OccupancyLimits,
    threads_per_block: int,
    *,
    registers_per_thread: int,
    shared_bytes_per_block: int = 0,
) -> Occupancy:
    """Returns the occupancy of a kernel.

    Assumes the largest shared memory carve-out, which allows the most blocks. A kernel that exceeds
    a limit per block has 0 blocks and that limit as its limiter.

    Args:
        threads_per_block: at least 1.
        registers_per_thread: 0 = the kernel uses no registers.
        shared_bytes_per_block: static and dynamic shared memory together.

    Raises:
        UsageError: an argument is negative, or `threads_per_block` is 0.
    """
    if threads_per_block < 1 or registers_per_thread < 0 or shared_bytes_per_block < 0:
        raise UsageError(
            f"got {threads_per_block} threads, {registers_per_thread} registers and "
            f"{shared_bytes_per_block} bytes of shared memory; expected at least 1, 0 and 0"
        )
    warps = -(-threads_per_block // limits.warp_size)
    shared_bytes = _round_up(
        shared_bytes_per_block + limits.reserved_shared_bytes_per_block,
        limits.shared_allocation_bytes,
    )
    fits = threads_per_block <= limits.max_threads_per_block
    block_limits: dict[Limiter, int | None] = {
        "warps": limits.max_warps_per_core // warps if fits else 0,
        "blocks": limits.max_blocks_per_core,
        "registers": _register_limit(limits, warps, registers_per_thread),
        "shared_memory": _shared_limit(limits, shared_bytes),
    }
    blocks = min(limit for limit in block_limits.values() if limit is not None)
    return Occupancy(
        blocks_per_core=blocks,
        warps_per_block=warps,
        warps_per_core=blocks * warps,
        occupancy=blocks * warps / limits.max_warps_per_core,
        limiters=tuple(name for name, limit in block_limits.items() if limit == blocks),
        block_limits=block_limits,
        registers_per_block=_warp_registers(limits, registers_per_thread) * warps,
        shared_bytes_per_block=shared_bytes,
    )


def _register_limit(limits: OccupancyLimits, warps: int, registers: int) -> int | None:
    """Returns the blocks that the registers allow; None if the kernel uses no registers."""
    if not registers:
        return None
    per_warp = _warp_registers(limits, registers)
    partition_counts = [limits.partition_count]
    if limits.compute_capability == _GP100:
        # The 6.0 launch check also applies the limit of the other Pascal GPUs.
        partition_counts.append(occupancy_limits(_GP10X).partition_count)
    # The launch check rounds the warps up to the same number in every partition.
    checked = max(per_warp * _round_up(warps, parts) for parts in partition_counts)
    if checked > limits.registers_per_block or registers > limits.max_registers_per_thread:
        return 0
    per_partition = limits.registers_per_core // limits.partition_count // per_warp
    return per_partition * limits.partition_count // warps


def _shared_limit(limits: OccupancyLimits, shared_bytes: int) -> int | None:
    """Returns the blocks that the shared memory allows; None if a block takes none."""
    if not shared_bytes:
        return None
    if shared_bytes > limits.shared_bytes_per_block + limits.reserved_shared_bytes_per_block:
        return 0
    return limits.shared_bytes_per_core // shared_bytes


def _warp_registers(limits: OccupancyLimits, registers: int) -> int:
    return _round_up(registers * limits.warp_size, limits.register_allocation_unit)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
