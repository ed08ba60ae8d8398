"""What a campaign notes about the machine that measures."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path
from typing import Any

from cdmpp.errors import UsageError


def machine() -> dict[str, Any]:
    """Returns the machine; unknown values are None."""
    name = re.search(r"^model name\s*:\s*(.+)$", _text("/proc/cpuinfo") or "", re.M)
    governor = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    caches = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_text(folder / part) for part in ("level", "type", "size"))
        if level and kind and size:
            caches[f"L{level.strip()} {kind.strip().lower()}"] = size.strip()
    return {
        "system": platform.system(),
        "processor": name.group(1).strip() if name else platform.processor() or None,
        "cpu_count": os.cpu_count(),
        "allowed_cpus": allowed_cpus(),
        "caches": caches or None,
        "governor": governor.strip() if governor else None,
        "python": platform.python_version(),
    }


def allowed_cpus() -> int:
    """Returns on how many CPUs this process may run."""
    ask = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if ask is None else len(ask(0))


def check_threads(device: str, threads: int) -> None:
    """Raises a UsageError when a device label uses more threads than there are CPUs for them."""
    if threads > allowed_cpus():
        raise UsageError(
            f"{device} uses {threads} threads, and this process may run on {allowed_cpus()} CPU(s);"
            " let it use more of them, or choose the label of fewer threads"
        )


def thread_environment(threads: int, simd_bits: int | None) -> dict[str, str]:
    """Returns environment variables for torch on so many threads with this vector width."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {name: str(threads) for name in names}
    if simd_bits == 256:
        environment |= {
            "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        }  # fmt: skip
    return environment


def _text(path: str | Path) -> str | None:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return None
