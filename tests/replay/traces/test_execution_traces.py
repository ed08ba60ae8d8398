"""Execution traces of torch: every operator of a training step, of every version of torch."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cdmpp.cli.main import main
from cdmpp.errors import DataError
from cdmpp.replay.engine import replay
from cdmpp.replay.inputs import execution_graph, read_traces, trace_graph
from cdmpp.replay.kernels import KernelCosts
from cdmpp.replay.traces.execution_trace import read_execution_trace
from cdmpp.replay.traces.host_operators import host_iterations
from cdmpp.replay.traces.overheads import read_overheads
from cdmpp.replay.traces.trace_events import read_trace_events


@pytest.fixture(scope="module")
def execution_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch writes for a small network's iteration."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ExecutionTraceObserver

    path = tmp_path_factory.mktemp("trace") / "et.json"
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2), torch.nn.Sigmoid()
    )
    sample = torch.randn(4, 8)
    observer = ExecutionTraceObserver()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observer.register_callback(str(path))
        observer.start()
        (network(sample) + network(sample)).sum().backward()
        observer.stop()
        observer.unregister_callback()
    return path


def test_execution_traces_have_data_edges(execution_trace: Path) -> None:
    graph = read_execution_trace(execution_trace)
    names = [one.name for one in graph.operators]
    assert names[:4] == ["linear", "relu", "linear", "sigmoid"]
    first = graph.operators
    assert first[1].after == (first[0].id,)
    addition = next(one for one in first if one.name == "add")
    sigmoids = [one.id for one in first if one.name == "sigmoid"]
    assert addition.after == tuple(sigmoids)  # both branches, which are independent
    assert first[0].flop == 2.0 * 4 * 8 * 16
    assert (first[0].bytes or 0) >= 4 * (4 * 8 + 8 * 16 + 16 + 4 * 16)
    times = {one.id: 1.0 for one in first}
    assert replay(graph.scaled(times)).longest_path_s < len(first)
    found = KernelCosts({"cpu": "v100"}).costs(graph)
    assert {one.id for one in first if one.name in ("linear", "relu", "sigmoid", "add")} <= set(
        found
    )


@pytest.fixture(scope="module")
def training_step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Execution trace and profile of one training step."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function

    folder = tmp_path_factory.mktemp("step")
    observed, profiled = folder / "et.json", folder / "trace.json"
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    table = torch.nn.EmbeddingBag(50, 8, mode="sum")
    parameters = [*network.parameters(), *table.parameters()]
    optimiser = torch.optim.SGD(parameters, 0.1)
    indices = torch.randint(0, 50, (4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observer = ExecutionTraceObserver().register_callback(str(observed))
        with profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer
        ) as profiler:
            optimiser.zero_grad()
            with record_function("## forward ##"):
                result = network(table(indices))
            result.square().mean().backward()
            optimiser.step()
    profiler.export_chrome_trace(str(profiled))
    return observed, profiled


def test_a_training_step_keeps_its_backward_pass(training_step: tuple[Path, Path]) -> None:
    observed, profiled = training_step
    pair = execution_graph([observed, profiled])
    alone = trace_graph(read_traces([profiled]), [profiled])
    names = Counter(one.name for one in pair.operators)
    assert names == Counter(one.name for one in alone.operators)
    assert names["AddmmBackward0"] == 2
    assert names["AccumulateGrad"] == 5
    assert names["Optimizer.step"] == names["Optimizer.zero_grad"] == 1
    host_s = sum(
        (one.end_us - one.start_us) * 1e-6
        for one in host_iterations(read_trace_events(profiled))[0]
    )
    # Traces keep the times in microseconds with three digits.
    assert sum(one.time_s or 0.0 for one in pair.operators) == pytest.approx(host_s, rel=1e-4)


def test_wrappers_without_a_time_stand_for_what_they_call(training_step: tuple[Path, Path]) -> None:
    names = Counter(one.name for one in read_execution_trace(training_step[0]).operators)
    assert names["mm"] == 4  # gradients of two products and their inputs
    assert names["add_"] == 5  # the optimiser's, one a parameter
    assert not names["AddmmBackward0"]
    assert not names["AccumulateGrad"]  # handed on, not added up
    assert names["Optimizer.zero_grad"] == 1  # of which nothing but the name is known


def _flat(name: str, number: int, parent: int, **tensors: Any) -> dict[str, Any]:
    """A node of the older schema; a tensor is (its value, its shape)."""
    node: dict[str, Any] = {"name": name, "id": number, "parent": parent, "scope": 0}
    for side in ("inputs", "outputs"):
        found = tensors.get(side, ())
        node |= {
            side: [value for value, _ in found],
            f"{side[:-1]}_shapes": [shape for _, shape in found],
            f"{side[:-1]}_types": ["Tensor(float)" for _ in found],
        }
    return node


@pytest.mark.parametrize(
    ("process", "thread"),
    [
        ("[pytorch|profiler|execution_graph|process]", "[pytorch|profiler|execution_graph|thread]"),
        ("__ROOT_PROCESS__", "__ROOT_THREAD__"),
    ],
)
def test_traces_of_older_torch(tmp_path: Path, process: str, thread: str) -> None:
    path = tmp_path / "et.json"
    a, b, c = (7, [4, 8]), (8, [8, 2]), (9, [4, 2])
    table, looked_up = (10, [1000, 8]), (11, [4, 8])
    nodes = [
        _flat(process, 1, 1), _flat(thread, 2, 1), _flat("AddmmBackward", 3, 2),
        _flat("aten::mm", 4, 3, inputs=[a, b], outputs=[c]),
        _flat("LookupFunction", 5, 2, inputs=[table], outputs=[looked_up]),
    ]  # fmt: skip
    path.write_text(json.dumps({"schema": "1.0.0", "nodes": nodes}))
    product, lookup = read_execution_trace(path).operators
    assert (product.name, product.flop, product.bytes) == ("mm", 128.0, 4.0 * (32 + 16 + 8))
    assert lookup.bytes == 2 * 4.0 * 32  # rows that it writes, not the table


def test_ranges_in_each_other_and_deep_ones(tmp_path: Path) -> None:
    path = tmp_path / "et.json"
    ranges = [_flat("ProfilerStep#1", 1, 2), _flat("ProfilerStep#2", 2, 1)]
    product = _flat("aten::mm", 3, 1, inputs=[(7, [4, 8])], outputs=[(8, [4, 4])])
    path.write_text(json.dumps({"nodes": [*ranges, product]}))
    assert [one.name for one in read_execution_trace(path).operators] == ["mm"]
    nested = [_flat("wrapper", number, number - 1) for number in range(1, 3000)]
    path.write_text(json.dumps({"nodes": nested}))
    with pytest.raises(DataError, match="nested more than 200 deep"):
        read_execution_trace(path)


def test_kernels_of_the_profile_are_the_times_of_a_gpu_run(tmp_path: Path) -> None:
    def tensor(number: int, device: str) -> tuple[Any, list[int]]:
        return [number, number, 0, 64, 4, device], [8, 8]

    a, b, c = (tensor(number, "cuda:0") for number in (1, 2, 3))
    d = tensor(4, "cpu")
    nodes = [
        {**_flat("aten::mm", 3, 1, inputs=[a, b], outputs=[c]), "rf_id": 1},
        {**_flat("aten::add", 4, 1, inputs=[d, d], outputs=[d]), "rf_id": 2},
    ]
    observed, profiled = tmp_path / "et.json", tmp_path / "profile.json"
    observed.write_text(json.dumps({"schema": "1.0.0", "nodes": nodes}))

    def event(kind: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
        place = {"pid": 1, "tid": 1, "ts": ts, "dur": dur}
        return {"ph": "X", "cat": kind, "name": name, "args": args, **place}

    events = [
        event("cpu_op", "aten::mm", 100, 50, **{"Record function id": 1}),
        event("cuda_runtime", "cudaLaunchKernel", 110, 5, correlation=7),
        event("cuda_runtime", "cudaLaunchKernel", 120, 5, correlation=8),
        event("cpu_op", "aten::add", 160, 9, **{"Record function id": 2}),
        event("kernel", "gemm", 130, 200, correlation=7),
        event("kernel", "reduce", 330, 20, correlation=8),
    ]
    profiled.write_text(json.dumps({"traceEvents": events}))
    times_s = [one.time_s for one in execution_graph([observed, profiled]).operators]
    assert times_s == pytest.approx([220e-6, 9e-6])


@pytest.fixture
def public(tmp_path: Path) -> tuple[Path, Path]:
    """An execution graph and overheads in the form of the public repository of the walk."""
    nodes = [
        _flat("__ROOT_PROCESS__", 1, 1), _flat("__ROOT_THREAD__", 2, 1),
        _flat("aten::linear", 3, 2, inputs=[(7, [64, 32]), (8, [16, 32])], outputs=[(9, [64, 16])]),
        _flat("aten::linear", 4, 2, inputs=[(9, [64, 16]), (10, [8, 16])], outputs=[(11, [64, 8])]),
        _flat("aten::view", 5, 2, inputs=[(11, [64, 8])], outputs=[(11, [8, 64])]),
        _flat("LookupFunction", 6, 2, inputs=[(12, [1000, 8])], outputs=[(13, [4, 8])]),
    ]  # fmt: skip
    call = "cudaLaunchKernel"
    overheads = {
        "launches": {"aten::linear": [call, call]}, "t1": [10.0, 1.0, 99],
        "t2": {"aten::linear": [20.0, 2.0, 9]}, "t3": {"aten::linear": [30.0, 0.0, 9]},
        "t4": {call: [5.0, 0.0, 9]}, "t5": {"aten::linear": [7.0, 0.0, 9], "aten::view": [2, 0, 9]},
    }  # fmt: skip
    paths = tmp_path / "graph.json", tmp_path / "overheads.json"
    for path, value in zip(paths, ({"schema": "1.0.0", "nodes": nodes}, overheads), strict=True):
        path.write_text(json.dumps(value))
    return paths


def test_an_iteration_from_a_graph_and_published_overheads(
    public: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    graph, overheads = map(str, public)
    words = ["replay", graph, "--walk", "reference", "--device", "v100"]
    assert main([*words, "--overheads", overheads, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # T1 T2 T4 T5 T4 T3 of each product; T1 T5; T1, pooled T2, T4, pooled T3 of the lookup.
    host_us = 2 * (10 + 20 + 5 + 7 + 5 + 30) + (10 + 2) + (10 + 20 + 5 + 30)
    assert found["host_s"] == pytest.approx(1e-6 * host_us)
    assert found["total_s"] >= found["host_s"] > found["active_s"] > 0
    assert found["low_s"] < found["total_s"] < found["high_s"]
    spread_us = 1.645 * (4 * 1.0 + 3 * 2.0)
    assert found["low_s"] == pytest.approx(1e-6 * (host_us - spread_us))
    assert found["pooled"] == ["t2 LookupFunction", "t3 LookupFunction"]
    assert found["unmodelled"] == {"linear": 2}
    assert found["without_interval"] == []
    assumed, bound = found["notes"]
    assert assumed.endswith(": LookupFunction")
    assert bound.endswith(": LookupFunction")
    for lacking in ([], ["--device", "epyc-avx2-2c", "--overheads", overheads]):
        assert main([*words, *lacking]) == 2
    assert main([*words[:4], "--overheads", overheads]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [len(line) > 40 for line in lines] == [True] * 3
    Path(overheads).write_text(Path(overheads).read_text().replace("[10.0, 1.0, 99]", "[10.0]"))
    with pytest.raises(DataError, match=r"expected \[mean, standard deviation, count\]"):
        read_overheads(Path(overheads))


def test_statistics_need_no_device(
    public: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", str(public[0]), "--statistics"]
    assert main([*words, "clean", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["count"], row["shapes"]) for row in found] == [
        ("linear", 2, {"64x32, 16x32": 1, "64x16, 8x16": 1}), ("LookupFunction", 1, {"1000x8": 1}),
    ]  # fmt: skip
    assert main([*words, "clean"]) == 0
    assert "  1 x 64x16, 8x16\n" in capsys.readouterr().out
    assert main([*words, "brief"]) == 0
    assert "view" in capsys.readouterr().out


def test_the_older_schema_reads_alike(execution_trace: Path, tmp_path: Path) -> None:
    value = json.loads(execution_trace.read_text())

    def older(node: dict[str, Any]) -> dict[str, Any]:
        attributes = {entry["name"]: entry["value"] for entry in node["attrs"]}
        flat = {f"{side[:-1]}_{what}": node[side][what]
                for side in ("inputs", "outputs") for what in ("shapes", "types")}  # fmt: skip
        return {
            "id": node["id"], "name": node["name"], "parent": node["ctrl_deps"],
            "rf_id": attributes["rf_id"], "inputs": node["inputs"]["values"],
            "outputs": node["outputs"]["values"], **flat,
        }  # fmt: skip

    path = tmp_path / "et.json"
    path.write_text(json.dumps({"schema": "1.0.1", "nodes": [older(n) for n in value["nodes"]]}))
    assert read_execution_trace(path).operators == read_execution_trace(execution_trace).operators


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": "1.1.1", "nodes": []}', "0 nodes, but no operator"),
        ('{"nodes": [{"id": 1}]}', "node 1: KeyError"),
        ('{"nodes": [{"id": 1, "name": "a"', "truncated after"),
    ],
)
def test_bad_execution_traces(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "et.json"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        read_execution_trace(path)
