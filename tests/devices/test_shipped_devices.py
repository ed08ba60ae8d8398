"""The numbers of the shipped devices: sourced, in range, and consistent with one another."""

from __future__ import annotations

from dataclasses import fields

import pytest
import yaml

from cdmpp.devices.device_file import normal_name
from cdmpp.devices.occupancy import occupancy_limits
from cdmpp.devices.registry import load_aliases, load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.vector import DEVICE_VECTOR_NAMES
from tests.paths import ROOT, SHARED_DATA

FOLDER = ROOT / "cdmpp" / "devices"
SHARED = SHARED_DATA
DEVICES = load_registry()
NVIDIA = [spec for spec in DEVICES.values() if spec.vendor == "NVIDIA"]
AMD_GPUS = [spec for spec in DEVICES.values() if spec.vendor == "AMD" and spec.kind == "gpu"]
CPUS = [spec for spec in DEVICES.values() if spec.kind == "cpu"]

#: compute capability -> (fp32 lanes, fp16 rate / fp32 rate, dense tensor flop a clock) of one SM.
#: CUDA C++ Programming Guide, arithmetic throughput; architecture white papers (tensor).
NVIDIA_RATES = {
    "3.7": (192, None, None),
    "6.0": (64, 2, None),
    "6.1": (128, None, None),
    "7.0": (64, 2, 1024),
    "7.5": (64, 2, 1024),
    "8.0": (64, 4, 2048),
    "8.6": (128, 1, 1024),
    "8.9": (128, 1, 1024),
    "9.0": (128, 2, 4096),
    "10.0": (128, None, 8192),
    "10.3": (128, None, 8192),
    "12.0": (128, 1, 1024),
}
#: Boards whose tensor cores sum in fp32 at half the rate.
HALF_RATE = ("rtx2080ti", "rtx3080", "rtx3090", "rtx4090", "rtx5090", "a10g")
#: instruction set -> (fp32, dense fp16 matrix) flop a clock of one compute unit.
#: ROCm documentation, GPU hardware specifications; CDNA white papers.
AMD_RATES = {"gfx942": (256, 2048), "gfx950": (256, 4096)}


def by_name(spec: DeviceSpec) -> str:
    return spec.name


def test_what_is_there() -> None:
    wanted = (
        "k80 p4 p100 v100 gv100 titan-xp titan-v t4 gtx1650 rtx2080ti rtx3080 rtx3090 a10 "
        "a100-40gb a100-80gb l4 h100 h200 mi50 mi100 mi210 hl-100 e5-2673 epyc-7452 platinum-8272 "
        "graviton2 ryzen-3700x i7-3770 platinum-8124m cortex-a72"
    )
    assert set(wanted.split()) <= set(DEVICES)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the project's shared data are not here")
def test_every_label_of_the_data_is_known() -> None:
    labels = {path.name.split(".")[0] for path in (SHARED / "autotvm").glob("*.json.gz")}
    labels |= {path.name for path in (ROOT / "data" / "ansor-gpu" / "measure_records").iterdir()}
    assert labels
    assert labels <= set(DEVICES)


@pytest.mark.parametrize("spec", DEVICES.values(), ids=by_name)
def test_every_value_has_a_source(spec: DeviceSpec) -> None:
    for field in fields(DeviceSpec):
        if field.name in ("name", "kind", "sources"):
            continue
        known = getattr(spec, field.name) is not None
        assert known == (len(spec.sources.get(field.name, "")) > 5), field.name
    assert not any("://" in source for source in spec.sources.values())


def test_names_are_said_once() -> None:
    contents = [yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yaml")]
    names = [label for content in contents for label in content["devices"]]
    for content in contents:
        for entries in content["devices"].values():
            names += entries.get("aliases", [])
    assert len(set(names)) == len(names)
    assert [normal_name(name) for name in names] == names
    assert set(names) == set(DEVICES) | set(load_aliases())


@pytest.mark.parametrize("spec", NVIDIA, ids=by_name)
def test_peaks_of_nvidia_follow_from_cores_and_clock(spec: DeviceSpec) -> None:
    lanes, fp16_ratio, tensor_flop = NVIDIA_RATES[spec.compute_capability or ""]
    if spec.name == "h20":  # its published peak does not follow from its cores and clock
        return
    assert spec.core_count
    assert spec.clock_hz
    assert spec.peak_fp32_flop_per_s
    cycles_per_s = spec.core_count * spec.clock_hz
    assert spec.peak_fp32_flop_per_s == pytest.approx(2 * lanes * cycles_per_s, rel=0.005)
    if fp16_ratio is None:
        assert spec.peak_fp16_flop_per_s is None
    else:
        assert spec.peak_fp16_flop_per_s == pytest.approx(fp16_ratio * spec.peak_fp32_flop_per_s)
    if spec.peak_tensor_flop_per_s is None:
        assert tensor_flop is None or spec.name == "gtx1650"  # a Turing without tensor cores
        return
    assert tensor_flop is not None
    share = spec.peak_tensor_flop_per_s / (tensor_flop * cycles_per_s)
    if spec.compute_capability in ("9.0", "10.0", "10.3"):
        assert 0.86 < share < 0.98  # the data sheet's tensor clock is lower
    else:
        assert share == pytest.approx(0.5 if spec.name in HALF_RATE else 1, rel=0.001)


@pytest.mark.parametrize("spec", [*NVIDIA, *AMD_GPUS], ids=by_name)
def test_peaks_of_matrix_units_double_as_the_type_halves(spec: DeviceSpec) -> None:
    tensor, bf16 = spec.peak_tensor_flop_per_s, spec.peak_bf16_flop_per_s
    fp8, fp4 = spec.peak_fp8_flop_per_s, spec.peak_fp4_flop_per_s
    assert bf16 is None or bf16 == pytest.approx(tensor)
    assert fp8 is None or fp8 == pytest.approx(2 * (bf16 or 0), rel=1e-3)
    if fp4 is not None:
        assert fp8 is not None
        assert 1.99 * fp8 < fp4 < 4.01 * fp8


@pytest.mark.parametrize("spec", DEVICES.values(), ids=by_name)
def test_links_and_watts_are_possible(spec: DeviceSpec) -> None:
    if spec.link_bandwidth_bytes_per_s is not None:
        assert 15e9 <= spec.link_bandwidth_bytes_per_s <= 900e9
        assert spec.link_bandwidth_bytes_per_s < (spec.mem_bandwidth_bytes_per_s or 0) / 4
    if spec.tdp_w is not None:
        assert 60 <= spec.tdp_w <= 1400


@pytest.mark.parametrize("spec", NVIDIA, ids=by_name)
def test_multiprocessors_of_nvidia_are_those_of_their_capability(spec: DeviceSpec) -> None:
    limits = occupancy_limits(spec.compute_capability or "")
    assert spec.warp_size == limits.warp_size == 32
    assert spec.registers_per_core == limits.registers_per_core
    assert spec.shared_mem_bytes_per_core == limits.shared_bytes_per_core
    assert spec.l1_bytes is not None
    if spec.architecture != "pascal":  # elsewhere L1 and shared memory are one array
        assert spec.shared_mem_bytes_per_core < spec.l1_bytes


@pytest.mark.parametrize("spec", AMD_GPUS, ids=by_name)
def test_peaks_of_amd_follow_from_cores_and_clock(spec: DeviceSpec) -> None:
    assert spec.core_count
    assert spec.clock_hz
    assert spec.warp_size == 64
    cycles_per_s = spec.core_count * spec.clock_hz
    fp32, matrix = AMD_RATES.get(spec.compute_capability or "", (128, 1024))
    assert spec.peak_fp32_flop_per_s == pytest.approx(fp32 * cycles_per_s, rel=0.001)
    if spec.peak_tensor_flop_per_s is not None:
        assert spec.peak_tensor_flop_per_s == pytest.approx(matrix * cycles_per_s, rel=0.001)


@pytest.mark.parametrize("spec", [*NVIDIA, *AMD_GPUS], ids=by_name)
def test_ranges_of_gpus(spec: DeviceSpec) -> None:
    assert spec.core_count is not None
    assert 10 <= spec.core_count <= 304
    assert spec.clock_hz is not None
    assert 0.8e9 <= spec.clock_hz <= 2.6e9
    assert spec.mem_bandwidth_bytes_per_s is not None
    assert 1e11 <= spec.mem_bandwidth_bytes_per_s <= 8e12
    assert spec.peak_fp32_flop_per_s is not None
    # A bandwidth in bits, or the rate of a link instead of the memory's, would fall out of this.
    assert 0.008 < spec.mem_bandwidth_bytes_per_s / spec.peak_fp32_flop_per_s < 0.11
    assert spec.mem_bytes is not None
    assert spec.mem_bytes % 2**30 == 0
    assert 4 <= spec.mem_bytes // 2**30 <= 288
    assert spec.l2_bytes is None or 2**20 <= spec.l2_bytes <= 128 * 2**20
    assert spec.registers_per_core in (65536, 131072)
    assert spec.threads is None
    assert spec.simd_bits is None


@pytest.mark.parametrize("spec", CPUS, ids=by_name)
def test_ranges_of_cpus(spec: DeviceSpec) -> None:
    assert spec.simd_bits in (128, 256, 512)
    assert spec.l1_bytes in (32768, 49152, 65536)
    assert spec.l2_bytes is None or 2**18 <= spec.l2_bytes <= 2**21
    assert spec.l3_bytes is None or spec.l2_bytes is None or spec.l3_bytes > 4 * spec.l2_bytes
    assert spec.warp_size is None
    assert spec.compute_capability is None
    if spec.mem_bandwidth_bytes_per_s is not None:
        assert 1e10 <= spec.mem_bandwidth_bytes_per_s <= 7e11
    assert (spec.peak_fp32_flop_per_s is None) == (spec.name in ("cortex-a72", "axion"))
    if spec.threads is not None and spec.peak_fp32_flop_per_s is not None:
        assert spec.core_count is not None
        assert spec.threads <= spec.core_count
        # At most two fused multiply-adds (4 operations) of full width a cycle, 6 GHz.
        most = spec.threads * 6e9 * spec.simd_bits / 32 * 4
        assert spec.peak_fp32_flop_per_s < most


@pytest.mark.parametrize(
    ("label", "flop_per_cycle"),
    [
        ("ryzen-3700x", 16),  # SSE2 on two multipliers and two adders of 4 lanes
        ("i7-3770", 8),  # SSE2 on one multiplier and one adder of 4 lanes
        ("platinum-8124m", 64),  # two FMA of 16 lanes
        ("e5-2673", 32),  # two FMA of 8 lanes
        ("platinum-8272", 64),
        ("epyc-7452", 32),
        ("graviton2", 16),  # two FMA of 4 lanes
        ("graviton3", 32),  # two FMA of 8 lanes (SVE)
        ("graviton4", 32),  # four FMA of 4 lanes
        ("altra-q80-30", 16),
        ("epyc-7r13", 32),
        ("epyc-9r14", 32),  # Zen 4 does a 512-bit FMA in two halves
        ("epyc-9654", 32),
        ("epyc-9965", 64),
        ("platinum-8375c", 64),
        ("platinum-8488c", 64),
        ("platinum-8592plus", 64),
        ("xeon-6972p", 64),
        ("xeon-avx512-2c", 64),
        ("xeon-avx512-1c", 64),
        ("xeon-avx2-2c", 32),
        ("xeon-avx2-1c", 32),
    ],
)
def test_peaks_of_cpus_follow_from_threads_and_clock(label: str, flop_per_cycle: int) -> None:
    spec = DEVICES[label]
    assert spec.threads
    assert spec.clock_hz
    expected = spec.threads * spec.clock_hz * flop_per_cycle
    assert spec.peak_fp32_flop_per_s == pytest.approx(expected)


def test_no_value_that_a_model_sees_is_from_the_labels_own_records() -> None:
    """What the judged programs reached says something of their latencies; a new device has no such
    number.
    """
    seen = {name.removeprefix("log2_") for name in DEVICE_VECTOR_NAMES}
    leaks = [
        f"{label}.{field}: {source}"
        for label, spec in DEVICES.items()
        for field, source in spec.sources.items()
        if field in seen and "records" in source.split(";")[0]
    ]
    assert not leaks


def test_what_cannot_be_known_is_unknown() -> None:
    board = DEVICES["cortex-a72"]
    assert board.clock_hz is None
    assert board.peak_fp32_flop_per_s is None  # was the best rate in its records: a label
    assert board.threads is None
    assert board.core_count is None
    assert board.mem_bandwidth_bytes_per_s is None
    assert board.l2_bytes is None
    goya = DEVICES["hl-100"]
    assert goya.clock_hz is None
    assert goya.peak_fp32_flop_per_s is None
    assert DEVICES["k80"].mem_bandwidth_bytes_per_s == 240e9  # one of the board's two GPUs
    assert DEVICES["k80"].peak_tensor_flop_per_s is None
