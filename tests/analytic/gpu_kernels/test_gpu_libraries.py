"""Products of AMD's library and of one with a single tile, and products that the host timed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.analytic.gpu_kernels.calls import FAMILIES, DecodeAttention, Gemm
from cdmpp.analytic.gpu_kernels.families import columns_of, work_of_rows, work_on
from cdmpp.analytic.gpu_kernels.measured import host_timed, read_measured
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.gpu_kernels.table import families_in, read_kernels
from cdmpp.devices.registry import get_device
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
        "below the floor of its GPU": 1,
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
    assert families_in(DATA) == [*FAMILIES, "gemm_tuned", "gemm_tile"]


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


@pytest.mark.parametrize(("family", "most"), [("gemm_tuned", 0.1), ("gemm_tile", 0.05)])
def test_the_packaged_model_fits_the_shipped_rows(family, most):
    measured = read_measured(DATA, family)
    assert not measured.left_out
    packaged = GpuKernels.packaged().families[family]
    seconds = measured.predicted_s(packaged, np.ones(len(measured.table), np.bool_))
    assert np.mean(np.abs(seconds / measured.table.latency_s - 1.0)) < most


def test_the_card_says_whose_times_these_are():
    card = json.loads((GpuKernels.packaged_path() / "card.json").read_text())
    assert "MIT" in json.dumps(card["licences"])
    assert "best of tuned" in card["fitted_on"]
    assert all((GpuKernels.packaged_path() / name).exists() for name in card["files"])
