"""Graphs and traces for the tests of the replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from cdmpp.replay.graph import Operator, OperatorGraph

QUEUES = (("gpu0", "compute"), ("gpu0", "copy"), ("gpu1", "compute"))


def chain(times_s: Sequence[float], **values: Any) -> OperatorGraph:
    """Operators one after the other on one queue."""
    return OperatorGraph(
        "chain",
        tuple(
            Operator(str(n), after=(str(n - 1),) if n else (), time_s=seconds, **values)
            for n, seconds in enumerate(times_s)
        ),
    )


@st.composite
def graphs(draw: st.DrawFn, *, has_priorities: bool = True, most: int = 14) -> OperatorGraph:
    """Random graphs without cycles, on up to three queues, times in whole milliseconds."""
    count = draw(st.integers(1, most))
    operators = []
    for number in range(count):
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        device, queue = draw(st.sampled_from(QUEUES))
        is_joint = draw(st.integers(0, 7)) == 0
        operators.append(
            Operator(
                id=f"op{number}", after=tuple(f"op{place}" for place in sorted(after)),
                device=device, queue="communication" if is_joint else queue,
                devices=("gpu0", "gpu1") if is_joint else (),
                collective="all-reduce" if is_joint else None,
                priority=draw(st.integers(-1, 1)) if has_priorities else 0,
                time_s=1e-3 * draw(st.integers(0, 20)),
            )
        )  # fmt: skip
    return OperatorGraph("random", tuple(operators))


#: Overheads of the synthetic trace in µs; what recording an event costs is on top.
HOST_EVENT_US, LAUNCH_EVENT_US = 2.0, 4.0
KNOWN = {
    "t1": 12.0, "t2": {"linear": 70.0, "relu": 9.0}, "t3": {"linear": 14.0, "relu": 6.0},
    "t4": {"cudaLaunchKernel": 10.0}, "t5": {"linear": 37.0, "view": 5.0},
}  # fmt: skip
KERNEL_US = {"linear": (30.0, 50.0), "relu": (8.0,)}


def synthetic_events(iterations: int = 3, *, extra_gap_us: float = 0.0) -> list[dict[str, Any]]:
    """A trace of linear, relu, view in turn whose overheads are `KNOWN`.

    Args:
        extra_gap_us: between two iterations, such as an epoch's end.
    """
    events: list[dict[str, Any]] = []
    clock, correlation = 100.0, 0
    device = clock

    def add(category: str, name: str, start: float, duration: float, **arguments: Any) -> None:
        place = {"pid": 0, "tid": 7} if category in ("kernel",) else {"pid": 1, "tid": 1}
        events.append(
            {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, **place,
             "args": arguments}
        )  # fmt: skip

    for _ in range(iterations):
        begin = clock
        for name in ("linear", "relu", "view"):
            clock += KNOWN["t1"] + HOST_EVENT_US
            start = clock
            if name == "view":
                clock += KNOWN["t5"]["view"]
            else:
                clock += KNOWN["t2"][name]
                if name == "linear":  # calls another operator before its first launch
                    add("cpu_op", "aten::addmm", clock - 20, 5.0)
                    clock += HOST_EVENT_US
                for place, kernel_us in enumerate(KERNEL_US[name]):
                    if place:
                        clock += KNOWN["t5"][name]
                    correlation += 1
                    duration = KNOWN["t4"]["cudaLaunchKernel"] + LAUNCH_EVENT_US
                    add("cuda_runtime", "cudaLaunchKernel", clock, duration,
                        correlation=correlation)  # fmt: skip
                    clock += duration
                    device = max(device + 1, clock)
                    add("kernel", f"{name}_kernel", device, kernel_us, correlation=correlation,
                        device=0, stream=7)  # fmt: skip
                    device += kernel_us
                clock += KNOWN["t3"][name]
            add("cpu_op", f"aten::{name}", start, clock - start, **{"Input Dims": [[4, 8]]})
        add("user_annotation", f"ProfilerStep#{len(events)}", begin, clock - begin)
        clock += extra_gap_us
    return events


def write_trace(path: Path, events: Sequence[dict[str, Any]]) -> Path:
    """Writes a chrome trace as torch.profiler lays it out."""
    value = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": list(events),
             "traceName": path.name}  # fmt: skip
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path
