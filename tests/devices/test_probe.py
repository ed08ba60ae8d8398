"""What is told of a CPU or GPU: machines of several makers, containers, missing files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cdmpp.devices import probe_gpu
from cdmpp.devices.device_file import read_device_file
from cdmpp.devices.probe import cpu_list, probe_cpu, usable_cpus
from cdmpp.devices.probe_gpu import check_not_known, nvidia_smi, probe_nvidia
from cdmpp.devices.probe_names import arm_architecture, x86_architecture
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.write_file import device_file_text
from cdmpp.errors import DeviceError, UsageError
from tests.devices.machines import AMD, ARM, CPUS, INTEL, IVY_BRIDGE, machine, write

AMD_CACHES = (
    (1, "Data", "32K", 1), (1, "Instruction", "32K", 1), (2, "Unified", "1024K", 1),
    (3, "Unified", "32768K", 4),
)  # fmt: skip


def test_an_amd_server(tmp_path: Path) -> None:
    root = machine(tmp_path, AMD, cpus=16, hyperthreads=2, caches=AMD_CACHES)
    spec = probe_cpu("box", root=root)
    assert (spec.name, spec.kind, spec.vendor, spec.architecture) == ("box", "cpu", "AMD", "zen4")
    assert (spec.core_count, spec.threads, spec.simd_bits) == (8, 8, 512)
    assert (spec.l1_bytes, spec.l2_bytes) == (32 << 10, 1 << 20)
    assert spec.l3_bytes == 64 << 20, "two of 32 MiB, four cores share one"
    assert spec.mem_bytes == 16_000_000 * 1024
    assert spec.clock_hz is None, "the current clock is not the nominal one"
    assert spec.peak_fp32_flop_per_s is None
    assert "CPUs 0-15 are allowed" in spec.sources["threads"]


def test_an_intel_server_tells_its_clock_in_its_name(tmp_path: Path) -> None:
    spec = probe_cpu("box", root=machine(tmp_path, INTEL, cpus=4))
    assert (spec.vendor, spec.architecture) == ("Intel", "cascade-lake")
    assert spec.clock_hz == 2.6e9
    assert (spec.l1_bytes, spec.l3_bytes) == (None, None), "no cache folder: unknown, not 0"
    assert "l1_bytes" not in spec.sources
    write(tmp_path, f"{CPUS}/cpu0/cpufreq/base_frequency", "2500000")
    assert probe_cpu("box", root=tmp_path).clock_hz == 2.5e9


def test_avx_without_multiply_add_counts_as_sse(tmp_path: Path) -> None:
    spec = probe_cpu("box", root=machine(tmp_path, IVY_BRIDGE, cpus=8, hyperthreads=2))
    assert (spec.architecture, spec.simd_bits, spec.core_count) == ("ivy-bridge", 128, 4)


def test_an_arm_board_shares_its_second_cache(tmp_path: Path) -> None:
    caches = ((1, "Data", "32K", 1), (2, "Unified", "1M", 4))
    root = machine(tmp_path, ARM, cpus=4, caches=caches)
    write(root, f"{CPUS}/cpu0/cpufreq/cpuinfo_max_freq", "1500000")
    spec = probe_cpu("board", root=root)
    assert (spec.vendor, spec.architecture, spec.simd_bits) == ("Arm", "cortex-a72", 128)
    assert spec.clock_hz == 1.5e9
    assert spec.l2_bytes == 256 << 10
    assert "1048576 bytes shared by 4 cores" in spec.sources["l2_bytes"]
    assert spec.l3_bytes is None


def test_a_container_with_a_quota(tmp_path: Path) -> None:
    root = machine(tmp_path, AMD, cpus=16, hyperthreads=2, caches=AMD_CACHES)
    write(root, "proc/self/cgroup", "0::/docker/abc")
    write(root, "sys/fs/cgroup/cpu.max", "max 100000")
    write(root, "sys/fs/cgroup/docker/abc/cpu.max", "250000 100000")
    write(root, "sys/fs/cgroup/docker/abc/memory.max", str(2 << 30))
    spec = probe_cpu("box", root=root)
    assert (spec.threads, spec.core_count, spec.mem_bytes) == (2, 8, 2 << 30)
    assert "quota of 2.5 CPUs" in spec.sources["threads"]
    assert "control group" in spec.sources["mem_bytes"]


def test_a_container_of_the_first_kind_of_control_groups(tmp_path: Path) -> None:
    root = machine(tmp_path, INTEL, cpus=4)
    write(root, "proc/self/cgroup", "4:cpu,cpuacct:/pod\n3:memory:/pod\n0::/")
    write(root, "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us", "50000")
    write(root, "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us", "100000")
    write(root, "sys/fs/cgroup/memory/pod/memory.limit_in_bytes", str(1 << 30))
    spec = probe_cpu("box", root=root)
    assert (spec.threads, spec.mem_bytes) == (1, 1 << 30)
    write(root, "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us", "-1")
    assert probe_cpu("box", root=root).threads == 4


def test_hyper_threads_of_one_core_count_once(tmp_path: Path) -> None:
    root = machine(tmp_path, AMD, cpus=16, hyperthreads=2, allowed="0-1,8-9")
    assert usable_cpus(root).cores == 2
    assert probe_cpu("box", root=root, threads=2).threads == 2


@pytest.mark.parametrize("threads", [0, 3, -1])
def test_threads_that_do_not_fit_are_refused(tmp_path: Path, threads: int) -> None:
    root = machine(tmp_path, AMD, cpus=4, allowed="1,3")
    with pytest.raises(UsageError, match=r"expected 1 to 2: CPUs 1,3 are allowed"):
        probe_cpu("box", root=root, threads=threads)


def test_a_system_without_proc_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="expected Linux"):
        probe_cpu("box", root=tmp_path)


def test_a_processor_that_says_almost_nothing(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor : 0\n\nprocessor : 1")
    spec = probe_cpu("box", root=tmp_path)
    assert (spec.vendor, spec.architecture, spec.simd_bits, spec.mem_bytes) == (None,) * 4
    assert (spec.core_count, spec.threads) == (2, 2)


def test_every_value_has_a_source_and_the_file_reads_back(tmp_path: Path) -> None:
    root = machine(tmp_path / "root", AMD, cpus=4, caches=AMD_CACHES)
    spec = probe_cpu("box-1c", root=root, threads=1)
    path = tmp_path / "box.yaml"
    path.write_text(device_file_text(spec, comment="A test."), encoding="utf-8")
    read = read_device_file(path).devices["box-1c"]
    assert read == spec
    known = {
        name
        for name in vars(spec)
        if name not in ("name", "kind", "sources") and getattr(spec, name) is not None
    }
    assert set(read.sources) == known


def test_lists_of_cpus() -> None:
    assert cpu_list("0-2,7\n") == [0, 1, 2, 7]
    assert cpu_list("") == []


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        (("AuthenticAMD", 23, 113, 0), "zen2"),
        (("AuthenticAMD", 25, 33, 0), "zen3"),
        (("AuthenticAMD", 25, 97, 2), "zen4"),
        (("AuthenticAMD", 21, 2, 0), None),
        (("GenuineIntel", 6, 85, 4), "skylake-avx512"),
        (("GenuineIntel", 6, 85, 11), "cooper-lake"),
        (("GenuineIntel", 6, 207, 2), "emerald-rapids"),
        (("GenuineIntel", 15, 6, 2), None),
        (("CentaurHauls", 6, 85, 4), None),
    ],
)
def test_names_of_x86(numbers: tuple[str, int, int, int], name: str | None) -> None:
    assert x86_architecture(*numbers) == name


def test_names_of_arm() -> None:
    assert arm_architecture(0x41, 0xD0C) == ("Arm", "neoverse-n1")
    assert arm_architecture(0x61, 0x22) == ("Apple", None)
    assert arm_architecture(0x99, 0x1) == ("implementer 0x99", None)


def test_a_gpu(tmp_path: Path) -> None:
    spec = probe_nvidia("my-gpu", "NVIDIA RTX 4000 Ada Generation, 20475, 3105, 8.9")
    assert (spec.kind, spec.vendor, spec.architecture) == ("gpu", "NVIDIA", "ada")
    assert (spec.mem_bytes, spec.clock_hz, spec.compute_capability) == (
        20475 << 20, 3.105e9, "8.9"
    )  # fmt: skip
    assert (spec.registers_per_core, spec.threads) == (65536, None)
    assert "RTX 4000" in spec.sources["mem_bytes"]


def test_what_a_gpu_does_not_tell_is_unknown() -> None:
    spec = probe_nvidia("my-gpu", "Graphics Device, [N/A], [N/A], [N/A]")
    assert spec == DeviceSpec(
        "my-gpu", "gpu", vendor="NVIDIA",
        sources={"vendor": "name of nvidia-smi (Graphics Device)"},
    )  # fmt: skip
    with pytest.raises(DeviceError, match="expected 4 values"):
        probe_nvidia("my-gpu", "Tesla T4, 15360")


def test_a_known_gpu_is_named() -> None:
    with pytest.raises(UsageError, match="already described as t4"):
        check_not_known("Tesla T4, 15360, 1590, 7.5")
    check_not_known("Some Other GPU, 1, 1, 8.0")


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(probe_gpu.subprocess, "run", fail)
    with pytest.raises(DeviceError, match="leave --target out"):
        nvidia_smi()
    broken = subprocess.CompletedProcess([], 9, stdout="", stderr="driver/library mismatch")
    monkeypatch.setattr(probe_gpu.subprocess, "run", lambda *_, **__: broken)
    with pytest.raises(DeviceError, match="driver/library mismatch"):
        nvidia_smi()
