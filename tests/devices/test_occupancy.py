"""The occupancy calculator."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.devices.occupancy import (
    COMPUTE_CAPABILITIES,
    Occupancy,
    device_occupancy_limits,
    occupancy,
    occupancy_limits,
)
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, UsageError

GOLDEN = Path(__file__).with_name("occupancy_golden.csv")


def compute(capability: str, threads: int, registers: int, shared: int = 0) -> Occupancy:
    return occupancy(
        occupancy_limits(capability),
        threads,
        registers_per_thread=registers,
        shared_bytes_per_block=shared,
    )


def test_nvidias_own_calculator_gives_the_same() -> None:
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    known = {row["compute_capability"] for row in rows}  # that calculator ends with Hopper
    assert known == set(COMPUTE_CAPABILITIES) - {"10.0", "10.3", "12.0"}
    for row in rows:
        result = compute(
            row["compute_capability"],
            int(row["threads_per_block"]),
            int(row["registers_per_thread"]),
            int(row["shared_bytes_per_block"]),
        )
        assert result.blocks_per_core == int(row["blocks_per_core"]), row
        assert "+".join(result.limiters) == row["limiting_factors"], row


# Worked out by hand from the limits of the CUDA C++ Programming Guide:
@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "limiters"),
    [
        # 8 warps a block, 64 warps: 8; 32 x 32 = 1024 registers a warp, 64 warps: 8.
        ("7.0", 256, 32, 0, 8, ("warps", "registers")),
        # 33 registers round up to 1280 a warp: 12 in each of 4 parts = 48 warps, 6 blocks.
        ("7.0", 256, 33, 0, 6, ("registers",)),
        # 32 blocks of one warp, though 64 warps would fit.
        ("7.0", 32, 16, 0, 32, ("blocks",)),
        # Turing holds 32 warps and 16 blocks.
        ("7.5", 256, 32, 0, 4, ("warps",)),
        ("7.5", 32, 16, 0, 16, ("blocks",)),
        # 49,152 bytes a block: two of them in 98,304, one in 65,536.
        ("7.0", 128, 32, 49152, 2, ("shared_memory",)),
        ("7.5", 128, 32, 49152, 1, ("shared_memory",)),
        # From 8.0 on 1 KiB of each block's share is taken: 167,936 / 50,176 = 3.3.
        ("8.0", 128, 32, 49152, 3, ("shared_memory",)),
        # The K80's GPU has twice the registers: 64 registers at full occupancy.
        ("3.7", 256, 64, 0, 8, ("warps", "registers")),
        # More than a block may have.
        ("7.5", 1025, 32, 0, 0, ("warps",)),
        ("7.5", 1024, 65, 0, 0, ("registers",)),
        ("6.1", 128, 32, 49153, 0, ("shared_memory",)),
        ("8.6", 128, 256, 0, 0, ("registers",)),
    ],
)
def test_values_worked_out_by_hand(
    capability: str,
    threads: int,
    registers: int,
    shared: int,
    blocks: int,
    limiters: tuple[str, ...],
) -> None:
    result = compute(capability, threads, registers, shared)
    assert result.blocks_per_core == blocks
    assert result.limiters == limiters


def test_the_parts_of_a_result() -> None:
    result = compute("7.5", 200, 40, 10_000)
    assert result.warps_per_block == 7
    assert result.registers_per_block == 7 * 1280
    assert result.shared_bytes_per_block == 10_240
    assert result.block_limits == {"warps": 4, "blocks": 16, "registers": 6, "shared_memory": 6}
    assert result.warps_per_core == 28
    assert result.occupancy == 28 / 32
    assert compute("7.5", 64, 0).block_limits["registers"] is None
    assert compute("7.5", 64, 0).block_limits["shared_memory"] is None


kernels = st.tuples(
    st.sampled_from(COMPUTE_CAPABILITIES),
    st.integers(1, 1100),
    st.integers(0, 260),
    st.integers(0, 240_000),
)


@given(kernels, st.integers(0, 64), st.integers(0, 20_000))
def test_more_registers_or_shared_memory_never_help(
    kernel: tuple[str, int, int, int], registers: int, shared: int
) -> None:
    capability, threads, used_registers, used_shared = kernel
    before = compute(*kernel)
    after = compute(capability, threads, used_registers + registers, used_shared + shared)
    assert after.blocks_per_core <= before.blocks_per_core


@given(kernels)
def test_more_threads_never_make_more_blocks(kernel: tuple[str, int, int, int]) -> None:
    capability, threads, registers, shared = kernel
    before = compute(*kernel)
    after = compute(capability, threads + 1, registers, shared)
    assert after.blocks_per_core <= before.blocks_per_core


@given(kernels)
def test_what_runs_fits(kernel: tuple[str, int, int, int]) -> None:
    limits = occupancy_limits(kernel[0])
    result = compute(*kernel)
    assert 0 <= result.occupancy <= 1
    assert result.limiters
    assert result.blocks_per_core <= limits.max_blocks_per_core
    assert result.warps_per_core <= limits.max_warps_per_core
    assert result.blocks_per_core * result.registers_per_block <= limits.registers_per_core
    assert result.blocks_per_core * result.shared_bytes_per_block <= limits.shared_bytes_per_core
    assert result.warps_per_core * limits.warp_size <= 32 * limits.max_warps_per_core + 31


def test_devices_without_limits() -> None:
    assert device_occupancy_limits(get_device("k80")).registers_per_core == 131072
    for name, message in (
        ("mi50", "AMD gpu"),
        ("ryzen-3700x", "AMD cpu"),
        ("hl-100", "Habana accelerator"),
    ):
        with pytest.raises(DeviceError, match=f"not supported for '{name}' .{message}"):
            device_occupancy_limits(get_device(name))
    with pytest.raises(DeviceError, match="compute capability of 'mine' is unknown"):
        device_occupancy_limits(DeviceSpec("mine", "gpu"))
    with pytest.raises(DeviceError, match="no occupancy limits for compute capability '11"):
        device_occupancy_limits(DeviceSpec("mine", "gpu", compute_capability="11.0"))


@pytest.mark.parametrize(("threads", "registers", "shared"), [(0, 1, 0), (1, -1, 0), (1, 1, -1)])
def test_numbers_that_make_no_sense(threads: int, registers: int, shared: int) -> None:
    with pytest.raises(UsageError, match="expected at least 1, 0 and 0"):
        compute("7.5", threads, registers, shared)
