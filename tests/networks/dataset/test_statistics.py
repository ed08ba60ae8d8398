"""The statistics table, and the commands that convert and summarise data sets of networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.errors import DataError
from cdmpp.networks.dataset.rows import GraphRow, LabelRow
from cdmpp.networks.dataset.statistics import dataset_rows, network_statistics
from cdmpp.networks.dataset.store import NetworkData, read_dataset, write_dataset
from cdmpp.networks.graph.graph import ARGUMENTS, MEMORY, NetworkGraph
from tests.networks.graph.example_graphs import rows_and_labels


def _row(flops: float, batch: int) -> GraphRow:
    memory = np.zeros((2, len(MEMORY)))
    memory[:, MEMORY.index("bytes")] = 1e9
    memory[:, MEMORY.index("weight_size")] = 2e6
    memory[:, MEMORY.index("batch_size")] = batch
    graph = NetworkGraph(
        "net", batch, ("Conv", "Gelu"), np.zeros((2, len(ARGUMENTS))), memory,
        np.array([flops, 0.0]), np.array([[0, 1]]),
    )  # fmt: skip
    return GraphRow(graph, "a", "test")


def test_numbers_by_hand() -> None:
    rows = [_row(1e9, 1), _row(2e9, 2), _row(9e9, 4)]
    labels = [
        LabelRow(rows[0].graph.graph_id, "t4", "train", 0.5, memory_bytes=3 << 20, utilisation=0.5),
        LabelRow(rows[1].graph.graph_id, "t4", "train", outcome="out-of-memory"),
        LabelRow(rows[0].graph.graph_id, "t4", "infer", 0.25),
    ]
    numbers = network_statistics(
        (row, [label for label in labels if label.graph_id == row.graph.graph_id]) for row in rows
    )
    assert (numbers["graphs"], numbers["architectures"]) == (3, 1)
    assert numbers["batches"] == {"1": 1, "2": 1, "4": 1}
    assert numbers["kinds"] == {"Conv": 3, "Gelu": 3}
    assert numbers["columns"]["gflop"] == {"n": 3, "mean": 4, "min": 1, "median": 2, "max": 9}
    assert numbers["columns"]["traffic_gb"]["mean"] == 2
    assert numbers["columns"]["params_m"]["max"] == 1
    t4 = numbers["devices"]["t4"]
    assert t4["outcomes"] == {"ok": 2, "out-of-memory": 1}
    assert list(t4["columns"]) == [
        "train_utilisation_pct", "train_memory_mib", "train_time_ms", "infer_time_ms",
    ]  # fmt: skip
    assert t4["columns"]["train_time_ms"]["mean"] == 500
    assert t4["columns"]["train_memory_mib"]["n"] == 1
    assert t4["columns"]["train_utilisation_pct"]["median"] == 50


def test_nothing_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, [], [], note={})
    with pytest.raises(DataError, match="has no graph"):
        network_statistics(dataset_rows(tmp_path))


def test_convert_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, labels = rows_and_labels(5)
    write_dataset(tmp_path / "set", rows, labels, note={})
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    words = ["networks", "convert", str(tmp_path / "set"), "--out", there, "--to", "published"]
    assert main(words) == 0
    assert "5 graphs as JSON with labels on rtx3090" in capsys.readouterr().out
    assert main(["networks", "convert", there, "--out", back, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["graphs"], report["labels"], report["damaged"]) == (5, 10, [])
    first, second = read_dataset(tmp_path / "set"), read_dataset(tmp_path / "back")
    assert set(first.by_id()) == set(second.by_id())
    assert {label.graph_id: label.time_s for label in first.labels} == pytest.approx(
        {label.graph_id: label.time_s for label in second.labels}
    )
    tables = []
    for folder in (tmp_path / "set", tmp_path / "there", tmp_path / "back"):
        assert main(["networks", "statistics", str(folder), "--json"]) == 0
        tables.append(json.loads(capsys.readouterr().out))
    for table in tables[1:]:
        for name in ("graphs", "architectures", "batches", "columns"):
            assert table[name] == tables[0][name]
        for name, column in table["devices"]["rtx3090"]["columns"].items():
            assert column == pytest.approx(tables[0]["devices"]["rtx3090"]["columns"][name])


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, labels = rows_and_labels(3)
    write_dataset(tmp_path, rows, labels, note={})
    assert main(["networks", "statistics", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "3 graphs of 1 architecture" in out
    assert "rtx3090 (6 labels, ok: 6)" in out
    for word in ("mean", "min", "median", "max", "gflop"):
        assert word in out


def test_damaged_files_stop_or_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("good", "bad"):
        rows, labels = rows_and_labels(1)
        main_words = ["networks", "convert", str(tmp_path / "set"), "--to", "published", "--out"]
        write_dataset(tmp_path / "set", rows, labels, note={})
        assert main([*main_words, str(tmp_path / name)]) == 0
    (path,) = (tmp_path / "bad" / "cg").iterdir()
    path.write_text("{")
    capsys.readouterr()
    assert main(["networks", "statistics", str(tmp_path / "bad")]) == 3
    error = capsys.readouterr().err
    assert path.name in error
    assert len(error.strip().splitlines()) == 1
    (path.parent / "other.json").write_bytes(
        next((tmp_path / "good" / "cg").iterdir()).read_bytes()
    )
    assert main(["networks", "statistics", str(tmp_path / "bad"), "--skip-damaged", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["graphs"] == 1
    assert path.name in numbers["damaged"][0]


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["statistics", "{}/none"], "no such folder", 3),
        (["statistics", "{}"], "no graph files", 3),
        (["convert", "{}/none", "--out", "{}/o"], "no such folder", 3),
        (["convert", "{}", "--out", "{}/o", "--to", "published"], "manifest.json missing", 3),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str, code: int
) -> None:
    assert main(["networks", *(word.format(tmp_path) for word in words)]) == code
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_our_data_set_is_not_converted_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path, *rows_and_labels(1), note={})
    assert main(["networks", "convert", str(tmp_path), "--out", str(tmp_path / "o")]) == 2
    assert "--to published converts the other way" in capsys.readouterr().err


def test_a_label_file_has_place_for_one_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, labels = rows_and_labels(1)
    data = NetworkData(rows, [*labels, LabelRow(labels[0].graph_id, "t4", "infer", 1.0)], {})
    write_dataset(tmp_path / "set", data.graphs, data.labels, note={})
    words = ["networks", "convert", str(tmp_path / "set"), "--to", "published", "--out"]
    assert main([*words, str(tmp_path / "out")]) == 2
    assert "choose with --device, e.g. --device rtx3090" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "out"), "--device", "t4"]) == 0
