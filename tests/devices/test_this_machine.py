"""A label is measured under only where its description is that of the machine at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdmpp.devices import this_machine
from cdmpp.devices.probe import probe_cpu
from cdmpp.devices.registry import THIS_CPU, get_device, load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.this_machine import check_is_here
from cdmpp.errors import DeviceError
from tests.devices.machines import AMD, ARM, INTEL, IVY_BRIDGE, machine

A100 = "NVIDIA A100-SXM4-40GB, 40960, 1410, 8.0"


@pytest.mark.parametrize(
    ("processor", "label"),
    [
        (AMD, "epyc-avx512-2c"), (AMD, "epyc-avx2-1c"), (INTEL, "platinum-8272"),
        (IVY_BRIDGE, "i7-3770"), (ARM, "cortex-a72"),
    ],
)  # fmt: skip
def test_the_machine_of_a_label_is_taken(processor: str, label: str, tmp_path: Path) -> None:
    check_is_here(get_device(label), root=machine(tmp_path, processor, cpus=4))


@pytest.mark.parametrize(
    ("processor", "label", "said"),
    [
        (INTEL, "epyc-avx2-1c", "it is AMD zen4, this CPU is Intel cascade-lake"),
        (INTEL, "xeon-avx2-1c", "it is Intel emerald-rapids, this CPU is Intel cascade-lake"),
        (ARM, "i7-3770", "it is Intel ivy-bridge, this CPU is Arm cortex-a72"),
    ],
)
def test_the_label_of_another_machine_is_refused(
    processor: str, label: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match=rf"{label} does not.*\({said}\).*--force"):
        check_is_here(get_device(label), root=machine(tmp_path, processor, cpus=4))


def test_instructions_that_the_cpu_lacks_are_refused(tmp_path: Path) -> None:
    root = machine(tmp_path, IVY_BRIDGE, cpus=4)
    mine = probe_cpu("mine", root=root)
    check_is_here(mine, root=root)
    with pytest.raises(DeviceError, match="instructions have 512 bits, those of this CPU 128"):
        check_is_here(replace(mine, simd_bits=512), root=root)


def test_what_is_not_known_agrees(tmp_path: Path) -> None:
    root = machine(tmp_path, AMD, cpus=4)
    check_is_here(DeviceSpec(name="mine", kind="cpu"), root=root)
    with pytest.raises(DeviceError, match="it is Intel, this CPU is AMD zen4"):
        check_is_here(DeviceSpec(name="mine", kind="cpu", vendor="Intel"), root=root)


def test_gpus_are_told_apart_by_name_and_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "nvidia_smi", lambda hint: A100)
    check_is_here(get_device("a100-40gb"))
    with pytest.raises(DeviceError, match=r"v100 does not.*this GPU is a100-40gb"):
        check_is_here(get_device("v100"))
    mine = DeviceSpec(name="mine", kind="gpu", vendor="NVIDIA", compute_capability="8.0")
    check_is_here(mine)
    with pytest.raises(DeviceError, match=r"capability is 7\.0, that of this GPU 8\.0"):
        check_is_here(replace(mine, compute_capability="7.0"))


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match="choose the label of this machine, not v100"):
        check_is_here(get_device("v100"))


def test_the_cpu_that_asks_has_a_label_of_its_own() -> None:
    spec = get_device(THIS_CPU)
    check_is_here(spec)
    assert spec == probe_cpu(THIS_CPU)
    assert spec.peak_fp32_flop_per_s is None  # nothing was measured
    assert THIS_CPU not in load_registry()
