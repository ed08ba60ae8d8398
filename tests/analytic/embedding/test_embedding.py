"""The embedding kernels' formulas: published numbers, repaired defects, properties."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.analytic.embedding.devices import kernel_device, measured_devices
from cdmpp.analytic.embedding.gpu import (
    VERSIONS,
    KernelOptions,
    cold_start_hit_rate,
    estimate,
    small_row_factor,
    warp_bytes,
)
from cdmpp.analytic.embedding.shapes import EmbeddingShape, in_sectors
from cdmpp.errors import DataError, DeviceError, UsageError

#: One or two units in the last place of a float64.
ULP = 4e-16
REFERENCE = measured_devices()["v100-reference"]
V100 = measured_devices()["v100"]
RESIDENT = KernelOptions(version="resident")
LARGE = EmbeddingShape(4096, 500_000, 197, 32, 32, 128)
TRAINED = EmbeddingShape(2048, 200_000, 128, 128, 128)


@pytest.mark.parametrize(
    ("shape", "microseconds"),
    [
        (LARGE, 4340.7676440049445),
        (EmbeddingShape(2048, 1_000_000, 8, 100, 64, 4), 532.0648306551298),
        (EmbeddingShape(2048, 1000, 64, 32, 64, 64), 369.0257728531856),
        (EmbeddingShape(512, 500, 32, 8, 32, 128), 5.771866501854141),
    ],
)
def test_forward_with_the_first_cache_model(shape, microseconds):
    found = estimate(shape, REFERENCE, options=RESIDENT)
    assert found.latency_s * 1e6 == pytest.approx(microseconds, rel=ULP, abs=0)


def test_forward_with_the_first_cache_model_step_by_step():
    found = estimate(LARGE, REFERENCE, options=RESIDENT)
    assert found.tables_at_once == 3
    assert found.cached_rows == 65_536
    assert found.cached_rows * LARGE.row_bytes == 8_388_608
    assert f"{found.hit_rate:.2e}" == "5.72e-29"
    assert found.l2_bytes == 51_642_368
    assert found.dram_bytes == 3_511_681_024
    all_hit = estimate(EmbeddingShape(2048, 1000, 64, 32, 64, 64), REFERENCE, options=RESIDENT)
    assert all_hit.hit_rate == 1.0


def test_l2_traffic_is_never_negative():
    """The original has less than none here, and 994.84 us."""
    found = estimate(EmbeddingShape(256, 100_000, 64, 1, 128, 2), REFERENCE, options=RESIDENT)
    assert found.l2_bytes >= 0
    assert found.latency_s < 994.84e-6 / 10


@pytest.mark.parametrize(
    ("which", "uses_shared_memory", "microseconds"),
    [
        ("backward-sgd", True, 42834.783248454885),
        ("backward-sgd", False, 86291.71294932015),
        ("backward-adagrad", True, 64226.252103831896),
    ],
)
def test_backward_of_the_first_version(which, uses_shared_memory, microseconds):
    options = KernelOptions(version="plain", uses_shared_memory=uses_shared_memory)
    found = estimate(TRAINED, REFERENCE, which, options=options)
    assert found.latency_s * 1e6 == pytest.approx(microseconds, rel=ULP, abs=0)


def test_backward_of_the_first_version_step_by_step():
    options = KernelOptions(version="plain")
    assert warp_bytes(TRAINED, "backward-sgd", options) == 132_192
    assert (
        estimate(TRAINED, REFERENCE, "backward-sgd", options=options).multiply_adds == 4_294_967_296
    )
    default = EmbeddingShape(2048, 1_000_000, 8, 100, 64)
    found = estimate(default, REFERENCE, "backward-sgd", options=options)
    assert found.latency_s * 1e6 == pytest.approx(1052.464415327565, rel=ULP, abs=0)


@pytest.mark.parametrize(
    ("sizes", "at_once", "cached", "unique", "hit_rate", "l2_bytes", "dram_bytes", "factor"),
    [
        ((4096, 500_000, 197, 32, 32), 1, 44_236, 115299.99, 0.05861323999023438,
         193723296.591872, 3395421279.408128, 1.55),
        ((2048, 1_000_000, 8, 100, 64), 2, 11_059, 185189.821, 0.010461824799804731,
         4388007.360512018, 427625304.639488, 1.1),
        ((2048, 1000, 64, 32, 64), 2, 1000, 1000, 0.9847412109375, 1057357824, 79298560, 1.1),
        ((512, 500, 32, 8, 32), 8, 500, 499.863, 0.877963207743858,
         14729778.37637158, 6241741.623628421, 1.55),
        ((256, 100_000, 64, 1, 128), 15, 256, 255.674, 0.001273921186964344,
         10686.425460338593, 18863681.57453966, 1),
    ],
)  # fmt: skip
def test_traffic_of_the_later_version(
    sizes, at_once, cached, unique, hit_rate, l2_bytes, dram_bytes, factor
):
    shape = EmbeddingShape(*sizes)
    found = estimate(shape, V100, options=KernelOptions(version="cold-start", is_fbgemm=True))
    assert (found.tables_at_once, found.cached_rows) == (at_once, cached)
    requests = shape.batch * shape.lookups
    touched = shape.rows * (1 - (1 - 1 / shape.rows) ** requests)
    assert touched == pytest.approx(unique, abs=0.0051)
    assert found.hit_rate == pytest.approx(hit_rate, rel=ULP, abs=0)
    assert found.l2_bytes == pytest.approx(l2_bytes, rel=ULP, abs=0)
    assert found.dram_bytes == pytest.approx(dram_bytes, rel=ULP, abs=0)
    assert small_row_factor(shape.width) == factor
    expected_s = max(V100.dram_time_s(dram_bytes), l2_bytes / V100.l2_bytes_per_s)
    assert found.latency_s == pytest.approx(factor * expected_s, rel=1e-12)


def test_operation_count_keeps_the_last_values_of_a_row():
    shape = EmbeddingShape(2, 10, 1, 3, 6)
    found = estimate(shape, V100, "backward-sgd", options=KernelOptions(version="plain"))
    assert found.multiply_adds == 2 * 3 * 6  # the original drops the last two of six


def test_indices_read_again_without_shared_memory():
    shape = EmbeddingShape(2048, 1000, 4, 32, 64, 128)
    with_shared = estimate(shape, V100, options=KernelOptions(version="resident"))
    without = estimate(
        shape, V100, options=KernelOptions(version="resident", uses_shared_memory=False)
    )
    # 16 threads are needed, 1024 / 128 = 8 are there: each index is read twice.
    assert without.l2_bytes - with_shared.l2_bytes == 4 * 2048 * 2 * in_sectors(4 * 32)


shapes = st.builds(
    EmbeddingShape,
    batch=st.integers(1, 4096),
    rows=st.integers(1, 100_000),
    tables=st.integers(1, 64),
    lookups=st.integers(1, 128),
    width=st.integers(1, 256),
    rows_per_block=st.integers(1, 64),
)


@settings(deadline=None, max_examples=60)
@given(
    shape=shapes,
    version=st.sampled_from(VERSIONS),
    which=st.sampled_from(["forward", "backward-sgd"]),
)
def test_estimates_are_sound(shape, version, which):
    found = estimate(shape, V100, which, options=KernelOptions(version=version))
    assert 0.0 <= found.hit_rate <= 1.0
    assert found.dram_bytes > 0
    assert found.l2_bytes >= 0
    assert found.latency_s > 0
    if version in ("cold-start", "lru"):
        # A cache never adds DRAM traffic.
        uncached = estimate(shape, V100, which, options=KernelOptions(version="curve"))
        assert found.dram_bytes <= uncached.dram_bytes * (1 + 1e-12)


@settings(deadline=None, max_examples=60)
@given(shape=shapes, name=st.sampled_from(["tables", "lookups", "batch"]))
def test_more_work_takes_no_less_time(shape, name):
    flat = dataclasses.replace(V100, dram_curve=None)
    more = dataclasses.replace(shape, **{name: 2 * getattr(shape, name)})
    # With longer bags the results take a smaller part of the cache, and a larger batch has fewer
    # tables in flight: hits may grow faster than the work. More tables never help.
    versions = {
        "tables": ["plain", "lru"], "lookups": ["plain", "cold-start"], "batch": ["plain"],
    }[name]  # fmt: skip
    for version in versions:
        options = KernelOptions(version=version)
        before = estimate(shape, flat, options=options).latency_s
        assert estimate(more, flat, options=options).latency_s >= before * (1 - 1e-9)


def test_a_table_that_fits_is_found_in_the_cache():
    small = EmbeddingShape(4096, 1000, 2, 64, 64)
    assert estimate(small, V100, options=KernelOptions(version="lru")).hit_rate > 0.999
    assert estimate(small, V100, options=KernelOptions(version="resident")).hit_rate == 1.0


def test_fewer_rows_than_lookups():
    shape = EmbeddingShape(4, 3, 1, 8, 32)
    assert estimate(shape, V100, options=KernelOptions(version="resident")).hit_rate == 1.0
    assert cold_start_hit_rate(1, 1, 32) == pytest.approx(31 / 32)


def test_what_is_not_described_is_refused():
    shape = EmbeddingShape(2, 2, 2, 2, 2)
    with pytest.raises(UsageError, match="row-wise Adagrad"):
        estimate(shape, V100, "backward-adagrad", options=KernelOptions(version="resident"))
    with pytest.raises(UsageError, match="CPUs only"):
        estimate(shape, V100, "backward-dense")
    with pytest.raises(DataError, match="batch is 0"):
        EmbeddingShape(0, 1, 1, 1, 1)
    with pytest.raises(DeviceError, match="it is a cpu"):
        kernel_device("epyc-avx2-1c")


def test_devices_come_from_measurements_then_from_data_sheets():
    assert kernel_device("v100") is not kernel_device("v100-reference")
    assert kernel_device("v100").dram_bytes_per_s == 816.953e9
    assert kernel_device("h100").source.startswith("data sheet")
