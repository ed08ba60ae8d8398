"""Chrome traces: a real one of torch.profiler, made-up ones of a GPU, TensorFlow and the HL-100."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from cdmpp.errors import DataError
from cdmpp.profiling.formats.hl100_trace import read_symbols
from cdmpp.profiling.merge import group_rows, join_rows
from cdmpp.profiling.read import read_profile
from cdmpp.profiling.schema import ProfileRow
from cdmpp.replay.traces.trace_events import read_trace_events

US = 1e6


@pytest.fixture(scope="module")
def torch_trace(tmp_path_factory):
    """(path, torch's own table) of a small network, forward and backward, on the CPU."""
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 16),
        nn.LayerNorm(16),
    )  # fmt: skip
    table = nn.EmbeddingBag(100, 16, mode="sum")
    images, indices = torch.randn(4, 3, 8, 8), torch.randint(0, 100, (4, 5))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(3):
            with record_function("step"):
                (network(images) + table(indices)).sum().backward()
                torch.sort(images.flatten())
    path = tmp_path_factory.mktemp("trace") / "cpu.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    return path, {
        event.key: (event.count, event.cpu_time_total, event.self_cpu_time_total)
        for event in profiler.key_averages()
    }


def test_totals_are_those_of_torch(torch_trace):
    path, table = torch_trace
    profile = read_profile(path)
    found = {rows[0].name: join_rows(rows) for rows in group_rows(profile.rows)}
    assert set(found) == set(table)
    for name, (count, total_us, self_us) in table.items():
        row = found[name]
        # The file has whole nanoseconds.
        assert row.calls == count, name
        assert row.total_s * US == pytest.approx(total_us, abs=2e-3 * count), name
        assert row.self_s * US == pytest.approx(self_us, abs=1e-2 * count + 1e-6 * total_us), name
    assert found["step"].kind == "range"
    assert profile.epoch_s is not None
    conv = next(row for row in profile.rows if row.name == "aten::conv2d")
    assert conv.call.shapes[:2] == ((4, 3, 8, 8), (8, 3, 3, 3))
    assert conv.call.setting("padding") == (1, 1)


def test_gzipped_as_tensorboard_has_it(torch_trace, tmp_path):
    path, _ = torch_trace
    packed = tmp_path / "worker.pt.trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [row.total_s for row in read_profile(packed).rows] == [
        row.total_s for row in read_profile(path).rows
    ]


@pytest.mark.parametrize("change", [{"args": [1]}, {"name": 1, "args": 2}])
def test_an_odd_event_without_a_time(tmp_path, change):
    good = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 0, "dur": 5}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"traceEvents": [good, {**good, "dur": 0, **change}]}))
    with pytest.raises(DataError, match="an event does not match the trace format"):
        read_profile(path)


def test_metrics_are_means_over_calls():
    row = ProfileRow(kind="kernel", name="k", short_name="k", calls=1, total_s=1.0, min_s=None,
                     max_s=None, metrics={"hits": 10.0, "unit": "x"})  # fmt: skip
    other = replace(row, calls=3, metrics={"hits": 50.0, "misses": 7.0})
    assert join_rows([row, other]).metrics == {"hits": 40.0, "unit": "x", "misses": 7.0}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_truncated(torch_trace, tmp_path, share):
    content = torch_trace[0].read_bytes()
    for name, data in (("a.json", content), ("a.json.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DataError, match=r"truncated|ends too early") as caught:
            read_profile(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_malformed_in_the_middle(torch_trace, tmp_path):
    text = torch_trace[0].read_text()
    place = text.index('"dur"', len(text) // 2)
    (tmp_path / "bad.json").write_text(text[:place] + "dur" + text[place + 5 :])
    with pytest.raises(DataError, match=r"not JSON after \d+ elements?: .* near "):
        read_profile(tmp_path / "bad.json")


def gpu_trace(*, kernels_first=False):
    """A trace as torch writes it with CUDA; made up after libkineto's output."""
    host = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0,
         "dur": 50.0, "args": {"External id": 5, "Input Dims": [[64, 128], [128, 32]],
                               "Input type": ["float", "float"]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
         "ts": 20.0, "dur": 5.0, "args": {"External id": 5, "correlation": 9}},
    ]  # fmt: skip
    device = [
        {"ph": "X", "cat": "kernel", "name": "volta_sgemm_128x64_nn", "pid": 0, "tid": 7,
         "ts": 100.0, "dur": 30.0,
         "args": {"External id": 5, "device": 0, "stream": 7, "correlation": 9,
                  "registers per thread": 122, "shared memory": 12544, "grid": [1, 2, 1],
                  "block": [128, 1, 1]}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0,
         "tid": 7, "ts": 140.0, "dur": 4.0, "args": {"bytes": 4096, "stream": 7}},
    ]  # fmt: skip
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans",
         "tid": "PyTorch Profiler", "ts": 0.0, "dur": 500.0},
    ]  # fmt: skip
    events = [*device, *host] if kernels_first else [*host, *device]
    return {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB"}],
        "traceEvents": [*names, *events], "traceName": "x",
    }  # fmt: skip


def write(tmp_path, value, name="t.json"):
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize("kernels_first", [False, True])
def test_kernels_know_the_operator_that_launched_them(tmp_path, kernels_first):
    profile = read_profile(write(tmp_path, gpu_trace(kernels_first=kernels_first)))
    rows = {row.kind: row for row in profile.rows}
    assert set(rows) == {"cpu_op", "api", "kernel", "memcpy"}
    assert rows["kernel"].call.name == "aten::mm"
    assert rows["kernel"].launch.registers_per_thread == 122
    assert rows["memcpy"].moved_bytes == 4096
    assert profile.device_name == "Tesla V100-SXM2-16GB"
    assert "stream 7" in profile.events.lanes
    assert len(profile.events) == 4


def test_bare_list_begin_and_end_events_and_nan(tmp_path):
    text = (
        '[{"ph":"B","name":"a","pid":1,"tid":1,"ts":10,"args":{"x":NaN}},'
        '{"ph":"B","name":"b","pid":1,"tid":1,"ts":12},{"ph":"E","pid":1,"tid":1,"ts":15},'
        '{"ph":"E","pid":1,"tid":1,"ts":20},{"ph":"E","pid":1,"tid":1,"ts":21}]'
    )
    profile = read_profile(write(tmp_path, text))
    assert {row.name: row.total_s * US for row in profile.rows} == pytest.approx({"a": 10, "b": 3})
    assert {row.name: row.self_s * US for row in profile.rows} == pytest.approx({"a": 7, "b": 3})
    assert profile.notes == ("left out 1 event with a beginning or an end only",)


def test_events_without_a_time_beside_absolute_times(tmp_path):
    begin = 1.7e15
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "mm", "pid": 1, "tid": 1, "ts": begin, "dur": 50},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": begin + 40, "dur": 220},
        *[{"ph": "X", "cat": "cpu_op", "name": "add", "pid": 1, "tid": 1, "ts": 0.0, "dur": 0.0}]
        * 3,
    ]  # fmt: skip
    profile = read_profile(write(tmp_path, {"traceEvents": events}))
    assert [row.name for row in profile.rows] == ["mm", "k"]
    end_s = float((profile.events.start_s + profile.events.duration_s).max())
    assert end_s * US == pytest.approx(260)
    assert profile.notes == ("3 events have time 0 and duration 0 (not measured): left out",)
    trace = read_trace_events(tmp_path / "t.json")
    assert (len(trace.operators), len(trace.kernels), trace.notes) == (1, 1, list(profile.notes))
    for event in events[:2]:  # a clock that begins with the trace
        event["ts"] -= begin
    profile = read_profile(write(tmp_path, {"traceEvents": events}))
    assert {row.name: row.calls for row in profile.rows} == {"mm": 1, "k": 1, "add": 3}
    assert profile.notes == ()
    assert len(read_trace_events(tmp_path / "t.json").operators) == 4


def test_events_that_had_not_ended_are_left_out(tmp_path):
    """One of them refused the whole trace, or ended before it began in a replay."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 9 * place, "dur": dur}
        for place, (name, dur) in enumerate([("mm", 5), ("add", -1), ("mm", 5)])
    ]
    profile = read_profile(write(tmp_path, {"traceEvents": events}))
    assert [(row.name, row.calls) for row in profile.rows] == [("mm", 2)]
    assert profile.notes == ("1 event has a negative duration (unfinished): left out",)
    trace = read_trace_events(tmp_path / "t.json")
    assert (len(trace.operators), trace.notes) == (2, list(profile.notes))


def test_a_list_of_events_may_have_line_ends_of_windows(tmp_path):
    """It was a profile of an unknown kind."""
    event = {"ph": "X", "cat": "cpu_op", "name": "mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    (row,) = read_profile(write(tmp_path, f"[\r\n{json.dumps(event)}\r\n]")).rows
    assert row.name == "mm"


def test_tensorflow_trace_goes_by_the_names_of_processes(tmp_path):
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "/host:CPU"}},
        {"ph": "X", "name": "fusion", "pid": 1, "tid": 1, "ts": 1, "dur": 2},
        {"ph": "X", "name": "MatMul", "pid": 2, "tid": 1, "ts": 1, "dur": 3},
    ]
    rows = read_profile(write(tmp_path, {"traceEvents": events})).rows
    assert [(row.kind, row.name) for row in rows] == [("kernel", "fusion"), ("cpu_op", "MatMul")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceEvents": []}', "without an event that has a duration"),
        ('{"nodes": [1, 2]}', "no 'traceEvents' in it .it has nodes."),
        ('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1}]}', "an event does not .*no 'dur'"),
        ('{"traceEvents": [{"ph": "X", "name": "a", "ts": "x", "dur": 1}]}', "an event does not"),
        (
            '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": -1}]}',
            "without an event that",
        ),
        ('{"traceEvents": [5]}', "an event does not"),
    ],
)
def test_one_clear_error(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        read_profile(write(tmp_path, text))
    assert "\n" not in str(caught.value)


HL100 = {
    "traceEvents": [
        {"ph": "M", "cat": "__metadata", "name": "process_name", "pid": 1, "tid": 0,
         "args": {"name": "*MME"}},
        {"ph": "M", "cat": "__metadata", "name": "process_name", "pid": 2, "tid": 0,
         "args": {"name": "*TPC"}},
        {"ph": "M", "cat": "__metadata", "name": "process_name", "pid": 3, "tid": 0,
         "args": {"name": "Host"}},
        {"ph": "B", "name": "net/conv", "pid": 1, "tid": 0, "ts": 100},
        {"ph": "E", "name": "net/conv", "pid": 1, "tid": 0, "ts": 150},
        {"ph": "B", "name": "net/relu", "pid": 2, "tid": 3, "ts": 150},
        {"ph": "E", "name": "net/relu", "pid": 2, "tid": 3, "ts": 160},
        {"ph": "B", "name": "TPC context", "pid": 2, "tid": 3, "ts": 160},
        {"ph": "E", "name": "TPC context", "pid": 2, "tid": 3, "ts": 170},
        {"ph": "B", "name": "host work", "pid": 3, "tid": 0, "ts": 0},
        {"ph": "E", "name": "host work", "pid": 3, "tid": 0, "ts": 900},
        {"ph": "B", "name": "net/conv", "pid": 1, "tid": 0, "ts": 200},
        {"ph": "E", "name": "net/conv", "pid": 1, "tid": 0, "ts": 270},
    ]
}  # fmt: skip
SYMBOLS = {
    "nodes": [
        {"name": "net/conv", "op": "conv2d", "attrs": {
            "input_0": "x:0  |  [8,224,224,3]  |  int8  |  zp = -14, scale = 0.0187  |  "
                       "ModelParam = 0  |  ",
            "input_1": "w:0  |  [64,3,7,7]  |  int8  |  zp = 0, scale = 1e-3  |  "
                       "ModelParam = 1  |  ",
            "output_0": "y:0  |  [8,112,112,64]  |  float32  |  zp = 0, scale = 1.0  |  "
                        "ModelParam = 0  |  ",
            "stride": "2"}},
    ]
}  # fmt: skip


def test_hl100_operators(tmp_path):
    path = write(tmp_path, HL100, "default_profiling.json")
    bare = read_profile(path)
    assert bare.format == "HL-100 operator trace"
    assert "no symbol file" in bare.notes[0]
    write(tmp_path, SYMBOLS, "net.recipe-PostGraph-symbol.json")
    profile = read_profile(path)
    rows = {row.name: row for row in profile.rows}
    assert set(rows) == {"net/conv", "net/relu"}
    assert (rows["net/conv"].kind, rows["net/conv"].calls) == ("operator", 2)
    assert rows["net/conv"].total_s * US == pytest.approx(120.0)
    assert rows["net/conv"].call.name == "MME conv2d"
    assert rows["net/conv"].call.shapes[0] == (8, 224, 224, 3)
    assert profile.device_name == "hl-100"


def test_hl100_bad_tensor_and_no_operator(tmp_path):
    write(tmp_path, {"nodes": [{"name": "a", "op": "b", "attrs": {"input_0": "x | 3"}}]}, "symbols")
    with pytest.raises(DataError, match=r"cannot read the tensor 'x \| 3'"):
        read_symbols(tmp_path / "symbols")
    only = {"traceEvents": HL100["traceEvents"][:3]}
    with pytest.raises(DataError, match="no operator ran on an MME or TPC"):
        read_profile(write(tmp_path, only))


@pytest.mark.parametrize(
    "event",
    [
        {"ts": 10**400, "dur": 1}, {"ts": "inf", "dur": 1}, {"ts": "nan", "dur": 1},
        {"ts": 1, "dur": 1, "name": 7}, {"ts": 1, "dur": 1, "cat": "kernel", "name": None},
        {"ts": 1, "dur": 1e308}, {"ts": -(2**63), "dur": 1},
        {"ts": 1, "dur": 1, "args": {"bytes": "inf"}}, {"ts": 1, "dur": 1, "args": {"bytes": -1}},
    ],
)  # fmt: skip
def test_names_times_and_sizes_that_are_none(event, tmp_path):
    """What is shown would be infinite, NaN or a crash."""
    path = tmp_path / "trace.json"
    whole = {"ph": "X", "pid": 1, "tid": 1, "name": "Memcpy", "cat": "gpu_memcpy", **event}
    traces = [[whole]]
    if "args" not in event:  # the HL-100 counts no bytes
        traces.append([*HL100["traceEvents"], {**whole, "cat": "op"}])
    for events in traces:
        path.write_text(json.dumps({"traceEvents": events}))
        with pytest.raises(DataError, match="does not match"):
            read_profile(path)
