"""Work of kernels: recomputed by hand, and beside what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.gpu_kernels.account.attention import pairs_looked_at
from cdmpp.analytic.gpu_kernels.calls import (
    FAMILIES,
    Collective,
    DecodeAttention,
    Gemm,
    PrefillAttention,
    make_call,
)
from cdmpp.analytic.gpu_kernels.families import columns_of, work_on
from cdmpp.analytic.gpu_kernels.measured import read_measured
from cdmpp.analytic.gpu_kernels.serving_calls import EXCHANGE_MODES, MoeExchange, OneShotReduce
from cdmpp.devices.registry import get_device
from cdmpp.errors import DeviceError, UsageError
from cdmpp.files.atomic import write_columns
from tests.analytic.gpu_kernels.made_kernels import prior_s
from tests.paths import shared

H100 = get_device("h100")


def test_floor_of_a_large_product_is_its_operations_at_peak():
    work = work_on(
        "gemm", columns_of([Gemm(8192, 8192, 8192), Gemm(8192, 8192, 8192, "fp8")]), H100
    )
    assert work.floor_s == pytest.approx([2 * 8192**3 / 989.4e12, 2 * 8192**3 / 1978.9e12])
    assert work.bound == ["compute", "compute"]
    assert np.all(prior_s(work) > work.floor_s)


def test_waves_of_a_product_are_those_of_its_tiles():
    """66 tiles of 256 x 256 in two parts fill an H100's 132 cores once; more begin again."""
    full, one_more = Gemm(128 * 12, 256 * 11, 4096), Gemm(128 * 13, 256 * 11, 4096)
    work = work_on("gemm", columns_of([full, one_more]), H100)
    assert np.exp(work.inputs["use"][0]) == pytest.approx(1.0)
    assert np.exp(work.inputs["waves"]) == pytest.approx([1.0, 3.0])
    busiest = work.terms["busiest"]
    assert busiest[0] == pytest.approx(work.limits["compute"][0])
    assert busiest[1] == pytest.approx(1.5 * busiest[0])


@pytest.mark.parametrize(
    ("length", "past", "window"), [(7, 0, 100), (7, 3, 5), (9, 0, 4), (4, 9, 3)]
)
def test_pairs_are_counted_token_by_token(length, past, window):
    by_hand = sum(min(past + i, window) for i in range(1, length + 1))
    found = pairs_looked_at(*(np.array([float(x)]) for x in (length, past, window)))
    assert found[0] == by_hand


def test_decode_reads_its_cache():
    call = DecodeAttention(64, 8192, 32, 8, 128)
    work = work_on("decode", columns_of([call]), H100)
    cache = 64 * 8192 * 8 * 128 * 2 * 2
    own = 64 * 128 * (2 * 32 + 2 * 8) * 2
    expected = (cache + own - H100.l2_bytes) / H100.mem_bandwidth_bytes_per_s
    assert work.limits["memory"][0] == pytest.approx(expected)
    assert work.bound == ["memory"]


def test_windows_and_small_caches_make_attention_shorter():
    wide, narrow, small = (
        DecodeAttention(64, 8192, 32, 8, 128, window=window, kv_dtype=dtype)
        for window, dtype in ((0, "bfloat16"), (128, "bfloat16"), (0, "fp8"))
    )
    work = work_on("decode", columns_of([wide, narrow, small]), H100)
    seconds = prior_s(work)
    assert seconds[1] < seconds[2] < seconds[0]


def test_an_exchange_sends_a_token_once_to_each_rank_and_node():
    """Two experts of four nodes: 1.75 nodes and 31 / 16 ranks, three quarters of them elsewhere."""
    calls = [MoeExchange("combine", 1024, 4096, 2, 64, 4, mode) for mode in EXCHANGE_MODES]
    columns = {**columns_of(calls), "release": np.zeros(2)}
    terms = work_on("exchange", columns, H100).terms
    once = 1024 * 4096 * 2
    ranks = 32 * (1 - (31 / 32) ** 2)
    assert terms["network"] == pytest.approx(np.array([1.75, 2.0]) * 0.75 * once / 50e9)
    assert terms["link"] == pytest.approx(np.array([ranks, 2.0]) * once / 450e9)


def test_gpus_on_pcie_wait_for_each_other_one():
    columns = {**columns_of([OneShotReduce(2**20, 2), OneShotReduce(2**20, 8)])}
    for name, rounds in (("l40s", [1, 7]), ("h100", [0, 0])):
        work = work_on("one_shot", {**columns, "release": np.zeros(2)}, get_device(name))
        assert work.terms["rounds"] == pytest.approx(np.array(rounds) * 3e-6)


def test_all_reduces_of_a_machine_slower_than_its_links_are_judged_only(tmp_path):
    """Two L40S at half the rate of their links, four at a tenth."""
    sizes = 2 ** np.arange(10, 30)
    gpus = np.repeat([2, 4], len(sizes))
    moved = 2 * np.tile(sizes, 2) * 2 * (gpus - 1) / gpus
    share = np.where(gpus == 2, 0.5, 0.1)
    count = len(gpus)
    write_columns(tmp_path / "allreduce.parquet", {
        "message_size": np.tile(sizes, 2), "num_gpus": gpus,
        "kernel_source": np.full(count, "TRTLLM"), "table": np.full(count, "custom_allreduce"),
        "system": np.full(count, "l40s"), "framework": np.full(count, "TRTLLM"),
        "version": np.full(count, "1.0.0"), "latency_s": 1e-5 + moved / (share * 31.5e9),
    })  # fmt: skip
    measured = read_measured(tmp_path, "one_shot")
    gpus_kept = measured.table.columns["gpus"]
    assert np.array_equal(measured.is_evaluated_only, gpus_kept == 4)
    every = np.ones(len(gpus_kept), np.bool_)
    model = measured.fit(every, seed=0)
    assert model.near is not None
    assert len(model.near.device) == np.sum(gpus_kept == 2)
    ratio = measured.predicted_s(model, every) / measured.table.latency_s
    assert np.median(ratio[(gpus_kept == 4) & (measured.work.size > 2**26)]) < 0.5


def test_collectives_pass_the_link():
    calls = [Collective("all_gather", 2**29, 8), Collective("all_reduce", 2**29, 8)]
    work = work_on("collective", columns_of(calls), H100)
    assert work.floor_s == pytest.approx([2**29 * 7 / 8 / 450e9, 2**29 / 450e9])


@pytest.mark.parametrize("family", FAMILIES)
def test_no_kernel_was_faster_than_its_floor(family):
    """But for rows that say so themselves: 292 of B200 in SGLang, 222 of the L40S, one product."""
    measured = read_measured(shared("gpu-kernels"), family)
    assert np.all(measured.table.latency_s >= measured.work.floor_s)
    impossible = [why for why in measured.left_out if "below the floor" in why]
    assert sum(measured.left_out[why] for why in impossible) < 6300
    assert np.all(np.isfinite(np.stack(list(measured.work.inputs.values()))))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gemm(0, 4, 4), "m is 0"),
        (lambda: Gemm(4, 4, 4, "float64"), "dtype is 'float64'"),
        (lambda: PrefillAttention(1, 8, 6, 4, 64), "do not divide"),
        (lambda: Collective("all_reduce", 8, 1), "at least 2"),
        (lambda: make_call("conv", {}), "no kernel 'conv'"),
        (lambda: make_call("gemm", {"m": "4"}), "n, k missing"),
        (lambda: make_call("decode", {"batch": "1", "length": "4"}), "context"),
        (lambda: make_call("gemm", {"m": "x", "n": "4", "k": "4"}), "m is 'x'"),
        (lambda: make_call("gemm", {"m": "--5", "n": "4", "k": "4"}), "m is '--5'"),
    ],
)
def test_wrong_calls_are_refused_in_a_sentence(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_gpu_without_the_pipe_is_refused():
    with pytest.raises(DeviceError, match="nvfp4 on 'a100-sxm'"):
        work_on("gemm", columns_of([Gemm(8, 8, 8, "nvfp4")]), get_device("a100_sxm"))
    with pytest.raises(DeviceError, match="it is a cpu"):
        work_on("gemm", columns_of([Gemm(8, 8, 8)]), get_device("epyc-avx512-2c"))
