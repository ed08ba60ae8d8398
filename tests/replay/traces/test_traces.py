"""Chrome traces: reading, overheads that are known, graphs, several iterations and processes."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from cdmpp.errors import DataError
from cdmpp.replay.engine import replay
from cdmpp.replay.traces.host_operators import host_iterations, kernel_times_us
from cdmpp.replay.traces.iteration_walk import walk
from cdmpp.replay.traces.op_statistics import cleaned, trace_statistics
from cdmpp.replay.traces.overheads import (
    extract_overheads,
    merged,
    read_overheads,
    write_overheads,
)
from cdmpp.replay.traces.trace_events import read_trace_events
from cdmpp.replay.traces.trace_graph import (
    graph_of_iteration,
    joined_processes,
    mean_of_iterations,
    walked_operators,
)
from tests.replay.graphs import KERNEL_US, KNOWN, synthetic_events, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.json", synthetic_events(4, extra_gap_us=5000.0))


def test_known_overheads_come_back(trace: Path) -> None:
    found = extract_overheads(host_iterations(read_trace_events(trace)), source="trace")
    assert found.t1.mean_us == pytest.approx(KNOWN["t1"], abs=1e-6)
    for which in ("t2", "t3", "t4", "t5"):
        means = {name: entry.mean_us for name, entry in getattr(found, which).items()}
        assert means == pytest.approx(KNOWN[which], abs=1e-6), which
    assert found.t2["linear"].count == 4


def test_outliers_and_strange_gaps_do_not_count(tmp_path: Path) -> None:
    events = synthetic_events(40)
    slow = [event for event in events if event["name"] == "aten::view"]
    for event in slow[:2]:
        event["dur"] += 11.0  # the gap behind it shrinks below 2 µs, its own time is an outlier
    found = extract_overheads(
        host_iterations(read_trace_events(write_trace(tmp_path / "t.json", events)))
    )
    assert found.t5["view"].mean_us == pytest.approx(KNOWN["t5"]["view"])
    assert found.t5["view"].count == 38
    assert found.t1.mean_us == pytest.approx(KNOWN["t1"])


def test_overheads_survive_a_file_and_merge(tmp_path: Path, trace: Path) -> None:
    found = extract_overheads(host_iterations(read_trace_events(trace)), source="a")
    write_overheads(tmp_path / "o.json", found)
    assert read_overheads(tmp_path / "o.json") == found
    both = merged([found, found])
    assert both.t1.count == 2 * found.t1.count
    assert both.t1.mean_us == pytest.approx(found.t1.mean_us)
    assert both.sources == ("a", "a")


def test_a_walk_over_its_own_overheads_is_near_the_trace(trace: Path) -> None:
    iterations = host_iterations(read_trace_events(trace))
    overheads = extract_overheads(iterations)
    run = walk(walked_operators(iterations[0]), overheads)
    bare = sum((KNOWN["t1"] * 3, KNOWN["t2"]["linear"], KNOWN["t2"]["relu"], 3 * 10.0,
                KNOWN["t5"]["linear"], KNOWN["t5"]["view"], 14.0, 6.0))  # fmt: skip
    assert run.host_us == pytest.approx(bare)
    assert run.active_us == pytest.approx(sum(sum(times) for times in KERNEL_US.values()))


def test_the_graph_of_an_iteration_replays_its_span(trace: Path) -> None:
    iteration = host_iterations(read_trace_events(trace))[0]
    graph = graph_of_iteration(iteration, name="t", source="t")
    run = replay(graph)
    span_us = iteration[-1].end_us - iteration[0].start_us
    assert run.busy_s["cpu", "host"] == pytest.approx(1e-6 * span_us)
    kernels = [one for one in graph.operators if one.device == "gpu0"]
    assert [one.kind for one in kernels] == ["linear", "linear", "relu"]
    ends = dict(zip((o.id for o in graph.operators), run.end_s, strict=True))
    starts = dict(zip((o.id for o in graph.operators), run.start_s, strict=True))
    # A kernel starts when the call that launches it is over.
    assert starts[kernels[0].id] == ends[kernels[0].after[0]]


def test_all_kernels_of_a_cuda_graph_are_replayed(tmp_path: Path) -> None:
    def event(category: str, name: str, start: int, duration: int, link: int) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "pid": 0,
                "tid": 0, "args": {"correlation": link}}  # fmt: skip

    events = [
        event("cpu_op", "aten::linear", 0, 100, -1),
        event("cuda_runtime", "cudaGraphLaunch", 10, 10, 5),
        event("cuda_runtime", "cudaLaunchKernel", 30, 10, 2**70),
        event("kernel", "long", 50, 1000, 5),
        event("kernel", "short", 1050, 10, 5),
    ]
    trace = read_trace_events(write_trace(tmp_path / "t.json", events))
    ((operator,),) = host_iterations(trace)
    launch, other = operator.launches
    assert (launch.kernel, launch.kernel_start_us, launch.kernel_us) == ("long", 50, 1010)
    assert other.kernel_us is None
    assert kernel_times_us(trace) == [1010]


def test_iterations_average_and_must_agree(tmp_path: Path, trace: Path) -> None:
    iterations = host_iterations(read_trace_events(trace))
    graphs = [graph_of_iteration(one, name="t", source="t") for one in iterations]
    mean = mean_of_iterations(graphs)
    kernels = [one for one in mean.operators if one.device == "gpu0"]
    assert [one.time_s for one in kernels] == pytest.approx([30e-6, 50e-6, 8e-6])
    assert all(one.low_s is not None for one in mean.operators)
    short = graph_of_iteration(iterations[0][:-1], name="t", source="t")
    other = replace(graphs[1].operators[0], name="other")
    renamed = replace(graphs[1], operators=(other, *graphs[1].operators[1:]))
    with pytest.raises(DataError, match="'other' in iteration 2; expected the same operators"):
        mean_of_iterations([graphs[0], renamed])
    with pytest.raises(DataError, match="iteration 2 has 8 operators, the first one 9"):
        mean_of_iterations([graphs[0], short])


def ranks(late_s: float) -> list[list[dict[str, object]]]:
    """Two processes whose all-reduce begins when both are there."""
    found = []
    for begin, duration in ((100.0, 400.0 + late_s), (100.0 + late_s, 400.0)):
        arguments = {"correlation": 1, "device": 0, "stream": 20}
        found.append(
            [
                {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "ts": begin, "dur": 20.0,
                 "pid": 1, "tid": 1, "args": {}},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin + 5,
                 "dur": 8.0, "pid": 1, "tid": 1, "args": {"correlation": 1}},
                {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum", "pid": 0,
                 "tid": 20, "ts": begin + 13, "dur": duration, "args": arguments},
            ]
        )  # fmt: skip
    return found


def test_processes_meet_in_their_collectives(tmp_path: Path) -> None:
    graphs = []
    for rank, events in enumerate(ranks(250.0)):
        path = write_trace(tmp_path / f"{rank}.json", events)
        (iteration,) = host_iterations(read_trace_events(path))
        graphs.append(graph_of_iteration(iteration, name="t", source=path.name))
    joint = joined_processes(graphs, ["rank0", "rank1"])
    (collective,) = [one for one in joint.operators if one.collective]
    assert collective.collective == "all-reduce"
    assert collective.devices == ("rank0/gpu0", "rank1/gpu0")
    assert collective.time_s == pytest.approx(400e-6)  # the rest was waiting
    assert replay(joint).total_s == pytest.approx(413e-6)
    one_less = joined_processes([graphs[0]], ["rank0"])
    assert one_less is graphs[0]
    without = graph_of_iteration(
        host_iterations(
            read_trace_events(write_trace(tmp_path / "n.json", ranks(0.0)[0][:2]))
        )[0], name="t", source="t",
    )  # fmt: skip
    with pytest.raises(DataError, match="rank0: 1, rank1: 0"):
        joined_processes([graphs[0], without], ["rank0", "rank1"])


def test_statistics(trace: Path) -> None:
    rows = trace_statistics(host_iterations(read_trace_events(trace)))
    assert [(row.name, row.count, row.inputs, row.launches) for row in rows] == [
        ("linear", 4, 1, 8), ("relu", 4, 1, 4), ("view", 4, 1, 0),
    ]  # fmt: skip
    assert [row.name for row in cleaned(rows)] == ["linear", "relu"]


def test_a_packed_trace_and_a_bare_list_read_alike(tmp_path: Path, trace: Path) -> None:
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(json.loads(trace.read_text())["traceEvents"]))
    expected = host_iterations(read_trace_events(trace))
    for path in (packed, bare):
        assert host_iterations(read_trace_events(path)) == expected


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_trace_cut_off_is_one_sentence(tmp_path: Path, trace: Path, kept: float) -> None:
    text = trace.read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: int(kept * len(text))])
    with pytest.raises(DataError, match=r"truncated after .* complete elements") as caught:
        read_trace_events(cut)
    assert "\n" not in str(caught.value)
    packed = tmp_path / "cut.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes())[:-40])
    with pytest.raises(DataError, match="truncated"):
        read_trace_events(packed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ('{"traceEvents": []}', "0 events, but no operator"),
        ('{"other": 1}', "no 'traceEvents' in it"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": "now"}]}', "ts 'now'"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": NaN}]}',
         "dur nan"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1},'
         '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 9, "dur": 1}]}',
         "1 marked iteration without an operator"),
    ],
)  # fmt: skip
def test_bad_traces(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        host_iterations(read_trace_events(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_memory_grows_with_what_is_kept_not_with_the_file(tmp_path: Path) -> None:
    """A file of 24 MB whose events are mostly of no interest."""
    path = tmp_path / "large.json"
    waste = json.dumps({"ph": "i", "name": "x" * 400, "ts": 1.0, "args": {"stack": "y" * 1600}})
    events = synthetic_events(3)
    with path.open("w") as stream:
        stream.write('{"traceEvents": [')
        for number in range(12_000):
            stream.write((", " if number else "") + waste)
        for event in events:
            stream.write(", " + json.dumps(event))
        stream.write("]}")
    assert path.stat().st_size > 24e6
    tracemalloc.start()
    trace = read_trace_events(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert trace.events == 12_000 + len(events)
    assert peak < 8e6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "format None, expected 'cdmpp-host-overheads'"),
        ("[1]", "has format list"),
        ("nope", "the file of host overheads .* is damaged"),
        ('{"format": "cdmpp-host-overheads", "version": 9}', "version 9, expected 1"),
        ('{"format": "cdmpp-host-overheads", "version": 1, "t1": {"mean_us": -1, "count": 1}}',
         "mean_us -1"),
    ],
)  # fmt: skip
def test_bad_overheads(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "o.json"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        read_overheads(path)


def test_one_operator_has_no_gap(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.0, "dur": 1.0}]
    path = write_trace(tmp_path / "one.json", events)
    with pytest.raises(DataError, match="no gap of 2 to 200 µs"):
        extract_overheads(host_iterations(read_trace_events(path)), source="one.json")
