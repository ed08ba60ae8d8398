"""Times reading a trace of a million events, and a timer that is off.

The trace is made up in the form that torch.profiler writes (an operator with shapes and a kernel
with its launch, in turns). Each round reads it in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdmpp.timing.stats import enable_timers, timer
from lab.pages import filled, write_page
from lab.paths import ROOT
from lab.stamp import stamp

COMMAND = "python -m lab run profiling"
EVENTS = 1_000_000
LIMIT_S, LIMIT_BYTES, LIMIT_TIMER_NS = 20.0, 1 << 30, 200.0
_NAMES = ("aten::add", "aten::mm", "aten::conv2d", "aten::relu", "aten::empty")
_READ = """
import json, resource, sys, time
wall, cpu = time.perf_counter(), time.process_time()
from pathlib import Path
from cdmpp.profiling.read import read_profile
profile = read_profile(Path(sys.argv[1]))
print(json.dumps({"events": len(profile.events), "wall_s": time.perf_counter() - wall,
    "cpu_s": time.process_time() - cpu,
    "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def write_trace(path: Path, count: int) -> None:
    """Writes a trace of `count` events; the same count gives the same bytes."""
    with path.open("w", encoding="utf-8") as out:
        out.write(
            '{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n'
            '  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n'
        )
        at = 4445497043774.175
        for i in range(count // 2):
            duration = 5 + (i * 7919 % 2000) / 100
            out.write(
                f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{_NAMES[i % 5]}", "pid": 30061, '
                f'"tid": 30061,\n    "ts": {at:.3f}, "dur": {duration:.3f},\n    "args": {{\n      '
                f'"External id": {i},"Record function id": 0, "Sequence number": {i}, "Fwd thread '
                'id": 0, "Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"], '
                f'"Ev Idx": {i}\n    }}\n  }},\n'
                '  {\n    "ph": "X", "cat": "kernel", "name": "void at::native::'
                'vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)",'
                f' "pid": 0, "tid": 7,\n    "ts": {at + 3:.3f}, "dur": {duration:.3f},\n    '
                f'"args": {{\n      "External id": {i}, "queued": 0, "device": 0, "context": 1, '
                f'"stream": 7, "correlation": {i}, "registers per thread": 32, "shared memory": 0, '
                f'"blocks per SM": 0.02, "warps per SM": 0.07, "grid": [{2 + i % 3}, 1, 1], '
                '"block": [128, 1, 1], "est. achieved occupancy %": 0\n    }\n  }'
                + (",\n" if i < count // 2 - 1 else "\n")
            )
            at += duration + 1
        out.write('  ],\n  "traceName": "made up"\n}\n')


def read_in_a_process(path: Path) -> dict[str, float]:
    """Returns events, seconds of wall and CPU, and the largest resident memory in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=True,
        cwd=ROOT,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def idle_timer_ns() -> float:
    """Returns the CPU time of a timer that is off, the loop around it taken out."""
    enable_timers(False)
    loops = 20_000

    def with_timer() -> None:
        for _ in range(loops):
            with timer("name"):
                pass

    def without() -> None:
        for _ in range(loops):
            pass

    best = [
        min(timeit.repeat(each, number=1, repeat=100, timer=time.thread_time_ns))
        for each in (with_timer, without)
    ]
    return (best[0] - best[1]) / loops


def experiment(rounds: int = 3) -> None:
    """Writes and reads the trace, times the timer, and writes the page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path, EVENTS)
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = path.stat().st_size
        found = [read_in_a_process(path) for _ in range(rounds)]
    result = {"trace_bytes": size, "rounds": found, "idle_timer_ns": idle_timer_ns()}
    origin = stamp(COMMAND, data={"trace": digest})
    write_page("profiling", _page(result), result, origin, rows=_rows(result))


def _rows(result: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    place = ("profiling", "made-up trace", "-", "this-machine", "read", "-")
    for number, one in enumerate(result["rounds"]):
        for metric in ("wall_s", "cpu_s", "bytes"):
            yield *place, number, metric, one[metric], int(one["events"])
    timer = ("profiling", "-", "-", "this-machine", "timer off", "-", 0, "cpu_ns")
    yield *timer, result["idle_timer_ns"], 1


def _page(result: dict[str, Any]) -> str:
    rounds = result["rounds"]
    lines = ["| | median | least | most | limit |", "|---|---|---|---|---|"]
    for name, metric, scale, limit in (
        ("CPU time (s)", "cpu_s", 1.0, f"{LIMIT_S:g}"),
        ("wall time (s)", "wall_s", 1.0, f"{LIMIT_S:g} with a core of its own"),
        ("largest resident memory (MiB)", "bytes", 2.0**-20, f"{LIMIT_BYTES >> 20}"),
    ):
        values = [one[metric] * scale for one in rounds]
        shown = " | ".join(
            f"{value:.1f}" for value in (statistics.median(values), min(values), max(values))
        )
        lines.append(f"| {name} | {shown} | {limit} |")
    timer_ns = f"{result['idle_timer_ns']:.0f}"
    return filled("profiling", table="\n".join(lines), timer_ns=timer_ns)
