"""The device registry and the device vector."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp import devices
from cdmpp.devices.device_file import load_device_spec, read_device_file
from cdmpp.devices.registry import (
    find_device,
    get_device,
    load_registry,
    resolve_devices,
    unknown_device,
    unknown_text,
)
from cdmpp.devices.spec import DeviceSpec, family, same_architecture
from cdmpp.devices.tables import device_text
from cdmpp.devices.vector import DEVICE_VECTOR_NAMES, device_vector
from cdmpp.errors import DeviceError
from tests.paths import ROOT

LABELS = [
    f"{cpu}-{isa}-{threads}c"
    for cpu in ("epyc", "xeon")
    for isa in ("avx512", "avx2")
    for threads in (1, 2)
]


def test_the_labels_of_the_default_dataset_are_known(tmp_path: Path) -> None:
    registry = load_registry()
    assert set(LABELS) <= set(registry)
    shipped = ROOT / "data" / "tenset-cpu" / "measure_records"
    assert {path.name for path in shipped.iterdir()} == set(LABELS)


def test_values_and_their_sources() -> None:
    spec = get_device("xeon-avx512-2c")
    assert spec.peak_fp32_flop_per_s == 294.4e9
    assert spec.mem_bandwidth_bytes_per_s == 28.8e9
    assert spec.clock_hz == 2.3e9
    assert spec.threads == 2
    assert spec.simd_bits == 512
    assert get_device("epyc-avx2-1c").clock_hz is None
    assert get_device("epyc-avx2-1c").peak_fp32_flop_per_s == 118.214e9


def test_an_unknown_label_names_the_nearest() -> None:
    with pytest.raises(DeviceError, match="did you mean 'xeon-avx512-2c'"):
        get_device("xeon-avx512-2")
    with pytest.raises(DeviceError, match="did you mean 'v100'"):  # in capitals it was hl-100
        get_device("V-100")


@pytest.mark.parametrize(
    ("target_kind", "kind"),
    [("llvm", "cpu"), ("cuda", "gpu"), ("rocm", "gpu"), ("hexagon", "accelerator")],
)
def test_the_fallback_of_an_unknown_device(target_kind: str, kind: str) -> None:
    spec, warning = unknown_device("new-thing", target_kind)
    assert spec.kind == kind
    assert "new-thing" in warning
    vector = device_vector(spec)
    half = len(vector) // 2
    names = DEVICE_VECTOR_NAMES[half:]
    known = {name for name, bit in zip(names, vector[half:], strict=True) if bit}
    assert known == {"known_is_gpu", "known_is_cpu", "known_is_accelerator"}
    assert vector[:half].sum() == 1


def test_resolving_keeps_label_order_and_warns() -> None:
    specs, warnings = resolve_devices({"z": "cuda", "epyc-avx2-1c": "llvm"})
    assert [spec.name for spec in specs] == ["epyc-avx2-1c", "z"]
    assert len(warnings) == 1


def test_vectors_of_the_labels_differ_and_are_moderate() -> None:
    vectors = np.stack([device_vector(get_device(label)) for label in LABELS])
    assert vectors.dtype == np.float32
    assert vectors.shape == (8, len(DEVICE_VECTOR_NAMES))
    assert len(np.unique(vectors, axis=0)) == 8
    assert np.abs(vectors).max() <= 3


@given(st.floats(1e6, 1e15), st.integers(1, 10_000))
def test_more_is_more_and_unknown_is_masked(rate: float, cores: int) -> None:
    spec = DeviceSpec(name="x", kind="gpu", mem_bandwidth_bytes_per_s=rate, core_count=cores)
    faster = replace(spec, mem_bandwidth_bytes_per_s=2 * rate, core_count=None)
    half = len(DEVICE_VECTOR_NAMES) // 2
    value = DEVICE_VECTOR_NAMES.index("log2_mem_bandwidth_bytes_per_s")
    count = DEVICE_VECTOR_NAMES.index("log2_core_count")
    first, second = device_vector(spec), device_vector(faster)
    assert np.isfinite(first).all()
    assert second[value] > first[value]
    assert first[half + value] == second[half + value] == 1
    assert (first[half + count], second[half + count]) == (1, 0)
    assert second[count] == 0


def test_compute_capability() -> None:
    place = DEVICE_VECTOR_NAMES.index("compute_capability")
    assert device_vector(DeviceSpec("t4", "gpu", compute_capability="7.5"))[place] == 0.75
    half = len(DEVICE_VECTOR_NAMES) // 2
    assert device_vector(DeviceSpec("mi50", "gpu", compute_capability="gfx906"))[half + place] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", "cannot read the device file"),
        ("devices: 3", "expected a mapping with `devices`"),
        ("device: {}\ndevices: {}", "unknown key 'device', did you mean 'devices'"),
        (
            "devices: {x: {kind: cpu, core_cout: {value: 1, source: s}}}",
            "did you mean 'core_count'",
        ),
        ("devices: {x: {kind: dog}}", "kind is 'dog'"),
        ("devices: {x: {}}", "kind is missing"),
        ("devices: {x: {kind: cpu, threads: 2}}", "expected {value: ..., source: ...}"),
        ("devices: {x: {kind: cpu, threads: {value: 2}}}", "expected {value: ..., source: ...}"),
        ("devices: {x: {kind: cpu, threads: {value: 0, source: s}}}", "expected a positive number"),
        ("devices: {x: {kind: cpu, threads: {value: 1.5, source: s}}}", "expected a whole number"),
        (
            "devices: {x: {kind: cpu, clock_hz: {value: fast, source: s}}}",
            "expected a positive number",
        ),
        (
            "devices: {x: {kind: gpu, mem_bandwidth_bytes_per_s: {value: 900, source: s}}}",
            "expected 1e+06 to 1e+18 a second",
        ),
        ("devices: {x: {kind: cpu, clock_hz: {value: 2.6, source: s}}}", "1e+11 Hz"),
        ("devices: {x: {kind: gpu, launch_s: {value: 2.6, source: s}}}", "1e-09 to 0.01 s"),
        ("devices: {x: {kind: cpu, aliases: y}}", "aliases: expected a list of names"),
        ("devices: {x: {kind: cpu, alias: [y]}}", "did you mean 'aliases'"),
    ],
)
def test_a_wrong_device_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(DeviceError) as caught:
        read_device_file(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_device_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "devices:\n  box:\n    kind: gpu\n    clock_hz: {value: 1.59e9, source: data sheet}\n"
        "    mem_bytes: {value: null, source: not told}\n"
    )
    spec = get_device("box", [tmp_path])
    assert spec.clock_hz == 1.59e9
    assert spec.mem_bytes is None
    assert spec.sources == {"clock_hz": "data sheet"}


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("t4", "t4"),
        ("Tesla T4", "t4"),
        ("a100", "a100-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("Tesla V100-PCIE-16GB", "v100"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("AMD Instinct MI210", "mi210"),
        ("EPYC_7452", "epyc-7452"),
    ],
)
def test_other_names_of_a_device(name: str, label: str) -> None:
    assert get_device(name).name == label


def test_data_keep_the_name_they_use() -> None:
    (spec,), warnings = resolve_devices({"a100": "cuda"})
    assert spec == replace(get_device("a100-40gb"), name="a100")
    assert not warnings


def test_a_board_that_is_not_described_is_not_taken_for_another() -> None:
    assert find_device("NVIDIA A100-PG509-200") is None
    assert find_device("NVIDIA A800") is None


def test_a_label_of_ones_own_wins_over_a_shipped_alias(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "devices: {a100: {kind: gpu, core_count: {value: 7, source: a slice}}}"
    )
    assert get_device("a100", [tmp_path]).core_count == 7
    assert get_device("a100").core_count == 108


def test_one_device_of_a_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("devices: {box: {kind: cpu, threads: {value: 3, source: me}}}")
    two.write_text("devices: {first: {kind: cpu}, second: {kind: gpu}}")
    assert load_device_spec(one).threads == 3
    assert load_device_spec(two, "second").kind == "gpu"
    with pytest.raises(DeviceError, match="has 2 devices, expected one; keep one of first, second"):
        load_device_spec(two)
    with pytest.raises(DeviceError, match="no device 'secnd', did you mean 'second'"):
        load_device_spec(two, "secnd")
    with pytest.raises(DeviceError, match="cannot read the device file"):
        load_device_spec(tmp_path / "none.yaml")


def test_a_long_value_stands_apart_from_its_source() -> None:
    spec = DeviceSpec("here", "cpu", architecture="ice-lake-server", sources={"architecture": "me"})
    assert "ice-lake-server me" in device_text(spec)


def test_what_shipped_models_see_of_their_devices_is_as_it_was() -> None:
    """Models were trained on these vectors; new facts of a device change no answer of theirs."""
    names = """
        a10 a100-40gb a100-80gb cortex-a72 e5-2673 epyc-7452 epyc-avx2-1c epyc-avx2-2c
        epyc-avx512-1c epyc-avx512-2c graviton2 gtx1650 gv100 h100 h200 hl-100 i7-3770 k80 l4
        mi100 mi210 mi50 p100 p4 platinum-8124m platinum-8272 rtx2080ti rtx3080 rtx3090
        ryzen-3700x t4 titan-v titan-xp v100 v100-32gb v100-sxm2 xeon-avx2-1c xeon-avx2-2c
        xeon-avx512-1c xeon-avx512-2c
    """
    vectors = np.stack([device_vector(get_device(label)) for label in names.split()])
    digest = hashlib.sha256(vectors.tobytes()).hexdigest()
    assert digest == "a209f8cdc0691277d8af3111843366b9a93c37b11484b93df1771f1e7246ad9c"
    facts = {
        "peak_bf16_flop_per_s": 1e15, "peak_fp8_flop_per_s": 2e15, "peak_fp4_flop_per_s": 4e15,
        "peak_int8_op_per_s": 2e15, "link_bandwidth_bytes_per_s": 1e11, "tdp_w": 700.0,
    }  # fmt: skip
    known = replace(get_device("v100"), **facts)  # type: ignore[arg-type]
    assert np.array_equal(device_vector(known), device_vector(get_device("v100")))


def test_hardware_of_the_same_architecture_is_found_under_other_labels() -> None:
    known = [get_device(label) for label in ("xeon-avx512-1c", "epyc-avx2-1c", "v100")]
    asked = get_device("platinum-8592plus")
    assert same_architecture(asked, known) == ["xeon-avx512-1c"]
    assert same_architecture(known[0], known) == []
    assert same_architecture(replace(asked, architecture=None), known) == []
    assert same_architecture(replace(asked, architecture=None),
                             [replace(asked, name="x", architecture=None)]) == []  # fmt: skip


def test_cpus_of_amd_and_intel_are_one_family() -> None:
    assert {family(get_device(label)) for label in ("ryzen-3700x", "i7-3770")} == {"x86"}
    assert family(get_device("graviton3")) == "AWS"
    assert family(get_device("mi50")) == "AMD", "a GPU"
    assert family(replace(get_device("i7-3770"), vendor=None)) is None


def test_the_public_functions_take_texts_and_refuse_other_types(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("devices: {mine: {kind: cpu, threads: {value: 4, source: data sheet}}}")
    assert devices.read(str(path)).threads == devices.read(path).threads == 4
    with pytest.raises(DeviceError, match="cannot read the device file"):
        devices.read("nowhere.yaml")
    for name in (None, 3, ["v100"], b"v100"):
        with pytest.raises(DeviceError, match="expected a label or alias"):
            devices.get(name)  # type: ignore[arg-type]


def test_a_single_known_device_is_the_nearest() -> None:
    assert unknown_text(["my-box"], ["a100"]) == "unknown device 'my-box'; the nearest is a100"
    assert "; the nearest are " in unknown_text(["my-box"], ["a100", "h100"])
