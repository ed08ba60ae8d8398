"""Kernels of AMD's library and of one with a single tile, and kernels that were not timed right."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.analytic.gpu_kernels.calls import (
    FAMILIES,
    DecodeAttention,
    Gemm,
    MoeLayer,
    PrefillAttention,
)
from cdmpp.analytic.gpu_kernels.families import columns_of, work_of_rows, work_on
from cdmpp.analytic.gpu_kernels.measured import host_timed, read_measured
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.gpu_kernels.table import families_in, read_kernels
from cdmpp.devices.registry import get_device
from cdmpp.errors import UsageError
from tests.analytic.gpu_kernels.made_kernels import SYSTEMS, write_kernels
from tests.paths import ROOT

DATA = ROOT / "data" / "gpu-kernels"
H100, H20, MI300X, MI350X = map(get_device, ("h100", "h20", "mi300x", "mi350x"))
SMALL, LARGE = Gemm(16, 4096, 4096, "fp8_block"), Gemm(4096, 8192, 8192, "fp8_block")


def test_products_that_were_timed_eagerly_are_left_out_and_counted():
    """vLLM's fp8 in blocks on B300 and H100: all of it, and no other product."""
    measured = read_measured(DATA, "gemm")
    assert measured.left_out == {
        "b300 vllm 0.24.0 fp8_block: the host was timed": 4047,
        "h100 vllm 0.24.0 fp8_block: the host was timed": 5371,
        "below the lower bound of its GPU": 1,
    }
    table = measured.table
    assert len(table) == 128_000 - 4047 - 5371 - 1
    in_blocks = table.columns["dtype"] == "fp8_block"
    assert set(table.device[in_blocks]) == {"b200", "gb300", "l40s", "rtx-pro-6000"}


@pytest.mark.parametrize(("floor_s", "count"), [(0.0, 0), (30e-6, 0), (57e-6, 1)])
def test_a_host_floor_is_found_in_the_times(tmp_path, floor_s, count):
    table = read_kernels(write_kernels(tmp_path), "gemm")
    known = {get_device(name).name: get_device(name) for name in SYSTEMS}
    work = work_of_rows("gemm", table.columns, table.device, known)
    own = table.device == "h100"
    seconds = np.where(own, np.maximum(table.latency_s, floor_s), table.latency_s)
    found = host_timed(replace(table, latency_s=seconds), work)
    assert len(found) == count
    assert all(np.array_equal(rows, own) for rows in found.values())


def test_a_folder_needs_no_libraries(tmp_path):
    assert families_in(write_kernels(tmp_path)) == list(FAMILIES)
    assert families_in(DATA) == [*FAMILIES, "gemm_tuned", "gemm_tile", "moe_tuned"]


def test_products_of_amd_are_those_of_its_library():
    model = GpuKernels.packaged()
    ours = model.times([SMALL, LARGE], MI350X)
    named = model.times([SMALL, LARGE], MI350X, software="aiter")
    assert np.array_equal(ours.latency_s, named.latency_s)
    other = model.times([SMALL, LARGE], MI350X, software="trtllm")
    assert not np.array_equal(ours.latency_s, other.latency_s)
    assert model.times([LARGE], MI300X).latency_s > ours.latency_s[1]
    older = get_device("mi210")
    assert np.array_equal(
        *(model.times([Gemm(64, 4096, 4096)], older, software=name).latency_s
          for name in (None, "trtllm"))
    )  # fmt: skip
    decode = DecodeAttention(16, 2048, 32, 8, 128)
    assert not model.times([SMALL, decode], MI350X).is_seen_device


def test_a_type_that_was_not_measured_on_a_device_is_said():
    model = GpuKernels.packaged()
    seen = {
        (device.name, dtype): model.times([Gemm(64, 4096, 4096, dtype)], device).is_seen_device
        for device in (MI300X, MI350X, get_device("mi355x"), H100)
        for dtype in ("bfloat16", "fp8_block")
    }
    assert seen == {
        ("mi300x", "bfloat16"): False, ("mi300x", "fp8_block"): True,
        ("mi350x", "bfloat16"): True, ("mi350x", "fp8_block"): True,
        ("mi355x", "bfloat16"): False, ("mi355x", "fp8_block"): False,
        ("h100", "bfloat16"): True, ("h100", "fp8_block"): False,
    }  # fmt: skip


def test_fp8_of_a_library_is_that_of_scaled_input():
    model = GpuKernels.packaged()
    for device, software in ((MI350X, None), (H20, "pipeweave")):
        plain, scaled = (
            model.times([Gemm(64, 4096, 4096, dtype)], device, software=software).latency_s
            for dtype in ("fp8", "fp8_static")
        )
        assert np.array_equal(plain, scaled)


def test_one_tile_is_what_an_h20_waits_for():
    """A product of four rows takes the time of 128 on one core."""
    few, full = Gemm(4, 384, 2048, "fp8_static"), Gemm(128, 384, 2048, "fp8_static")
    work = work_on("gemm_tile", columns_of([few, full]), H20)
    core_flop_per_s = 296e12 / 78
    assert work.terms["busiest"] == pytest.approx(2 * 128 * 128 * 2048 / core_flop_per_s)
    times = GpuKernels.packaged().times([few], H20, software="pipeweave")
    assert times.is_seen_device
    assert times.latency_s == pytest.approx(22.2e-6, rel=0.1)  # measured: 22.2 us
    assert GpuKernels.packaged().times([few], H20).latency_s != pytest.approx(times.latency_s)


def test_products_in_blocks_have_a_weight_of_their_own():
    blocks, plain = (
        work_on("gemm_tuned", columns_of([replace(LARGE, dtype=dtype)]), MI350X).terms
        for dtype in ("fp8_block", "fp8_static")
    )
    assert blocks["longest"] == plain["longest_in_blocks"] == 0
    assert blocks["longest_in_blocks"] == plain["longest"] > 0


LAYER = MoeLayer(128, 7168, 2048, 8, 256, 8, dtype="fp8_block")


def test_expert_layers_of_amd_are_those_of_its_library():
    model = GpuKernels.packaged()
    ours = model.times([LAYER], MI350X)
    assert ours.is_seen_device
    assert ours.floor_s < ours.low_s < ours.latency_s < ours.high_s
    assert np.array_equal(ours.latency_s, model.times([LAYER], MI350X, software="aiter").latency_s)
    assert ours.latency_s != model.times([LAYER], MI350X, software="vllm").latency_s
    other = replace(LAYER, dtype="nvfp4")
    assert not model.times([other], MI300X).is_seen_device
    plain, tuned = (model.times([LAYER], H100, software=name) for name in (None, "aiter"))
    assert plain.latency_s != tuned.latency_s


def test_a_rank_of_eight_is_a_layer_with_an_eighth_of_each_expert():
    whole = replace(LAYER, inter=256, tensor_parallel=1)
    times = GpuKernels.packaged().times([LAYER, whole], MI300X)
    assert times.latency_s[0] == times.latency_s[1]


@pytest.mark.parametrize(
    ("kernel", "version", "named"), [("triton", None, "'triton'"), ("", "0.24.0", "'0.24.0'")]
)
def test_the_library_chooses_its_kernel_itself(kernel, version, named):
    model, call = GpuKernels.packaged(), replace(LAYER, kernel=kernel)
    with pytest.raises(UsageError, match=f"{named}.*not supported.*choose a framework"):
        model.times([call], MI300X, version=version)
    assert model.times([call], MI300X, software="vllm", version=version).latency_s > 0


def test_drawn_tokens_hit_fewer_experts_than_even_ones():
    """32 tokens that draw 8 of 256 experts hit 256 (1 - (1 - 1/32)^32) = 163.3 of them."""
    layer = MoeLayer(32, 4096, 1024, 8, 256)
    work = work_on("moe_tuned", columns_of([layer]), MI350X)
    weight = 3 * 4096 * 1024 * 2
    tokens = 2 * 32 * 8 * (4096 + 1024)
    assert work.terms["memory"] == pytest.approx((163.3 * weight + tokens) / 8e12, rel=1e-3)
    deviation = np.sqrt(163.3 * (1 - 163.3 / 256))
    least = (163.3 - 3 * deviation) * weight - 33554432
    assert work.limits["memory"] == pytest.approx(least / 8e12, rel=1e-3)


def test_shapes_of_expert_layers_are_left_out_whole_and_each_once():
    measured = read_measured(DATA, "moe_tuned")
    assert measured.left_out == {
        "fp8 with scales per 32 elements, an unsupported type": 64,
        "weights of the experts applied before the last product": 7,
        "below the lower bound of its GPU": 2,
    }
    parts = np.array(measured.held_shapes(0))
    assert np.array_equal(parts.sum(axis=0), np.ones(1303 - 64 - 7 - 2))
    names = ("hidden", "inter", "experts", "top_k")
    sizes = np.stack([measured.table.columns[name] for name in names], axis=1)
    for part in parts:
        inside, outside = (set(map(tuple, sizes[rows])) for rows in (part, ~part))
        assert inside
        assert not inside & outside


def test_prefill_on_b200_has_a_window_or_was_not_timed_right():
    measured = read_measured(DATA, "prefill")
    assert sorted(measured.left_out.values()) == [1113, 1608]
    own = measured.table.device == "b200"
    assert own.sum() == 6000 - 1113 - 1608
    assert np.all(measured.table.columns["window"][own] > 0)
    call = PrefillAttention(4, 4096, 32, 8, 128, window=128)
    model, b200 = GpuKernels.packaged(), get_device("b200")
    assert model.times([call], b200, software="sglang").is_seen_device
    assert not model.times([replace(call, window=0)], b200).is_seen_device


@pytest.mark.parametrize(
    ("family", "most"), [("gemm_tuned", 0.1), ("gemm_tile", 0.05), ("moe_tuned", 0.06)]
)
def test_the_packaged_model_fits_the_shipped_rows(family, most):
    measured = read_measured(DATA, family)
    packaged = GpuKernels.packaged().families[family]
    seconds = measured.predicted_s(packaged, np.ones(len(measured.table), np.bool_))
    assert np.mean(np.abs(seconds / measured.table.latency_s - 1.0)) < most


def test_the_card_says_whose_times_these_are():
    card = json.loads((GpuKernels.packaged_path() / "card.json").read_text())
    assert "MIT" in json.dumps(card["licences"])
    assert "best of tuned" in card["fitted_on"]
    assert all((GpuKernels.packaged_path() / name).exists() for name in card["files"])
