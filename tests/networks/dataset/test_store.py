"""The data set of networks: what is written is read again, and nothing else passes as it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.errors import DataError, UsageError
from cdmpp.networks.dataset import store
from cdmpp.networks.dataset.rows import GraphRow, LabelRow
from cdmpp.networks.dataset.store import check_replaced, read_dataset, write_dataset
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.step_time.graphs import trace_architectures
from tests.networks.graph.example_graphs import random_graph, rows_and_labels


def _same(first: NetworkGraph, second: NetworkGraph) -> bool:
    return (first.graph_id, first.name) == (second.graph_id, second.name)


def test_round_trip(tmp_path: Path) -> None:
    rows, labels = rows_and_labels(20)
    write_dataset(tmp_path / "set", rows, labels, note={"device": "rtx3090"})
    data = read_dataset(tmp_path / "set")
    assert data.labels == labels
    assert all(_same(a.graph, b.graph) for a, b in zip(data.graphs, rows, strict=True))
    assert [replace(row, graph=rows[0].graph) for row in data.graphs] == [
        replace(row, graph=rows[0].graph) for row in rows
    ]
    assert data.by_id()[labels[0].graph_id].architecture == "a0"
    assert data.manifest["graphs"] == 20
    assert data.manifest["architectures"] == 5
    assert data.manifest["outcomes"] == {"ok": 40}
    assert data.manifest["note"] == {"device": "rtx3090"}


@pytest.mark.parametrize("offset", [0.0, 1 / 3, 1e300, -0.0])
def test_numbers_come_back_to_the_last_bit(tmp_path: Path, offset: float) -> None:
    graph = random_graph(np.random.default_rng(1), 9)
    odd = NetworkGraph(
        "odd", 4, graph.kinds, graph.arguments * offset, graph.memory + offset, graph.flops,
        graph.edges,
    )  # fmt: skip
    whole = GraphRow(graph, "a", "test")
    write_dataset(tmp_path, [GraphRow(odd, "b", "test"), whole], [], note={})
    first, second = (row.graph for row in read_dataset(tmp_path).graphs)
    assert first.memory.tobytes() == odd.memory.tobytes()
    assert first.arguments.tobytes() == odd.arguments.tobytes()
    assert second.graph_id == graph.graph_id


def test_holds_come_back(tmp_path: Path) -> None:
    graphs = [random_graph(np.random.default_rng(seed), 9) for seed in range(3)]
    graphs[1] = replace(graphs[1], holds=np.array([[0, 8], [2, 7]]))
    write_dataset(tmp_path, [GraphRow(graph, "a", "test") for graph in graphs], [], note={})
    found = [row.graph.holds.tolist() for row in read_dataset(tmp_path).graphs]
    assert found == [[], [[0, 8], [2, 7]], []]


def test_pieces_make_the_same_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = rows_and_labels(11)
    write_dataset(tmp_path / "one", rows, labels, note={})
    monkeypatch.setattr(store, "_PIECE_GRAPHS", 3)
    write_dataset(tmp_path / "many", iter(rows), iter(labels), note={})
    one, many = read_dataset(tmp_path / "one"), read_dataset(tmp_path / "many")
    assert one.labels == many.labels
    assert [row.graph.graph_id for row in one.graphs] == [row.graph.graph_id for row in many.graphs]


def test_same_rows_give_same_bytes(tmp_path: Path) -> None:
    rows, labels = rows_and_labels(6)
    for name in ("first", "second"):
        write_dataset(tmp_path / name, rows, labels, note={"seed": 0})
    for file in ("manifest.json", "graphs.parquet", "labels.parquet"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_equal_graphs_are_stored_once(tmp_path: Path) -> None:
    rows, labels = rows_and_labels(3)
    again = replace(rows[0], graph=replace(rows[0].graph, name="other"), architecture="late")
    write_dataset(tmp_path, [*rows, again], labels, note={})
    data = read_dataset(tmp_path)
    assert [row.graph.name for row in data.graphs] == ["net-0", "net-1", "net-2"]
    assert data.manifest["architectures"] == 1


def test_measurements_are_not_replaced_by_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`networks generate --out` into a measured data set lost all its labels."""
    rows, labels = rows_and_labels(3)
    write_dataset(tmp_path, rows, labels, note={"device": "mine"})
    before = (tmp_path / "manifest.json").read_bytes()
    assert main(["networks", "generate", "--out", str(tmp_path), "--architectures", "1"]) == 2
    assert f"{len(labels)} labels that would be lost; give another" in capsys.readouterr().err
    assert (tmp_path / "manifest.json").read_bytes() == before
    with pytest.raises(UsageError, match="would be lost"):
        trace_architectures([("resnet18", 224)], tmp_path)
    check_replaced(tmp_path, {"device": "mine"})
    write_dataset(tmp_path, rows, [], note={})
    check_replaced(tmp_path, {"device": "mine"})


def test_an_empty_data_set(tmp_path: Path) -> None:
    write_dataset(tmp_path, [], [], note={})
    data = read_dataset(tmp_path)
    assert (data.graphs, data.labels) == ([], [])


def test_a_label_needs_its_graph(tmp_path: Path) -> None:
    rows, labels = rows_and_labels(3)
    write_dataset(tmp_path, rows[:1], labels[:2], note={})
    with pytest.raises(DataError, match="not among the 2 graphs"):
        write_dataset(tmp_path, rows[:2], labels, note={})
    assert len(read_dataset(tmp_path).graphs) == 1, "the data set that was there must stay"
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_a_label_comes_once(tmp_path: Path) -> None:
    rows, labels = rows_and_labels(1)
    with pytest.raises(DataError, match="two labels"):
        write_dataset(tmp_path, rows, [*labels, labels[0]], note={})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "forward"}, "mode 'forward', expected one of infer, train"),
        ({"outcome": "sleepy"}, "outcome 'sleepy'"),
        ({"time_s": None}, "expected above 0"),
        ({"time_s": 0.0}, "expected above 0"),
        ({"time_s": float("nan")}, "expected above 0"),
    ],
)
def test_labels_are_checked(changes: dict[str, object], message: str) -> None:
    _, labels = rows_and_labels(1)
    with pytest.raises(DataError, match=message):
        replace(labels[0], **changes)  # type: ignore[arg-type]


def test_without_a_time_an_outcome_is_needed() -> None:
    assert LabelRow("x", "t4", "train", outcome="out-of-memory").time_s is None


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    rows, labels = rows_and_labels(2)
    write_dataset(tmp_path, rows, labels, note={})
    path = tmp_path / "labels.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="changed or truncated"):
        read_dataset(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="cannot read"):
        read_dataset(tmp_path)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "sha256": {}}))
    with pytest.raises(DataError, match=r"manifest\.json has None"):
        read_dataset(tmp_path)


def test_what_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.json missing.*cdmpp networks"):
        read_dataset(tmp_path / "nothing")
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="schema version None, expected 2"):
        read_dataset(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="cannot read"):
        read_dataset(tmp_path)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, [], [], note={})
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    with pytest.raises(DataError, match="schema version 99"):
        read_dataset(tmp_path)
