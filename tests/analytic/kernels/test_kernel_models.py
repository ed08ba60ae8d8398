"""Data movement and the benchmark table."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.embedding.devices import kernel_device, measured_devices
from cdmpp.analytic.embedding.kernel_table import read_kernel_table, strip_unit
from cdmpp.analytic.embedding.shapes import EmbeddingShape
from cdmpp.analytic.kernels.data_movement import (
    concat_s,
    element_wise_operators,
    element_wise_s,
    host_copy_s,
    movement_s,
    transpose_s,
    tril_s,
)
from cdmpp.analytic.kernels.times import KernelCall, KernelTimes, kernel_names
from cdmpp.analytic.roofline.floor import least_kernel_s
from cdmpp.devices.registry import get_device, load_registry
from cdmpp.errors import DataError, DeviceError

V100 = measured_devices()["v100"]


def test_element_wise_kernels_are_limited_by_traffic_or_arithmetic():
    operators = element_wise_operators()
    n = 1e8
    assert element_wise_s(n, operators["add"], V100) == pytest.approx(12 * n / 816.953e9)
    assert element_wise_s(n, operators["relu"], V100) == pytest.approx(8 * n / 816.953e9)
    assert element_wise_s(n, operators["gelu-backward"], V100) == pytest.approx(
        255 * n / 15441.524e9
    )


def test_copies():
    assert concat_s(1e9, V100) == pytest.approx(2e9 / (0.79 * 816.953e9))
    assert host_copy_s(8.1e9, V100) == pytest.approx(1.0)
    other = kernel_device("t4")
    assert host_copy_s(8.1e9, other) == pytest.approx(1.0)
    assert "8.1 GB/s" in other.assumption
    assert not V100.assumption


def test_triangle_counts_what_is_kept():
    # 3 + 2 + 1 entries of a 4 x 4 matrix without its diagonal, 10 with it.
    without, with_diagonal = (tril_s(1, 4, 4, d, V100) for d in (0, 1))
    assert with_diagonal / without == pytest.approx(10 / 6)


def test_movements_go_by_name():
    sizes = {"batch": 2, "m": 8, "n": 16, "diagonal": 1}
    assert movement_s("transpose", sizes, V100) == transpose_s(2, 8, 16, V100)
    assert movement_s("tril", sizes, V100) == tril_s(2, 8, 16, 1, V100)
    assert movement_s("relu", {"elements": 1e8}, V100) == pytest.approx(8e8 / 816.953e9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("723.5GB/s", 723.5e9), ("12.5MB/s", 12.5e6), ("7B/s", 7.0), ("87.5%", 0.875),
        ("Low (2)", 2.0), ("(8)", 8.0), ("48KB", 49152.0), ("16B", 16.0), ("1.5e3", 1500.0),
        (" 4 ", 4.0),
    ],
)  # fmt: skip
def test_units_are_stripped(text, value):
    assert strip_unit(text) == pytest.approx(value)


def test_unknown_units_are_named():
    assert np.isnan(strip_unit(""))
    with pytest.raises(DataError, match="furlong"):
        strip_unit("3furlong")


def test_a_benchmark_table_is_read_and_filtered(tmp_path):
    path = tmp_path / "bench.csv"
    path.write_text(
        "kernel_name,batch_size,num_embeddings,num_tables,bag_size,embedding_dim,rows_per_block,"
        "dram_read_throughput,l2_hit_rate,kernel_runtime\n"
        "batched_embedding_forward,2048,1000000,8,100,64,4,700.1GB/s,12.5%,532.1\n"
        "gemv2T_kernel_val,2048,1,1,1,1,1,1GB/s,0%,5\n"
        "batched_embedding_forward,1,1000,8,10,64,4,70MB/s,90%,0\n"
    )
    table = read_kernel_table(path)
    path.write_text(path.read_text().replace("532.1", "0.5321ms"))
    assert read_kernel_table(path).latency_s == pytest.approx(table.latency_s)
    assert table.dropped == {"not an embedding kernel": 1, "no time": 1}
    assert table.latency_s == pytest.approx([532.1e-6])
    assert table.values["dram_read_throughput"] == pytest.approx([700.1e9])
    assert table.values["l2_hit_rate"] == pytest.approx([0.125])
    assert table.embedding_shapes() == [EmbeddingShape(2048, 1_000_000, 8, 100, 64, 4)]
    assert read_kernel_table(path, keep="none").dropped == {"no time": 1}
    kept = read_kernel_table(path, keep="none", least_batch=2, least_rows=100_000)
    assert kept.dropped == {"no time": 1, "num_embeddings below 100000": 1}
    with pytest.raises(DataError, match=r"no row left .*'batch_size below 4096': 1.*--least-batch"):
        read_kernel_table(path, least_batch=4096)


def test_a_benchmark_table_without_times_is_refused(tmp_path):
    path = tmp_path / "bench.csv"
    path.write_text("kernel_name,batch_size\nbatched_embedding,1\n")
    with pytest.raises(DataError, match="no column kernel_runtime"):
        read_kernel_table(path)


def test_no_kernel_takes_less_than_the_smallest_one_of_its_gpu() -> None:
    sizes = dict.fromkeys(("elements", "bytes", "batch", "m", "n", "k", "rows", "cols"), 1.0)
    sizes |= {"diagonal": 0.0, "tables": 1.0, "lookups": 1.0, "width": 1.0}
    for spec in load_registry().values():
        times = KernelTimes(spec)
        for kernel in kernel_names() if spec.kind == "gpu" else ():
            try:
                seconds = times.latency_s(KernelCall(kernel, sizes))
            except DeviceError:
                continue  # the registry knows too little of the device
            except DataError:
                continue  # another kernel's sizes
            assert seconds >= least_kernel_s(spec)


@pytest.mark.parametrize("size", [-1.0, float("nan"), float("inf")])
def test_sizes_that_are_no_sizes_are_refused(size: float) -> None:
    with pytest.raises(DataError, match=r"elements is .*; expected a number of at least 0"):
        KernelTimes(get_device("h100")).latency_s(KernelCall("relu", {"elements": size}))


def test_analytic_kernels_carry_the_errors_of_their_validation() -> None:
    """An interval used to read `7.90 ms [7.90, 7.90]`."""
    calls = [
        KernelCall("gemm", {"batch": 1, "m": 512, "n": 512, "k": 512}),
        KernelCall("softmax", {"rows": 4096, "cols": 512}),
        KernelCall("relu", {"elements": 1e6}),
    ]
    for label in ("v100-32gb", "h100"):  # fitted on, and not
        times = KernelTimes(get_device(label))
        for call in calls:
            seconds, low_s, high_s = times.interval_s(call)
            assert least_kernel_s(times.device) <= low_s < seconds < high_s < 20 * seconds
            assert seconds == times.latency_s(call)


def test_a_device_of_which_little_is_known_has_intervals_of_kernels_that_move() -> None:
    """An H20's clock is not in the registry; its bandwidth is all that moving needs."""
    call = KernelCall("relu", {"elements": 1e6})
    seconds, low_s, high_s = KernelTimes(get_device("h20")).interval_s(call)
    assert 0 < low_s <= seconds <= high_s
