"""What can be said about the machine that measures, from `/proc`: load, clock, affinity, quota."""

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

#: Above these a finding is a warning.
MOST_NOISE = 0.05
MOST_DRIFT = 0.10
_LEAST_REFERENCES = 3
#: Of a CPU, taken by other programs: more is said before measuring.
_MOST_BUSY = 0.25


def machine() -> dict[str, Any]:
    """Returns what does not change during a campaign; unknown values are None."""
    return {**measuring_machine(), "cpu_quota": cpu_quota()}


def snapshot() -> dict[str, Any]:
    """Returns what changes: load of the last minute, clock in Hz (None where it is not told)."""
    load: float | None = None
    with contextlib.suppress(OSError):
        load = os.getloadavg()[0]
    clocks = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", read_text("/proc/cpuinfo") or "", re.M)
    clock = 1e6 * statistics.fmean(float(value) for value in clocks) if clocks else None
    return {"load_1min": load, "clock_hz": clock, "allowed_cpus": allowed_cpus()}


def findings_now(threads: int | None, *, seconds: float = 0.5) -> list[str]:
    """Returns what makes times doubtful that are measured on this machine now, a sentence each.

    Args:
        threads: of the programs that are to be measured; None = not on a CPU.
        seconds: how long other programs are watched.
    """
    host = machine()
    found = findings(
        noise=noise_floor([]), drifted=drift([]), loads=[], threads=threads,
        cpus=host["allowed_cpus"], host=host,
    )  # fmt: skip
    busy = psutil.cpu_percent(seconds) / 100.0 * (host["cpu_count"] or 1)  # this process sleeps
    if busy > _MOST_BUSY:
        found.append(
            f"other programs use {busy:.1f} of this machine's {host['cpu_count']} CPUs now: "
            "measured times will be noisy (cdmpp doctor --live measures the noise)"
        )
    return found


def noise_floor(costs: Sequence[Sequence[float]]) -> dict[str, float | int | None]:
    """Returns n, median and 90 % quantile of the relative deviation of each program's repeats.

    Programs with a single timing say nothing; the values are None when there is no other.
    """
    spreads = sorted(relative_deviation(repeats) for repeats in costs if len(repeats) > 1)
    if not spreads:
        return {"n": 0, "median": None, "p90": None}
    high = spreads[min(len(spreads) - 1, int(0.9 * len(spreads)))]
    return {"n": len(spreads), "median": statistics.median(spreads), "p90": high}


def noise_of_repeats(entries: Iterable[Mapping[str, Any]]) -> dict[str, float | int | None]:
    """Returns n, median and mean of how far programs' times are off when they are measured again.

    Args:
        entries: of a campaign's journal, `measured` and `again`.
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
    """Returns how much slower the reference program ran than at its best, by a campaign's journal.

    A core that shares its hardware is slow in some batches, and the times of its programs are as
    much too long in the mean. The geometric mean over batches of the reference's time over its best
    (the 5 % quantile of its fastest times); 1 where the reference was not timed.

    Args:
        entries: of a campaign's journal.
        rounds: of so many times of a program, seconds apart, the fastest was kept.
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
    # How likely each time is the fastest of so many that are drawn.
    shares = [
        ((count - rank) / count) ** rounds - ((count - rank - 1) / count) ** rounds
        for rank in range(count)
    ]
    return math.exp(sum(s * math.log(mean / best) for s, mean in zip(shares, means, strict=True)))


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
    host: Mapping[str, Any],
) -> list[str]:
    """Returns what makes the numbers of a campaign doubtful, one sentence each.

    Args:
        loads: of the whole machine, processes.
        cpus: that may be used, of those of the machine; on the others other work may run.
        host: as `machine` returns it; what is not known may be left out.
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
