"""The published layout: graphs that networkx pickled, labels as text, and what must be refused."""

from __future__ import annotations

import ast
import json
import os
import pickle
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.networks.dataset.features import graph_features
from cdmpp.networks.dataset.published import convert_published, read_published, write_published
from cdmpp.networks.dataset.rows import GraphRow, LabelRow
from cdmpp.networks.dataset.store import NetworkData, read_dataset
from cdmpp.networks.graph.graph import ARGUMENTS, MEMORY
from tests.networks.graph.example_graphs import rows_and_labels

networkx = pytest.importorskip("networkx")

TRAIN, INFER = "2.5|62.4|30.0|2700.5|99|55|2728", "0.5|97.0|20.5|1700.0|99|45|1790"


def _feature(kind: str, batch: int, number: Callable[[int], Any] = int, **sizes: int) -> Any:
    memory = dict.fromkeys(MEMORY, 0) | {"bytes": 100, "batch_size": batch} | sizes
    return {
        "type": kind,
        "args": {name: number(3 if name == "conv_kernel_size" else 0) for name in ARGUMENTS},
        "memory_info": {name: number(value) for name, value in memory.items()},
        "flops": number(700),
        "arith_intensity": 7.0,
    }


def _graph(batch: int = 4, number: Callable[[int], Any] = int) -> Any:
    """Conv -> Relu -> Add <- Conv; the nodes are added in another order, with names."""
    graph = networkx.DiGraph()
    graph.add_node("add", feature=_feature("Add", batch, number))
    graph.add_node("conv", feature=_feature("Conv", batch, number, input_w=224, input_h=224))
    graph.add_node("relu", feature=_feature("Relu", batch, number, output_size=50))
    graph.add_edges_from([("conv", "relu"), ("relu", "add"), ("conv", "add")])
    return graph


def _write(folder: Path, name: str, value: Any, label: Any = None, protocol: int = 4) -> None:
    for part in ("cg", "label"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "cg" / f"{name}.pkl").write_bytes(pickle.dumps(value, protocol))
    if label is not None:
        text = label if isinstance(label, str) else repr(label)
        (folder / "label" / f"{name}.txt").write_text(text)


def _read(folder: Path) -> tuple[GraphRow, list[LabelRow]]:
    ((row, labels),) = read_published(folder)
    return row, labels


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "number", [int, str, float, np.int64, np.float32, np.uint16, lambda value: f" {value}.0 "]
)
def test_a_graph_of_networkx(
    tmp_path: Path, number: Callable[[int], Any], protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = _graph(number=number)
    list(graph.nodes), list(graph.edges), list(graph.adj)  # views are pickled too once used
    _write(tmp_path, "net", graph, {"train": TRAIN, "infer": INFER}, protocol)
    monkeypatch.setitem(sys.modules, "networkx", None)  # importing it would fail
    row, labels = _read(tmp_path)
    assert row.graph.kinds == ("Conv", "Relu", "Add")
    assert row.graph.edges.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert row.graph.batch == 4
    assert row.graph.flops.tolist() == [700.0] * 3
    assert row.graph.column("conv_kernel_size").tolist() == [3.0] * 3
    assert row.graph.column("output_size").tolist() == [0.0, 50.0, 0.0]
    assert row.resolution == 224
    assert (row.source, row.graph.name) == ("published", "net")
    infer, train = labels
    assert (infer.mode, train.mode, train.device) == ("infer", "train", "rtx3090")
    assert train.time_s == pytest.approx(2.5e-3 * 4)
    assert train.memory_bytes == 2728 * 2**20
    assert infer.utilisation == pytest.approx(0.97)
    assert graph_features(row.graph).nodes.shape == (3, 30)


def test_attributes_instead_of_dictionaries(tmp_path: Path) -> None:
    graph = _graph()
    for node in graph.nodes:
        feature = graph.nodes[node]["feature"]
        for part in ("args", "memory_info"):
            feature[part] = types.SimpleNamespace(**feature[part])
        graph.nodes[node]["feature"] = types.SimpleNamespace(**feature)
    _write(tmp_path, "net", graph)
    assert _read(tmp_path)[0].graph.kinds == ("Conv", "Relu", "Add")


def test_batches_of_one_network_are_one_architecture(tmp_path: Path) -> None:
    for batch in (1, 2, 256):
        _write(tmp_path, f"net_{batch}", _graph(batch), {"train": TRAIN, "infer": INFER})
    rows = [row for row, _ in read_published(tmp_path)]
    assert len({row.architecture for row in rows}) == 1
    assert {row.graph.batch for row in rows} == {1, 2, 256}


@pytest.mark.parametrize(
    "label",
    [
        {"infer": INFER},
        {"infer": INFER, "train": None},
        {"infer": INFER, "train": ""},
        {"infer": INFER, "train": "OOM"},
    ],
)
def test_a_missing_cell_is_out_of_memory(tmp_path: Path, label: Any) -> None:
    _write(tmp_path, "net", _graph(), label)
    infer, train = _read(tmp_path)[1]
    assert (infer.outcome, train.outcome) == ("ok", "out-of-memory")
    assert (train.time_s, train.memory_bytes) == (None, None)


def test_without_a_label_file_nothing_is_said(tmp_path: Path) -> None:
    _write(tmp_path, "net", _graph())
    assert _read(tmp_path)[1] == []


def test_zip_archives(tmp_path: Path) -> None:
    _write(tmp_path / "plain", "net", _graph(), {"train": TRAIN, "infer": INFER})
    packed = tmp_path / "packed"
    packed.mkdir()
    for part in ("cg", "label"):
        with zipfile.ZipFile(packed / f"{part}.zip", "w") as archive:
            archive.writestr(f"__MACOSX/{part}/._net.pkl", b"junk")
            for path in (tmp_path / "plain" / part).iterdir():
                archive.write(path, f"{part}/{path.name}")
    plain, zipped = _read(tmp_path / "plain"), _read(packed)
    assert plain[0].graph.graph_id == zipped[0].graph.graph_id
    assert plain[1] == zipped[1]


def test_both_kinds_of_files_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "net.pkl").write_bytes(pickle.dumps(_graph()))
    (tmp_path / "net.txt").write_text(repr({"train": TRAIN, "infer": INFER}))
    assert len(_read(tmp_path)[1]) == 2


class _Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("function", [os.system, eval, getattr, os.makedirs])
def test_a_function_is_refused_and_not_run(tmp_path: Path, function: Any, protocol: int) -> None:
    trace = tmp_path / "ran"
    _write(tmp_path, "net", _Call(function, f"touch {trace}"), protocol=protocol)
    with pytest.raises(DataError, match=r"rejected: the pickle names the global .*net"):
        _read(tmp_path)
    assert not trace.exists()


def test_numpy_arrays_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, "net", np.zeros(3))
    with pytest.raises(DataError, match="refused"):
        _read(tmp_path)


def _change(part: str, key: str, value: Any) -> Any:
    graph = _graph()
    feature = graph.nodes["conv"]["feature"]
    (feature[part] if part else feature)[key] = value
    return graph


def _cycle() -> Any:
    graph = _graph()
    graph.add_edge("add", "conv")
    return graph


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (_change("memory_info", "output_w", "wide"), "`output_w` is 'wide', expected a number"),
        (_change("memory_info", "output_w", None), "`output_w` is None, expected a number"),
        (_change("memory_info", "bytes", float("inf")), "`bytes` is inf"),
        (_change("memory_info", "batch_size", 7), "batch sizes are"),
        (_change("", "flops", "nan"), "`flops` is nan"),
        (_change("", "memory_info", 3), "`memory_info` is int"),
        (_cycle(), "the graph has a cycle"),
        (networkx.DiGraph(), "without nodes"),
        (networkx.DiGraph([(1, 2)]), "`feature` is NoneType"),
        ([1, 2], "list, expected a networkx graph"),
    ],
)
def test_graphs_that_are_none(tmp_path: Path, value: Any, message: str) -> None:
    _write(tmp_path, "net", value)
    with pytest.raises(DataError, match=message) as caught:
        _read(tmp_path)
    assert "net.pkl" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"junk", b"\x80\x04", b"{", b'{"nodes": [3], "edges": []}'])
def test_files_that_are_none(tmp_path: Path, data: bytes) -> None:
    _write(tmp_path, "net", 0)
    (tmp_path / "cg" / "net.pkl").write_bytes(data)
    with pytest.raises(DataError, match=r"net\.pkl"):
        _read(tmp_path)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("__import__('os').system('true')", "not a dictionary of values"),
        ("{[]: 1}", r"not a dictionary of values \(TypeError\)"),
        ("{'train': ", "not a dictionary of values"),
        ("[1]", "list, expected a dictionary"),
        ({"train": "1|2|3", "infer": INFER}, "3 fields, expected 7"),
        ({"train": TRAIN.replace("62.4", "many"), "infer": INFER}, "many.*expected 7 numbers"),
        ({"train": "-" + TRAIN, "infer": INFER}, "expected milliseconds above 0"),
        ({"train_outcome": "ok", "infer": INFER}, "outcome 'ok'"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, label: Any, message: str) -> None:
    _write(tmp_path, "net", _graph(), label)
    with pytest.raises(DataError, match=message) as caught:
        _read(tmp_path)
    assert "net.txt" in str(caught.value)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        list(read_published(tmp_path / "nothing"))
    with pytest.raises(DataError, match=r"no graph files.*expected `cg` and `label`"):
        list(read_published(tmp_path))
    (tmp_path / "cg.zip").write_bytes(b"PK junk")
    with pytest.raises(DataError, match="not a readable zip archive"):
        list(read_published(tmp_path))


def test_convert_counts(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    for batch in (1, 2):
        _write(folder, f"net_{batch}", _graph(batch), {"train": TRAIN, "infer": INFER})
    _write(folder, "net_4", _graph(4), {"infer": INFER})
    _write(folder, "same_4", _graph(4), {"infer": INFER})
    _write(folder, "bare_8", _graph(8))
    _write(folder, "broken", 3)
    (folder / "label" / "alone.txt").write_text("{}")
    with pytest.raises(DataError, match=r"broken\.pkl"):
        convert_published(folder, tmp_path / "out")
    report = convert_published(folder, tmp_path / "out", skip_damaged=True)
    data = read_dataset(tmp_path / "out")
    assert len(data.graphs) == report.graphs == 4
    assert len(data.labels) == report.labels == 6
    assert (report.architectures, report.out_of_memory, report.repeated) == (1, 1, 1)
    assert (report.unlabelled, report.without_graph, len(report.damaged)) == (1, 1, 1)
    assert "broken.pkl" in report.summary()


def test_written_and_read_again(tmp_path: Path) -> None:
    rows, labels = rows_and_labels(9)
    labels[0] = LabelRow(labels[0].graph_id, "rtx3090", "infer", outcome="out-of-memory")
    labels[3] = LabelRow(labels[3].graph_id, "rtx3090", "train", outcome="timeout")
    missing = labels.pop(5)
    assert write_published(NetworkData(rows, labels, {}), tmp_path / "out", device="rtx3090") == 9
    pairs = list(read_published(tmp_path / "out"))
    found = {row.graph.graph_id: (row, kept) for row, kept in pairs}
    assert len(found) == 9
    assert [label.mode for label in found[missing.graph_id][1]] == ["infer"]
    for row in rows:
        again = found[row.graph.graph_id][0]
        assert again.graph.name == row.graph.name
        assert (again.architecture, again.source, again.spec, again.resolution) == (
            row.architecture, row.source, row.spec, row.resolution,
        )  # fmt: skip
    for label in labels:
        (again_label,) = [x for x in found[label.graph_id][1] if x.mode == label.mode]
        assert again_label.outcome == label.outcome
        if label.outcome == "ok":
            assert again_label.time_s == pytest.approx(label.time_s, rel=1e-14)
            assert again_label.memory_bytes == label.memory_bytes
            assert again_label.utilisation == pytest.approx(label.utilisation)


def test_all_seven_fields_survive(tmp_path: Path) -> None:
    _write(tmp_path / "in", "net", _graph(), {"train": TRAIN, "infer": INFER})
    convert_published(tmp_path / "in", tmp_path / "set")
    write_published(read_dataset(tmp_path / "set"), tmp_path / "out", device="rtx3090")
    (path,) = (tmp_path / "out" / "label").iterdir()
    for mode, text in ast.literal_eval(path.read_text()).items():
        numbers = [float(part) for part in text.split("|")]
        expected = TRAIN if mode == "train" else INFER
        assert numbers == pytest.approx([float(part) for part in expected.split("|")])


def test_networkx_reads_what_is_written(tmp_path: Path) -> None:
    rows, labels = rows_and_labels(1)
    write_published(NetworkData(rows, labels, {}), tmp_path, device="rtx3090")
    (path,) = (tmp_path / "cg").iterdir()
    graph = networkx.node_link_graph(json.loads(path.read_text()), edges="edges")
    assert sorted(graph.edges()) == [tuple(edge) for edge in rows[0].graph.edges.tolist()]
    feature = graph.nodes[0]["feature"]
    assert feature["type"] == rows[0].graph.kinds[0]
    assert list(feature["args"].values()) == rows[0].graph.arguments[0].tolist()
    # The published example wraps the value in the constructor and pickles the graph.
    _write(tmp_path / "pickled", "net", networkx.DiGraph(graph))
    assert _read(tmp_path / "pickled")[0].graph.graph_id == rows[0].graph.graph_id


def test_writing_needs_a_new_folder_and_a_measured_device(tmp_path: Path) -> None:
    data = NetworkData(*rows_and_labels(1), {})
    with pytest.raises(DataError, match="expected one of rtx3090"):
        write_published(data, tmp_path, device="t4")
    write_published(data, tmp_path, device="rtx3090")
    with pytest.raises(DataError, match="not empty"):
        write_published(data, tmp_path, device="rtx3090")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_damaged_pickles_end_in_one_error(tmp_path: Path, protocol: int) -> None:
    _write(tmp_path, "net", _graph(), protocol=protocol)
    path = tmp_path / "cg" / "net.pkl"
    whole = path.read_bytes()
    rng = np.random.default_rng(protocol)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            data[place] = rng.integers(256)
        path.write_bytes(bytes(data[: rng.integers(1, len(data))]) if rng.random() < 0.2 else data)
        try:
            _read(tmp_path)
        except DataError:
            refused += 1
    assert refused > 30
