"""DeviceSpec of the CPU that this process runs on, as reported by the operating system."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.devices.probe_names import arm_architecture, x86_architecture
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, UsageError

_CPUS = "sys/devices/system/cpu"
_CGROUPS = "sys/fs/cgroup"
_SIZE = re.compile(r"(\d+)\s*([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
#: Flag of /proc/cpuinfo -> width in bits of the float32 instructions that compilers use with it,
#: widest first (AVX without AVX2 has no multiply-add and counts as SSE).
_SIMD_FLAGS = (("avx512vl", 512), ("avx2", 256), ("sse2", 128), ("asimd", 128), ("neon", 128))


@dataclass(frozen=True)
class UsableCpus:
    """Number of cores that a process may use.

    Attributes:
        cores: usable physical cores; two hyper-threads of one core count once.
        source: where the number is from.
    """

    cores: int
    source: str


def probe_cpu(name: str, *, threads: int | None = None, root: Path = Path("/")) -> DeviceSpec:
    """Returns the CPU's description from the operating system; unknown fields are None.

    Peaks and bandwidths are unknown: they have to be measured.

    Args:
        name: label of the device.
        threads: threads of the label; None = one per usable core.
        root: folder with `proc` and `sys`.

    Raises:
        UsageError: `threads` is not between 1 and the number of usable cores.
        DeviceError: there is no `/proc/cpuinfo`.
    """
    machine = _Machine(root)
    usable = machine.usable()
    if threads is not None and not 1 <= threads <= usable.cores:
        raise UsageError(
            f"{threads} threads requested, expected 1 to {usable.cores}: {usable.source}. Give "
            f"--threads {usable.cores}, or allow the process more cores"
        )
    values: dict[str, tuple[Any, str] | None] = {
        "vendor": machine.vendor(),
        "architecture": machine.architecture(),
        "core_count": machine.core_count(),
        "clock_hz": machine.clock_hz(),
        "mem_bytes": machine.mem_bytes(),
        "l1_bytes": machine.cache_bytes(1),
        "l2_bytes": machine.cache_bytes(2),
        "l3_bytes": machine.cache_bytes(3),
        "simd_bits": machine.simd_bits(),
        "threads": (usable.cores, f"one per usable core: {usable.source}")
        if threads is None
        else (threads, "definition of the label (--threads)"),
    }
    known = {field: found for field, found in values.items() if found is not None}
    return DeviceSpec(
        name=name,
        kind="cpu",
        sources={field: source for field, (_, source) in known.items()},
        **{field: value for field, (value, _) in known.items()},
    )


def usable_cpus(root: Path = Path("/")) -> UsableCpus:
    """Returns the number of usable cores, limited by affinity and the control group's quota.

    Raises:
        DeviceError: there is no `/proc/cpuinfo`.
    """
    return _Machine(root).usable()


def cpu_list(text: str) -> list[int]:
    """Returns the CPU numbers of a list in the kernel's format, such as `0-3,8`."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


class _Machine:
    """Facts from the files of one machine, as (value, source) pairs; None if unknown."""

    def __init__(self, root: Path) -> None:
        self._root = root
        text = self._text("proc/cpuinfo")
        if text is None:
            raise DeviceError(
                f"{root / 'proc/cpuinfo'}: cannot be read, so the CPU is unknown; expected "
                "Linux. Describe the device in a YAML file instead: cdmpp device show "
                "--device-spec FILE"
            )
        blocks = [dict(_pairs(block)) for block in re.split(r"\n\s*\n", text)]
        self._processors = [block for block in blocks if "processor" in block]
        online = self._text(f"{_CPUS}/online")
        self._online = cpu_list(online) if online else list(range(len(self._processors)))
        allowed = self._status("Cpus_allowed_list")
        self._allowed = [
            cpu for cpu in self._online if allowed is None or cpu in set(cpu_list(allowed))
        ] or self._online
        self._first = self._allowed[0]
        own = [block for block in self._processors if block["processor"] == str(self._first)]
        self._cpu = (own or self._processors or [{}])[0]

    # Names.

    def vendor(self) -> tuple[str, str] | None:
        found = self._cpu.get("vendor_id")
        if found:
            return _VENDORS.get(found, found), "vendor_id of /proc/cpuinfo"
        arm = self._arm()
        return None if arm is None else (arm[0], "CPU implementer of /proc/cpuinfo")

    def architecture(self) -> tuple[str, str] | None:
        try:
            family, model = int(self._cpu["cpu family"]), int(self._cpu["model"])
            stepping = int(self._cpu.get("stepping", "0"))
        except (KeyError, ValueError):
            arm = self._arm()
            if arm is None or arm[1] is None:
                return None
            return arm[1], f"CPU part {self._cpu.get('CPU part')} of /proc/cpuinfo"
        name = x86_architecture(self._cpu.get("vendor_id", ""), family, model, stepping)
        told = f"family {family}, model {model} of /proc/cpuinfo"
        return None if name is None else (name, told)

    def _arm(self) -> tuple[str, str | None] | None:
        try:
            implementer = int(self._cpu["CPU implementer"], 0)
            part = int(self._cpu["CPU part"], 0)
        except (KeyError, ValueError):
            return None
        return arm_architecture(implementer, part)

    # Cores.

    def core_count(self) -> tuple[int, str]:
        return self._cores(self._online), "physical cores, topology in /sys/devices/system/cpu"

    def usable(self) -> UsableCpus:
        cores = self._cores(self._allowed)
        quota = self._quota()
        affinity = f"CPUs {_ranges(self._allowed)} are allowed"
        if quota is not None and quota < cores:
            return UsableCpus(max(1, int(quota)), f"{affinity}, quota of {quota:g} CPUs")
        return UsableCpus(cores, affinity)

    def _cores(self, cpus: list[int]) -> int:
        siblings = set()
        for cpu in cpus:
            folder = f"{_CPUS}/cpu{cpu}/topology"
            text = self._text(f"{folder}/core_cpus_list")
            text = text or self._text(f"{folder}/thread_siblings_list")
            siblings.add(text.strip() if text else str(cpu))
        return max(1, len(siblings))

    def _quota(self) -> float | None:
        """Returns the CPU time quota of the control groups, in CPUs; None = no known limit."""
        found = []
        for folder in self._groups("cpu"):
            quota, _, period = (self._text(f"{folder}/cpu.max") or "").strip().partition(" ")
            if not period:
                quota = (self._text(f"{folder}/cpu.cfs_quota_us") or "").strip()
                period = (self._text(f"{folder}/cpu.cfs_period_us") or "").strip()
            if quota.isdecimal() and period.isdecimal() and int(period) > 0 and int(quota) > 0:
                found.append(int(quota) / int(period))
        return min(found, default=None)

    def _groups(self, controller: str) -> list[str]:
        """Returns the folders of the process's control groups and of their parents."""
        folders = [_CGROUPS]
        for line in (self._text("proc/self/cgroup") or "").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers and controller not in controllers.split(","):
                continue
            base = f"{_CGROUPS}/{controllers}" if controllers else _CGROUPS
            parts = [part for part in path.split("/") if part]
            folders += ["/".join([base, *parts[:end]]) for end in range(len(parts), -1, -1)]
        return list(dict.fromkeys(folders))

    # Numbers.

    def clock_hz(self) -> tuple[float, str] | None:
        folder = f"{_CPUS}/cpu{self._first}/cpufreq"
        base = (self._text(f"{folder}/base_frequency") or "").strip()
        if base.isdecimal() and int(base):
            return 1e3 * int(base), "base_frequency of cpufreq"
        named = re.search(r"@\s*([\d.]+)\s*GHz", self._cpu.get("model name", ""))
        if named:
            return 1e9 * float(named[1]), "name that the processor reports"
        most = (self._text(f"{folder}/cpuinfo_max_freq") or "").strip()
        # On x86 this is the boost clock; an ARM core's highest clock is its nominal one.
        if self._arm() is not None and most.isdecimal() and int(most):
            return 1e3 * int(most), "cpuinfo_max_freq of cpufreq"
        return None

    def mem_bytes(self) -> tuple[int, str] | None:
        found = re.search(r"^MemTotal:\s*(\d+) kB", self._text("proc/meminfo") or "", re.M)
        if not found:
            return None
        total = 1024 * int(found[1])
        limits = []
        for folder in self._groups("memory"):
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = (self._text(f"{folder}/{name}") or "").strip()
                if text.isdecimal():
                    limits.append(int(text))
        if limits and 0 < min(limits) < total:
            return min(limits), "limit of the control group's memory"
        return total, "MemTotal of /proc/meminfo"

    def cache_bytes(self, level: int) -> tuple[int, str] | None:
        """Returns L1 or L2 per core, or the whole L3 of the first allowed CPU's processor."""
        instances: dict[str, tuple[int, list[int]]] = {}
        package = self._package(self._first)
        for cpu in self._online if level == 3 else [self._first]:
            if self._package(cpu) != package:
                continue
            for number in range(8):
                folder = f"{_CPUS}/cpu{cpu}/cache/index{number}"
                told = (self._text(f"{folder}/level") or "").strip()
                kind = (self._text(f"{folder}/type") or "").strip()
                size = _SIZE.fullmatch((self._text(f"{folder}/size") or "").strip())
                if told != str(level) or kind not in ("Data", "Unified") or not size:
                    continue
                sharers = (self._text(f"{folder}/shared_cpu_list") or str(cpu)).strip()
                instances[sharers] = (int(size[1]) * _UNITS[size[2]], cpu_list(sharers))
        if not instances or not all(size for size, _ in instances.values()):
            return None
        what = f"L{level} cache, /sys/devices/system/cpu"
        if level == 3:
            total = sum(size for size, _ in instances.values())
            parts = f"{len(instances)} of them, " if len(instances) > 1 else ""
            return total, f"{what}: {parts}all of the processor"
        whole, sharing = next(iter(instances.values()))
        cores = self._cores(sharing)
        shared = f", {whole} bytes shared by {cores} cores" if cores > 1 else ""
        return whole // cores, f"{what}: per core{shared}"

    def simd_bits(self) -> tuple[int, str] | None:
        flags = set(f"{self._cpu.get('flags', '')} {self._cpu.get('Features', '')}".split())
        for flag, bits in _SIMD_FLAGS:
            if flag in flags:
                return bits, f"{flag} in the flags of /proc/cpuinfo"
        return None

    # Files.

    def _package(self, cpu: int) -> str:
        return (self._text(f"{_CPUS}/cpu{cpu}/topology/physical_package_id") or "0").strip()

    def _status(self, name: str) -> str | None:
        found = re.search(rf"^{name}:\s*(\S+)$", self._text("proc/self/status") or "", re.M)
        return found[1] if found else None

    def _text(self, path: str) -> str | None:
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None


def _pairs(block: str) -> list[tuple[str, str]]:
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _ranges(cpus: list[int]) -> str:
    """Returns CPU numbers in the kernel's format: `0-3,8`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
