"""What can be said about the machine that measures, from `/proc`: load, clock, affinity, quota."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_helper.measure.timing import relative_deviation

#: Above these a finding is a warning.
MOST_NOISE = 0.05
MOST_DRIFT = 0.10
_LEAST_REFERENCES = 3


def machine() -> dict[str, Any]:
    """Returns what does not change during a campaign; unknown values are None."""
    governor = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "system": platform.system(),
        "processor": _processor_name() or platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count(),
        "allowed_cpus": allowed_cpus(),
        "cpu_quota": _cpu_quota(),
        "governor": governor.strip() if governor else None,
        "python": platform.python_version(),
    }


def snapshot() -> dict[str, Any]:
    """Returns what changes: load of the last minute, clock in Hz (None where it is not told)."""
    load: float | None = None
    with contextlib.suppress(OSError):
        load = os.getloadavg()[0]
    clocks = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _text("/proc/cpuinfo") or "", re.M)
    clock = 1e6 * statistics.fmean(float(value) for value in clocks) if clocks else None
    return {"load_1min": load, "clock_hz": clock, "allowed_cpus": allowed_cpus()}


def allowed_cpus() -> int | None:
    """Returns on how many CPUs this process (and its workers) may run; None where unknown."""
    ask = getattr(os, "sched_getaffinity", None)
    return None if ask is None else len(ask(0))


def _cpu_quota() -> float | None:
    """Returns how many CPUs' worth of time the control group gives; None = no limit known."""
    quota, _, period = (_text("/sys/fs/cgroup/cpu.max") or "").strip().partition(" ")
    return float(quota) / float(period) if quota.isdecimal() and period.isdecimal() else None


def _processor_name() -> str | None:
    found = re.search(r"^model name\s*:\s*(.+)$", _text("/proc/cpuinfo") or "", re.M)
    return found.group(1).strip() if found else None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def noise_floor(costs: Sequence[Sequence[float]]) -> dict[str, float | int | None]:
    """Returns n, median and 90 % quantile of the relative deviation of each program's repeats.

    Programs with a single timing say nothing; the values are None when there is no other.
    """
    spreads = sorted(relative_deviation(repeats) for repeats in costs if len(repeats) > 1)
    if not spreads:
        return {"n": 0, "median": None, "p90": None}
    high = spreads[min(len(spreads) - 1, int(0.9 * len(spreads)))]
    return {"n": len(spreads), "median": statistics.median(spreads), "p90": high}


def drift(references: Sequence[float]) -> dict[str, float | int | None]:
    """Returns how far the reference program's latency moved over a campaign.

    `trend` compares the median of the last third with that of the first (0.1 = 10 % slower),
    `spread` is largest over smallest minus 1; None below three timings.
    """
    if len(references) < _LEAST_REFERENCES:
        return {"n": len(references), "trend": None, "spread": None}
    third = max(1, len(references) // 3)
    first, last = references[:third], references[-third:]
    trend = statistics.median(last) / statistics.median(first) - 1
    return {
        "n": len(references), "trend": trend, "spread": max(references) / min(references) - 1
    }  # fmt: skip


def findings(
    *,
    noise: dict[str, float | int | None],
    drifted: dict[str, float | int | None],
    loads: Sequence[float],
    threads: int | None,
    cpus: int | None,
    quota: float | None,
    governor: str | None,
) -> list[str]:
    """Returns what makes the numbers of a campaign doubtful, one sentence each."""
    found = []
    median = noise["median"]
    if median is not None and median > MOST_NOISE:
        found.append(
            f"repeats of one program differ by {100 * median:.1f} % (median; above "
            f"{100 * MOST_NOISE:.0f} %): keep other work off the machine"
        )
    trend = drifted["trend"]
    if trend is not None and abs(trend) > MOST_DRIFT:
        way = "slower" if trend > 0 else "faster"
        found.append(
            f"the reference program became {100 * abs(trend):.0f} % {way} from the first to the "
            "last third: the clock or the load has drifted"
        )
    usable = cpus if quota is None or cpus is None else min(float(cpus), quota)
    if threads is not None and usable is not None and threads > usable:
        found.append(
            f"programs have {threads} threads, but only {usable:g} CPUs may be used (affinity or "
            "quota)"
        )
    others = [load - (threads or 1) for load in loads]
    if others and cpus is not None and statistics.median(others) > 0.5 * cpus:
        found.append(
            f"the load was {statistics.median(loads):.1f} (median of the last minute's) on {cpus} "
            "CPUs: something else is running"
        )
    if governor is not None and governor not in ("performance", "schedutil"):
        found.append(f"the clock's governor is {governor!r}; `performance` gives steadier times")
    return found
