"""Where a number is from: commit, versions and machine; unknown facts are None."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path
from typing import Any

from cdmpp import __version__
from cdmpp.errors import UsageError

_CPU = Path("/sys/devices/system/cpu/cpu0")
CACHE_FOLDER = _CPU / "cache"


def versions() -> dict[str, str]:
    """Returns the versions of what took part in a run."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"cdmpp": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "xgboost-cpu", "scikit-learn", "apache-tvm"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> dict[str, str]:
    """Returns system, processor and cores of this machine."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": processor_name() or "unknown",
        "cores": str(os.cpu_count()),
    }


def measuring_machine() -> dict[str, Any]:
    """Returns what a campaign notes about the machine that measures."""
    return {
        "system": platform.system(),
        "processor": processor_name(),
        "cpu_count": os.cpu_count(),
        "allowed_cpus": allowed_cpus(),
        "governor": (read_text(_CPU / "cpufreq/scaling_governor") or "").strip() or None,
        "python": platform.python_version(),
    }


def processor_name() -> str | None:
    """Returns the processor's name as the system has it."""
    found = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo") or "", re.M)
    return found.group(1).strip() if found else platform.processor() or None


def allowed_cpus() -> int | None:
    """Returns on how many CPUs this process (and its workers) may run; None where unknown."""
    ask = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() if ask is None else len(ask(0))


def cpu_quota() -> float | None:
    """Returns how many CPUs' worth of time the control group gives; None = no limit known."""
    quota, _, period = (read_text("/sys/fs/cgroup/cpu.max") or "").strip().partition(" ")
    return float(quota) / float(period) if quota.isdecimal() and period.isdecimal() else None


def caches(folder: Path = CACHE_FOLDER) -> dict[str, str]:
    """Returns the caches of a CPU as the system names them, such as `{"L1 data": "32K"}`."""
    found = {}
    for entry in sorted(folder.glob("index*")):
        level, kind, size = (read_text(entry / part) for part in ("level", "type", "size"))
        if level and kind and size:
            found[f"L{level.strip()} {kind.strip().lower()}"] = size.strip()
    return found


def check_threads(device: str, threads: int) -> None:
    """Raises a UsageError when a device label uses more threads than there are CPUs for them."""
    cpus = allowed_cpus() or 1
    if threads > cpus:
        raise UsageError(
            f"{device} uses {threads} threads, but this process may only run on {cpus} CPU(s). "
            "Allow more CPUs, or choose a label with fewer threads"
        )


def thread_environment(threads: int, simd_bits: int | None) -> dict[str, str]:
    """Returns environment variables for torch on so many threads with this vector width."""
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
    environment = dict.fromkeys(names, str(threads))
    if simd_bits == 256:
        environment |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        environment |= {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    return environment


def read_text(path: str | Path) -> str | None:
    """Returns what a file of the system says; None where there is none."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return None
