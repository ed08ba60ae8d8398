"""What a program takes at the least: never more than was measured, never nothing."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cdmpp.analytic.operators.operators import make_operators
from cdmpp.analytic.roofline.floor import (
    LEAST_CALL_S,
    LEAST_KERNEL_S,
    LeastWork,
    floor_on,
    least_kernel_s,
    least_work,
    least_work_of_operators,
    least_work_of_program,
    sample_floor_s,
)
from cdmpp.datasets.cache import load_samples
from cdmpp.devices.registry import get_device, load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.schema import LEAF_FEATURE_NAMES
from cdmpp.testing.synthetic import make_samples
from tests.paths import ROOT

GPU = DeviceSpec(
    name="g", kind="gpu", peak_fp32_flop_per_s=1e12, mem_bandwidth_bytes_per_s=1e11,
    l2_bytes=1_000_000, launch_s=2e-6,
)  # fmt: skip
#: The bound may exceed a measurement by what measurements are off.
TOLERANCE = 1.05


def leaf(
    *,
    mul: float = 0,
    add: float = 0,
    reads: tuple[float, ...] = (),
    writes: float = 4,
    written: str = "kWrite",
    touches: float | None = None,
    **extra: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the columns of a leaf that reads parameters and writes a buffer, sizes in bytes;
    `touches` are the bytes of all its accesses to a buffer, repeats included.
    """
    row = dict.fromkeys(LEAF_FEATURE_NAMES, 0.0)
    more = dict.fromkeys(LEAF_EXTRA_NAMES, 0.0)
    row["float_mul"], row["float_addsub"] = np.log2([mul + 1, add + 1])
    for slot, size in enumerate((*reads, writes)):
        is_read = slot < len(reads)
        row[f"B{slot}.unique_bytes"] = np.log2(size + 1)
        row[f"B{slot}.bytes"] = np.log2((size if touches is None else touches) + 1)
        row[f"B{slot}.acc_type.{'kRead' if is_read else written}"] = 1.0
        more[f"alloc.B{slot}.is_parameter"] = float(is_read)
    more["program.input_bytes"] = np.log2(sum(reads) + 1)
    more["dtype.store.bytes"] = np.log2(5)
    more |= {name.replace("__", "."): np.log2(value + 1) for name, value in extra.items()}
    return np.array([*row.values()], np.float32), np.array([*more.values()], np.float32)


def work_of(*leaves: tuple[np.ndarray, np.ndarray]):
    return least_work_of_program(np.stack([a for a, _ in leaves]), np.stack([b for _, b in leaves]))


def test_a_product_computes_and_moves_each_operand_once() -> None:
    m, n, k = 256.0, 512.0, 1024.0
    work = work_of(
        leaf(mul=m * n * k, add=m * n * k, reads=(4 * m * k, 4 * k * n), writes=4 * m * n)
    )
    assert work.wide_flop[0] == pytest.approx(2 * m * n * k, rel=1e-4)
    assert work.bytes[0] == pytest.approx(4 * (m * k + k * n + m * n), rel=1e-4)
    floor = floor_on(GPU, work)
    assert floor.seconds[0] == pytest.approx(2 * m * n * k / 1e12, rel=1e-4)
    assert floor.why(0) == "its operations at peak"
    beyond = floor_on(replace(GPU, peak_fp32_flop_per_s=None), work)
    assert beyond.seconds[0] == pytest.approx((work.bytes[0] - 1e6) / 1e11)


def test_a_window_that_skips_needs_a_quarter_of_what_it_spans() -> None:
    """A 1x1 convolution with strides of 2: the box around what it reads has four times as much."""
    m, n, k = 28.0 * 28, 512.0, 256.0
    spanned = 4 * 4 * m * k
    work = work_of(leaf(mul=m * n * k, add=m * n * k, reads=(spanned, 4 * k * n), writes=4 * m * n))
    touched = 4 * (m * k + k * n + m * n)
    assert 0.8 * touched < work.bytes[0] < touched


def test_reading_again_moves_nothing_and_intermediate_buffers_do_not_count() -> None:
    once = work_of(leaf(reads=(8e6,), writes=8e6))
    again = work_of(leaf(reads=(8e6,), writes=1e6), leaf(reads=(8e6,), writes=8e6))
    assert again.bytes[0] == pytest.approx(once.bytes[0]) == pytest.approx(16e6, rel=1e-3)


def test_a_leaf_under_a_condition_may_not_run() -> None:
    assert work_of(leaf(mul=1e9, condition__depth=1)).wide_flop[0] == 0


def test_making_a_value_again_does_not_count() -> None:
    """A compiler moved whole reductions out of the loops that repeated them (layer norms)."""
    once = leaf(writes=400), leaf(add=1e6, reads=(4e6,), writes=400, written="kReadWrite")
    assert work_of(*once).wide_flop[0] == pytest.approx(1e6, rel=1e-4)
    again = (
        leaf(writes=400, touches=4000),
        leaf(add=1e7, reads=(4e6,), writes=400, written="kReadWrite"),
    )
    assert work_of(*again).wide_flop[0] == pytest.approx(1e6, rel=1e-2)
    assert work_of(again[1]).wide_flop[0] == 0  # nothing says how often
    assert work_of(leaf(add=1e6, writes=400, touches=4e5)).wide_flop[0] == pytest.approx(1e3, 1e-2)


def test_half_precision_may_use_the_fastest_pipe() -> None:
    work = work_of(leaf(mul=1e12, add=1e12, dtype__store__bytes=2))
    assert work.wide_flop[0] == 0
    assert floor_on(GPU, work).why(0) == "its smallest kernels"  # no rate of it is known
    tensor = replace(GPU, peak_fp16_flop_per_s=2e12, peak_tensor_flop_per_s=8e12)
    assert floor_on(tensor, work).seconds[0] == pytest.approx(2e12 / 8e12, rel=1e-4)


def test_eight_bits_may_use_the_fp8_units() -> None:
    work = work_of(leaf(mul=1e12, add=1e12, dtype__store__bytes=1))
    assert work.fp8_flop is not None
    assert (work.wide_flop[0], work.narrow_flop[0]) == (0, 0)
    assert work.flop[0] == work.fp8_flop[0] == pytest.approx(2e12, rel=1e-4)
    tensor = replace(GPU, peak_tensor_flop_per_s=8e12)
    assert floor_on(tensor, work).seconds[0] == pytest.approx(2e12 / 8e12, rel=1e-4)
    units = replace(tensor, peak_fp8_flop_per_s=16e12)
    assert floor_on(units, work).seconds[0] == pytest.approx(2e12 / 16e12, rel=1e-4)
    halves = work_of(leaf(mul=1e12, add=1e12, dtype__store__bytes=2))
    assert floor_on(units, halves).seconds[0] == pytest.approx(2e12 / 8e12, rel=1e-4)


def test_four_bits_may_use_the_fp4_units() -> None:
    """They were bounded by the fp8 peak, half of the fp4 peak."""
    one, none = np.ones(1), np.zeros(1)
    units = replace(GPU, peak_tensor_flop_per_s=8e12, peak_fp8_flop_per_s=16e12)
    work = LeastWork(none, none, none, one, fp4_flop=np.array([2e12]))
    assert work.flop == 2e12
    assert floor_on(units, work).seconds[0] == pytest.approx(2e12 / 16e12)
    both = replace(units, peak_fp4_flop_per_s=32e12)
    assert floor_on(both, work).seconds[0] == pytest.approx(2e12 / 32e12)
    eight = replace(work, fp4_flop=None, fp8_flop=np.array([2e12]))
    assert floor_on(both, eight).seconds[0] == pytest.approx(2e12 / 16e12)


def test_every_kernel_of_a_gpu_is_launched() -> None:
    work = work_of(leaf(program__kernels=3))
    assert floor_on(GPU, work).seconds[0] == pytest.approx(6e-6)
    assert floor_on(replace(GPU, launch_s=None), work).seconds[0] == pytest.approx(3e-6)
    assert floor_on(DeviceSpec("c", "cpu"), work).seconds[0] == LEAST_CALL_S


def test_programs_without_the_added_columns_have_the_launch_alone() -> None:
    samples = make_samples(2, 2)
    assert set(sample_floor_s(samples)) == {LEAST_CALL_S}
    gpus = (GPU, replace(GPU, name="h", launch_s=None))
    assert set(sample_floor_s(samples, gpus)) == {2e-6, LEAST_KERNEL_S}


def test_many_programs_are_what_each_is_alone() -> None:
    samples = make_samples(5, 3, extra=len(LEAF_EXTRA_NAMES))
    programs = samples.programs
    rng = np.random.default_rng(0)
    programs.leaf_features[:] = rng.uniform(0, 20, programs.leaf_features.shape)
    programs.leaf_extra[:] = rng.uniform(0, 20, programs.leaf_extra.shape)
    together = least_work(programs, np.arange(15)[::-1])
    for place, row in enumerate(range(14, -1, -1)):
        part = slice(programs.leaf_offset[row], programs.leaf_offset[row + 1])
        alone = least_work_of_program(programs.leaf_features[part], programs.leaf_extra[part])
        for item in fields(alone):
            own, all_of = getattr(alone, item.name)[0], getattr(together, item.name)[place]
            assert own == pytest.approx(all_of, rel=1e-12)


def test_operators_of_a_framework() -> None:
    sizes = {"m": [512.0], "n": [512.0], "k": [512.0]}
    work = least_work_of_operators(make_operators(["linear"], sizes))
    v100 = get_device("v100")
    assert v100.peak_fp32_flop_per_s is not None
    assert floor_on(v100, work).seconds[0] == 2 * 512**3 / v100.peak_fp32_flop_per_s
    small = least_work_of_operators(make_operators(["relu"], {"rows": [1.0], "cols": [8.0]}))
    assert floor_on(v100, small).seconds[0] == v100.launch_s


@pytest.mark.parametrize("spec", load_registry().values(), ids=lambda spec: spec.name)
def test_the_smallest_kernel_of_a_gpu_is_microseconds(spec: DeviceSpec) -> None:
    least = 1e-6 if spec.kind == "gpu" else LEAST_CALL_S
    assert least <= least_kernel_s(spec) < 5e-6


RATES = st.none() | st.floats(1e3, 1e18)
SIZES = st.none() | st.integers(1, 1 << 50)
SPECS = st.builds(
    DeviceSpec, name=st.just("any"), kind=st.sampled_from(["gpu", "cpu", "accelerator"]),
    core_count=SIZES, clock_hz=RATES, peak_fp32_flop_per_s=RATES, peak_fp16_flop_per_s=RATES,
    peak_tensor_flop_per_s=RATES, mem_bandwidth_bytes_per_s=RATES, l1_bytes=SIZES, l2_bytes=SIZES,
    l3_bytes=SIZES, l2_bandwidth_bytes_per_s=RATES, launch_s=st.none() | st.floats(1e-9, 1.0),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    SPECS,
    st.integers(1, 6).flatmap(
        lambda leaves: st.tuples(
            arrays.arrays(
                np.float32, (leaves, len(LEAF_FEATURE_NAMES)), elements=st.floats(0, 60, width=32),
                fill=st.just(np.float32(0)),
            ),
            arrays.arrays(
                np.float32, (leaves, len(LEAF_EXTRA_NAMES)), elements=st.floats(0, 60, width=32),
                fill=st.just(np.float32(0)),
            ),
        )
    ),
)  # fmt: skip
def test_any_device_and_program_has_a_floor(
    spec: DeviceSpec, leaves: tuple[np.ndarray, np.ndarray]
) -> None:
    seconds = floor_on(spec, least_work_of_program(*leaves)).seconds
    assert seconds.shape == (1,)
    assert np.isfinite(seconds[0])
    assert seconds[0] >= least_kernel_s(spec) > 0


@pytest.mark.slow
def test_no_program_of_the_shipped_records_was_faster(tmp_path: Path) -> None:
    """A sample of `docs/results/analytic.md`, which has every record."""
    samples = load_samples(ROOT / "data" / "metaschedule-cpu", cache_dir=tmp_path)
    ratio = sample_floor_s(samples) / samples.latency_s
    assert len(samples) > 1000
    assert np.mean(ratio <= TOLERANCE) >= 0.999
    assert ratio.max() > 0.3  # and it says something
