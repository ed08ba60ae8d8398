"""Columns of compiled GPU programs, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.programs.gpu_code.columns import (
    GPU_CODE_NAMES,
    UNKNOWN_TRIPS,
    KernelLaunch,
    gpu_code_columns,
)
from cdmpp.programs.gpu_code.cubin import KIND, CodeLoop, KernelCode

_CODE = (
    ("move", 0), ("load_global", 16), ("store_shared", 16), ("load_shared", 4), ("load_shared", 4),
    ("multiply_add", 0), ("integer", 0), ("branch", 0), ("store_global", 4),
)  # fmt: skip
_KERNEL = KernelCode(
    name="kernel",
    registers=40,
    shared_bytes=1023,
    kind=np.array([KIND[kind] for kind, _ in _CODE]),
    width=np.array([width for _, width in _CODE]),
    is_conditional=np.array([False] * 7 + [True, False]),
    loops=(CodeLoop(1, 7, 3.0), CodeLoop(3, 7, 10.0)),
)
_LAUNCH = KernelLaunch(_KERNEL, blocks=90, threads=63, blocks_per_core=2, occupancy=0.5, cores=30)


def columns(*launches: KernelLaunch) -> dict[str, float]:
    found = gpu_code_columns(launches)
    assert found.dtype == np.float32
    return dict(zip(GPU_CODE_NAMES, found.tolist(), strict=True))


def count(value: float) -> float:
    """The number that a column of a logarithm stands for."""
    return 2.0**value - 1.0


def test_names_are_distinct() -> None:
    assert len(set(GPU_CODE_NAMES)) == len(GPU_CODE_NAMES)


def test_trips_weigh_what_loops_repeat() -> None:
    found = columns(_LAUNCH)
    # once: 2, three times: 2, thirty times: 5
    assert count(found["thread.instructions"]) == pytest.approx(158, rel=0.01)
    assert count(found["thread.flops"]) == pytest.approx(60, rel=0.01)
    assert count(found["thread.shared_bytes"]) == pytest.approx(3 * 16 + 30 * 8, rel=0.01)
    assert count(found["thread.global_bytes"]) == pytest.approx(3 * 16 + 4, rel=0.01)
    assert count(found["program.flops"]) == pytest.approx(60 * 90 * 63, rel=0.01)
    assert found["share.load_shared.32"] == pytest.approx(60 / 159, abs=0.01)
    assert found["conditional"] == pytest.approx(30 / 159, abs=0.01)
    assert (found["loops"], found["unknown_loops"], found["depth"]) == (2, 0, 2)


def test_the_innermost_loop_is_the_hottest() -> None:
    found = columns(_LAUNCH)
    assert found["hottest.share"] == pytest.approx(150 / 158, abs=0.01)
    assert count(found["hottest.instructions"]) == pytest.approx(5, rel=0.01)
    assert count(found["hottest.trips"]) == pytest.approx(10, rel=0.01)
    assert found["hottest.flops_each"] == pytest.approx(2 / 5, abs=0.01)
    assert found["hottest.load_shared"] == pytest.approx(2 / 5, abs=0.01)


def test_blocks_fill_the_device_in_waves() -> None:
    found = columns(_LAUNCH)
    assert (found["registers"], found["blocks_per_core"], found["occupancy"]) == (40, 2, 0.5)
    assert count(found["waves"]) == pytest.approx(1.5, rel=0.01)
    assert found["last_wave"] == 0.75
    assert found["busiest_core"] == 1
    assert found["idle_lanes"] == pytest.approx(1 / 64, abs=0.01)
    assert columns(replace(_LAUNCH, blocks=91))["busiest_core"] == pytest.approx(91 / 120, abs=0.01)
    # a block more makes a core hold four instead of three
    more = columns(replace(_LAUNCH, blocks=91))
    assert count(more["cycles.issue"]) == pytest.approx(4 * 2 * 158 / 4, rel=0.01)
    assert count(found["cycles.issue"]) == pytest.approx(3 * 2 * 158 / 4, rel=0.01)


def test_unknown_trips_are_assumed_and_counted() -> None:
    loops = (CodeLoop(1, 7, 3.0), CodeLoop(3, 7, None))
    found = columns(replace(_LAUNCH, kernel=replace(_KERNEL, loops=loops)))
    assert found["unknown_loops"] == 0.5
    assert count(found["thread.flops"]) == pytest.approx(2 * 3 * UNKNOWN_TRIPS, rel=0.01)


def test_kernels_add_up_and_the_longest_is_described() -> None:
    small = replace(_LAUNCH, blocks=1, kernel=replace(_KERNEL, registers=17))
    found = columns(small, _LAUNCH)
    assert (found["kernels"], found["registers"]) == (2, 40)
    assert count(found["program.flops"]) == pytest.approx(60 * 91 * 63, rel=0.01)


def test_a_program_without_kernels_is_refused() -> None:
    with pytest.raises(DataError, match="no kernel"):
        gpu_code_columns([])
