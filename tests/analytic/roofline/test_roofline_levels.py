"""What bounds a program, leaf by leaf."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.roofline.levels import program_bound
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.schema import LEAF_FEATURE_NAMES

GPU = DeviceSpec(
    name="g", kind="gpu", core_count=10, clock_hz=1e9, peak_fp32_flop_per_s=1e12,
    mem_bandwidth_bytes_per_s=1e11, l1_bytes=1000, l2_bytes=100_000,
)  # fmt: skip


def leaf(**values: float) -> np.ndarray:
    row = np.zeros(len(LEAF_FEATURE_NAMES), np.float32)
    for name, value in values.items():
        row[LEAF_FEATURE_NAMES.index(name.replace("__", "."))] = np.log2(value + 1)
    return row


def test_names_the_leaf_and_the_level() -> None:
    leaves = np.stack(
        [
            leaf(float_mul=1e6, B0__lines=10, B0__unique_lines=10),
            leaf(float_mul=10, B0__lines=1e5, B0__unique_lines=1e5),
        ]
    )
    bound = program_bound(leaves, GPU)
    assert [item.level for item in bound.leaves] == ["compute", "dram"]
    assert bound.leaves[0].compute_s == pytest.approx(1e-6, rel=1e-3)
    assert bound.leaves[1].dram_s == pytest.approx(6.4e6 / 1e11, rel=1e-3)
    assert bound.sentence() == "98 % of the time is DRAM traffic of store 2 of 2"
    assert sum(share for share, _, _ in bound.shares()) == pytest.approx(1)


def test_reuse_beyond_a_cache_misses_it() -> None:
    """Lines that are used again after 20 kB miss the L1 (ten of 1 kB), not the L2."""
    row = leaf(B0__lines=1e4, B0__unique_lines=10, B0__reuse_dis_bytes=20_000)
    near = program_bound(row[None], GPU).leaves[0]
    assert near.dram_s == pytest.approx(640 / 1e11, rel=1e-2)
    assert near.l2_s == pytest.approx(6.4e5 / (20 * 10 * 1e9), rel=1e-2)
    assert near.level == "l2"
    row = leaf(B0__lines=1e4, B0__unique_lines=10, B0__reuse_dis_bytes=200_000)
    assert program_bound(row[None], GPU).leaves[0].level == "dram"


def test_unknown_l2_bandwidth_stays_unknown() -> None:
    cpu = DeviceSpec(name="c", kind="cpu", peak_fp32_flop_per_s=1e11)
    bound = program_bound(leaf(float_mul=1e6)[None], cpu)
    assert bound.leaves[0].l2_s is None
    assert bound.leaves[0].level == "compute"


def test_launch_of_an_empty_program() -> None:
    bound = program_bound(leaf()[None], GPU, launch_s=1e-5)
    assert bound.seconds == pytest.approx(1e-5)
    assert bound.sentence() == "100 % of the time is the launch"
