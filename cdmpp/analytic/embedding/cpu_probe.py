"""Properties of this machine's CPU: cache sizes, memory bandwidth over size, versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdmpp.analytic.embedding.cpu import CpuCaches
from cdmpp.errors import DeviceError
from cdmpp.machine import CACHE_FOLDER, caches, machine

_SWEEP_LOG2 = range(12, 29)


@dataclass(frozen=True)
class MemorySweep:
    """Times of reading arrays of several sizes, once each, by a dot product with itself.

    Attributes:
        size_bytes: bytes of each array.
        latency_s: seconds of one read of each array.
    """

    size_bytes: list[int]
    latency_s: list[float]

    def rate_near(self, size_bytes: float) -> float:
        """Returns the bytes per second at the nearest size of the sweep."""
        index = min(range(len(self.size_bytes)), key=lambda i: abs(self.size_bytes[i] - size_bytes))
        return self.size_bytes[index] / self.latency_s[index]


def cpu_caches(folder: Path = CACHE_FOLDER) -> CpuCaches:
    """Returns the caches that the system reports.

    Raises:
        DeviceError: the system does not report three levels.
    """
    sizes = {
        int(name[1]): 1024 * int(size.removesuffix("K"))
        for name, size in caches(folder).items()
        if "instruction" not in name and size.endswith("K")
    }
    if not {1, 2, 3} <= set(sizes):
        raise DeviceError(
            f"{folder}: the system reports cache levels {sorted(sizes)}, expected 1, 2 and 3; give "
            "them: --l1-bytes N --l2-bytes N --l3-bytes N"
        )
    page = os.sysconf("SC_PAGE_SIZE")
    return CpuCaches(sizes[1], sizes[2], sizes[3], page_bytes=page)


def memory_sweep(time_call: Callable[[Callable[[int], object]], float]) -> MemorySweep:
    """Measures the read bandwidth for arrays of 4 KiB to 256 MiB.

    Args:
        time_call: returns the seconds of one call of a function that takes the call's number.
    """
    import torch

    sizes, times = [], []
    for log_size in _SWEEP_LOG2:
        values = torch.full((2**log_size // 4,), 1e-3)
        sizes.append(2**log_size)
        times.append(time_call(lambda _, values=values: torch.dot(values, values)))  # type: ignore[misc]
    return MemorySweep(sizes, times)


def machine_facts(cpu: CpuCaches, sweep: MemorySweep, *, threads: int) -> dict[str, Any]:
    """Returns the facts that are stored beside measurements."""
    import torch

    return {
        **machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "caches": asdict(cpu),
        "memory_sweep": asdict(sweep),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "load_average": os.getloadavg()[0],
    }


def keep_freed_memory() -> bool:
    """Sets the C library to keep freed memory; returns whether that succeeded.

    By default every call maps large results again and may fault in each of their pages, depending
    on earlier calls: measurements of the backward pass would depend on their order. Intended for
    processes that only measure.
    """
    import ctypes

    no_mapping, no_trimming = -4, -1
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(no_mapping, 0)) and bool(mallopt(no_trimming, -1))
