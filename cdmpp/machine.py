"""Provenance of results: package versions and facts about this machine."""

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
    """Returns the versions of cdmpp, Python and the installed libraries that affect results."""
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
    """Returns the facts that a campaign records about its measuring machine; None if unknown."""
    return {
        "system": platform.system(),
        "processor": processor_name(),
        "cpu_count": os.cpu_count(),
        "allowed_cpus": allowed_cpus(),
        "governor": (read_text(_CPU / "cpufreq/scaling_governor") or "").strip() or None,
        "python": platform.python_version(),
    }


def processor_name() -> str | None:
    """Returns the processor's name according to the system; None if unknown."""
    found = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo") or "", re.M)
    return found.group(1).strip() if found else platform.processor() or None


def allowed_cpus() -> int | None:
    """Returns the number of CPUs on which this process and its workers may run; None if unknown."""
    ask = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() if ask is None else len(ask(0))


def cpu_quota() -> float | None:
    """Returns the CPU quota of the control group, in CPUs; None if there is no known limit."""
    quota, _, period = (read_text("/sys/fs/cgroup/cpu.max") or "").strip().partition(" ")
    return float(quota) / float(period) if quota.isdecimal() and period.isdecimal() else None


def caches(folder: Path = CACHE_FOLDER) -> dict[str, str]:
    """Returns the sizes of a CPU's caches by the system's names, e.g. `{"L1 data": "32K"}`."""
    found = {}
    for entry in sorted(folder.glob("index*")):
        level, kind, size = (read_text(entry / part) for part in ("level", "type", "size"))
        if level and kind and size:
            found[f"L{level.strip()} {kind.strip().lower()}"] = size.strip()
    return found


def check_threads(device: str, threads: int) -> None:
    """Checks that this process may use as many CPUs as a device label has threads.

    Raises:
        UsageError: there are fewer CPUs.
    """
    cpus = allowed_cpus() or 1
    if threads > cpus:
        raise UsageError(
            f"{device} uses {threads} threads, but this process may only run on {cpus} CPU(s). "
            "Allow more CPUs, or choose a label with fewer threads"
        )


def thread_environment(threads: int, simd_bits: int | None) -> dict[str, str]:
    """Returns environment variables that give torch this number of threads and vector width."""
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
    environment = dict.fromkeys(names, str(threads))
    if simd_bits == 256:
        environment |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        environment |= {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    return environment


def read_text(path: str | Path) -> str | None:
    """Returns the text of a file; None if it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return None
