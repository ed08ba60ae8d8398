"""Speed of the replay engine and memory of reading a large trace: operators a second for graphs of
several shapes, and the seconds and the peak memory of a fresh process that reads a trace.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cdmpp.replay.engine import POLICIES, ReplayOptions, replay
from cdmpp.replay.graph import Operator, OperatorGraph

_READ = (
    "import resource, sys; from pathlib import Path; "
    "from cdmpp.replay.traces.trace_events import read_trace_events; "
    "from cdmpp.replay.traces.host_operators import host_iterations; "
    "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
    "found = host_iterations(read_trace_events(Path(sys.argv[1]))); "
    "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
    "print(len(found[0]), before, after)"
)


def serial(count: int) -> OperatorGraph:
    """One operator after the other."""
    return OperatorGraph(
        "serial",
        tuple(
            Operator(str(n), after=(str(n - 1),) if n else (), time_s=1e-5) for n in range(count)
        ),
    )


def layered(count: int, *, devices: int = 4, seed: int = 0) -> OperatorGraph:
    """Several devices with three queues each, two edges an operator."""
    chance = random.Random(seed)
    queues = ("compute", "copy", "communication")
    operators = []
    for number in range(count):
        near = [chance.randrange(max(0, number - 50), number) for _ in range(2)] if number else []
        operators.append(
            Operator(
                str(number), after=tuple(map(str, dict.fromkeys(near))),
                device=f"gpu{chance.randrange(devices)}", queue=chance.choice(queues),
                time_s=1e-6 * chance.randrange(1, 100),
            )
        )  # fmt: skip
    return OperatorGraph("layered", tuple(operators))


def write_large_trace(path: Path, megabytes: int) -> None:
    """Writes a trace of the given size with operators, launches, kernels and call stacks."""
    shapes = [[64, 1024], [1024, 1024]]
    with path.open("w", encoding="utf-8") as stream:
        stream.write('{"schemaVersion": 1, "traceEvents": [\n')
        number = 0
        while stream.tell() < megabytes * 10**6:
            at = 100.0 * number
            events = (
                {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": at,
                 "dur": 80.0, "args": {"External id": number, "Input Dims": shapes,
                                       "Call stack": "train.py(12): step;" * 8}},
                {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1,
                 "ts": at + 10, "dur": 60.0, "args": {"External id": number}},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                 "ts": at + 30, "dur": 8.0, "args": {"correlation": number}},
                {"ph": "X", "cat": "kernel", "name": "volta_sgemm_128x64_tn", "pid": 0, "tid": 7,
                 "ts": at + 40, "dur": 50.0,
                 "args": {"correlation": number, "device": 0, "stream": 7, "grid": [8, 8, 1]}},
                {"ph": "s", "id": number, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1,
                 "ts": at + 30},
            )  # fmt: skip
            for event in events:
                stream.write((",\n" if number else "") + json.dumps(event))
                number += 1
        stream.write("\n]}\n")


def experiment(operators: int = 100_000, megabytes: int = 200) -> None:
    """Prints the numbers."""
    for graph in (serial(operators), layered(operators)):
        for policy in POLICIES:
            options = ReplayOptions(policy, launch_s=1e-6, gap_s=1e-6)
            seconds = []
            for _ in range(3):
                begin = time.process_time()
                replay(graph, options=options)
                seconds.append(time.process_time() - begin)
            rate = operators / min(seconds)
            print(f"{graph.name}, {policy}: {rate:,.0f} operators/s of processor time")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        write_large_trace(path, megabytes)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = subprocess.run(
            [sys.executable, "-c", _READ, str(path)], check=True, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        count, start_kb, peak_kb = (int(word) for word in answer.stdout.split())
        print(
            f"trace of {path.stat().st_size / 1e6:.0f} MB: {count:,} operators in "
            f"{after.ru_utime - before.ru_utime:.1f} s of processor time, peak "
            f"{peak_kb / 1024:.0f} MiB ({start_kb / 1024:.0f} MiB before reading)"
        )
