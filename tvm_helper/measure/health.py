"""State of the measuring machine (load, clock, affinity, quota), and noise of measurements."""

from __future__ import annotations

import contextlib
import math
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil  # type: ignore[import-untyped]

from cdmpp.machine import allowed_cpus, cpu_quota, measuring_machine, read_text
from cdmpp.text import counted
from tvm_helper.measure.timing import relative_deviation

#: Thresholds of noise and drift above which there is a finding.
MOST_NOISE = 0.05
MOST_DRIFT = 0.10
_LEAST_REFERENCES = 3
#: Number of CPUs used by other programs above which there is a finding.
_MOST_BUSY = 0.25
#: Seconds of watching other programs.
_WATCHED_S = 0.5


def machine() -> dict[str, Any]:
    """Returns facts about the machine that do not change during a campaign; None = unknown."""
    return {**measuring_machine(), "cpu_quota": cpu_quota()}


def snapshot() -> dict[str, Any]:
    """Returns the load of the last minute, the clock in Hz and the CPUs to use; None = unknown."""
    load: float | None = None
    with contextlib.suppress(OSError):
        load = os.getloadavg()[0]
    clocks = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", read_text("/proc/cpuinfo") or "", re.M)
    clock = 1e6 * statistics.fmean(float(value) for value in clocks) if clocks else None
    return {"load_1min": load, "clock_hz": clock, "allowed_cpus": allowed_cpus()}


def findings_now(threads: int | None) -> list[str]:
    """Returns problems of measuring on this machine now, one sentence each.

    Args:
        threads: threads of the measured programs; None = not on a CPU.
    """
    host = machine()
    found = findings(
        noise=noise_floor([]), drifted=drift([]), loads=[], threads=threads,
        cpus=host["allowed_cpus"], host=host,
    )  # fmt: skip
    busy = psutil.cpu_percent(_WATCHED_S) / 100.0 * (host["cpu_count"] or 1)  # this process sleeps
    if busy > _MOST_BUSY:
        found.append(
            f"other programs use {busy:.1f} of this machine's {host['cpu_count']} CPUs now: "
            "measured times will be noisy (cdmpp doctor --live measures the noise)"
        )
    return found


def noise_floor(costs: Sequence[Sequence[float]]) -> dict[str, float | int | None]:
    """Returns n, median and 90 % quantile of the relative deviation of each program's repeats.

    Programs with a single timing are ignored; the values are None without other programs.
    """
    spreads = sorted(relative_deviation(repeats) for repeats in costs if len(repeats) > 1)
    if not spreads:
        return {"n": 0, "median": None, "p90": None}
    high = spreads[min(len(spreads) - 1, int(0.9 * len(spreads)))]
    return {"n": len(spreads), "median": statistics.median(spreads), "p90": high}


def noise_of_repeats(entries: Iterable[Mapping[str, Any]]) -> dict[str, float | int | None]:
    """Returns n, median and mean of the relative differences of programs that were measured twice.

    Args:
        entries: entries of a campaign's journal; those of kind `measured` and `again` count.
    """
    first_s: dict[str, float] = {}
    off: list[float] = []
    for entry in entries:
        if entry.get("costs_s") and entry["kind"] in ("measured", "again"):
            cost_s = statistics.fmean(entry["costs_s"])
            if entry["kind"] == "measured":
                first_s[entry["program_id"]] = cost_s
            elif entry["program_id"] in first_s:
                off.append(abs(cost_s / first_s[entry["program_id"]] - 1))
    if not off:
        return {"n": 0, "median": None, "mean": None}
    return {"n": len(off), "median": statistics.median(off), "mean": statistics.fmean(off)}


def mean_slowdown(entries: Iterable[Mapping[str, Any]], *, rounds: int = 1) -> float:
    """Returns the mean slowdown of the reference program relative to its best time.

    On shared hardware, a core is slow in some batches, and the times of all programs are too long
    by the same mean factor. The slowdown is the geometric mean over batches of the reference's mean
    time over its best time (the 5 % quantile of the batches' minima); 1 without timings of the
    reference.

    Args:
        entries: entries of a campaign's journal.
        rounds: number of rounds, seconds apart, of which the fastest time was kept.
    """
    timings = [
        entry["reference_costs_s"]
        for entry in entries
        if entry["kind"] == "health" and entry.get("reference_costs_s")
    ]
    if not timings:
        return 1.0
    fastest = sorted(min(costs) for costs in timings)
    best, count = fastest[int(0.05 * len(fastest))], len(fastest)
    means = sorted(statistics.fmean(costs) for costs in timings)
    # Probability of each time to be the fastest of `rounds` draws.
    shares = [
        ((count - rank) / count) ** rounds - ((count - rank - 1) / count) ** rounds
        for rank in range(count)
    ]
    return math.exp(sum(s * math.log(mean / best) for s, mean in zip(shares, means, strict=True)))


def drift(references: Sequence[float]) -> dict[str, float | int | None]:
    """Returns the drift of the reference program's latency over a campaign.

    `trend` compares the median of the last third with that of the first (0.1 = 10 % slower),
    `spread` is largest over smallest minus 1; both are None with fewer than three timings.
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
    host: Mapping[str, Any],
) -> list[str]:
    """Returns problems of a campaign's measurements, one sentence each.

    Args:
        noise: result of `noise_floor`.
        drifted: result of `drift`.
        loads: loads of the whole machine, in processes.
        threads: threads of a program; None = not on a CPU.
        cpus: number of usable CPUs; other work may run on the machine's other CPUs.
        host: result of `machine`; unknown values may be missing.
    """
    found = []
    quota, governor = host.get("cpu_quota"), host.get("governor")
    median = noise["median"]
    if median is not None and median > MOST_NOISE:
        found.append(
            f"repeats of one program differ by {100 * median:.1f} % (median; above "
            f"{100 * MOST_NOISE:.0f} %): stop other programs on this machine"
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
            f"programs have {counted(threads, 'thread')}, but can only use {usable:g} of the CPUs "
            "(affinity or quota)"
        )
    elsewhere = max(0, (host.get("cpu_count") or 0) - (cpus or 0))
    others = [load - (threads or 1) - elsewhere for load in loads]
    if others and cpus is not None and statistics.median(others) > 0.5 * cpus:
        found.append(
            f"the load was {statistics.median(loads):.1f} (median of the last minute's) on {cpus} "
            "CPUs: something else is running"
        )
    if governor is not None and governor not in ("performance", "schedutil"):
        found.append(f"the clock's governor is {governor!r}; `performance` gives steadier times")
    return found
