"""`cdmpp evaluate` and `cdmpp predict` on a trained model."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.metrics import METRIC_NAMES
from tests.cli.conftest import DEVICES, PROGRAMS, json_of

INTERVAL_KEYS = ["interval_coverage", "interval_log_width"]
DEVICE_KEYS = [
    *METRIC_NAMES, "tasks", "overlap_with_training", "left_out_samples", *INTERVAL_KEYS,
]  # fmt: skip
EVALUATE_KEYS = [*DEVICE_KEYS[:-2], "by_device", *INTERVAL_KEYS, "tiers"]
PREDICT_KEYS = [
    "program_id", "device", "latency_s", "low_s", "high_s", "measured_s", "out_of_distribution",
    "is_floor", "is_compiled", "nearest_tasks",
]  # fmt: skip


@pytest.fixture
def record_file(dataset):
    return sorted((dataset / "measure_records" / DEVICES[0]).iterdir())[0]


def test_evaluate_json_has_exactly_the_agreed_keys(trained, dataset, cache, capsys):
    arguments = ["--model", str(trained), "--dataset", str(dataset), "--cache", str(cache)]
    assert main(["evaluate", *arguments, "--jobs", "1", "--json"]) == 0
    values = json_of(capsys)
    assert list(values) == EVALUATE_KEYS
    assert set(values["by_device"]) == set(DEVICES)
    for metrics in values["by_device"].values():
        assert list(metrics) == DEVICE_KEYS
    parts = json.loads((trained / "metrics.json").read_text())["parts"]
    assert values["overlap_with_training"] == parts["train"]["tasks"]
    assert values["left_out_samples"] == parts["train"]["samples"]
    others = [parts[name] for name in parts if name != "train"]
    assert values["n"] == values["tiers"]["fast"]["n"] == sum(part["samples"] for part in others)
    assert values["tasks"] == sum(part["tasks"] for part in others)
    assert values["tiers"]["compiled"] is None
    assert main(["evaluate", *arguments, "--jobs", "1", "--json", "--all-tasks"]) == 0
    everything = json_of(capsys)
    assert everything["n"] == values["n"] + values["left_out_samples"]
    assert everything["left_out_samples"] == 0


def test_evaluate_of_one_device_in_words(trained, dataset, cache, capsys):
    arguments = ["--model", str(trained), "--dataset", str(dataset), "--cache", str(cache)]
    assert main(["evaluate", *arguments, "--jobs", "1", "-q", "--device", DEVICES[1]]) == 0
    text = capsys.readouterr().out
    assert DEVICES[1] in text
    assert DEVICES[0] not in text
    assert re.search(
        r"held out: \d+ tasks? (was|were) in the training part of .* left out \(\d+ pro", text
    )
    assert "any in this dataset are counted as held out" in text
    assert "no compiled tier: the model does not read machine code" in text
    assert main(["evaluate", *arguments, "--jobs", "1", "-q", "--all-tasks"]) == 0
    assert re.search(r"NOT held out: \d+ tasks were in the training part", capsys.readouterr().out)
    assert main(["evaluate", *arguments, "--jobs", "1", "--machine-code"]) == 2
    assert "the model does not read machine code" in capsys.readouterr().err


def test_predict_json_is_sorted_and_has_the_agreed_keys(trained, record_file, capsys):
    assert main(["predict", "--model", str(trained), "--records", str(record_file), "--json"]) == 0
    rows = json_of(capsys)
    assert len(rows) == PROGRAMS
    assert all(list(row) == PREDICT_KEYS for row in rows)
    latencies = [row["latency_s"] for row in rows]
    assert latencies == sorted(latencies)
    assert all(row["measured_s"] > 0 and row["device"] == DEVICES[0] for row in rows)


def test_predict_agrees_with_evaluate(trained, record_file, capsys):
    """Features made at prediction time equal those of the extracted dataset."""
    import pyarrow.parquet as pq

    assert main(["predict", "--model", str(trained), "--records", str(record_file), "--json"]) == 0
    rows = {row["program_id"]: row["latency_s"] for row in json_of(capsys)}
    table = pq.read_table(trained / "predictions.parquet").to_pylist()
    stored = {row["program_id"]: row["predicted_s"] for row in table if row["device"] == DEVICES[0]}
    common = set(rows) & set(stored)
    assert len(common) == PROGRAMS
    for program in common:
        assert rows[program] == pytest.approx(stored[program], rel=1e-4)


def test_predict_for_another_device_shows_no_measurement(trained, record_file, capsys):
    arguments = ["predict", "--model", str(trained), "--records", str(record_file)]
    assert main([*arguments, "--device", DEVICES[1], "--json"]) == 0
    rows = json_of(capsys)
    assert all(row["device"] == DEVICES[1] and row["measured_s"] is None for row in rows)


def test_predict_in_words_has_units_and_the_measured_value(trained, record_file, capsys):
    assert main(["predict", "--model", str(trained), "--records", str(record_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == PROGRAMS + 1
    assert "measured" in lines[0]
    assert all(any(unit in line for unit in (" µs", " ms", " s", " ns")) for line in lines[1:])


def test_predict_names_what_it_cannot_predict(trained, record_file, tmp_path, capsys):
    lines = record_file.read_text().splitlines()
    unknown = json.loads(lines[0])
    unknown["i"][0][0] = '["0123456789abcdef0123456789abcdef", 1, 2]'
    broken_step = json.loads(lines[1])
    broken_step["i"][1][1] = [["ZZ", 0]]
    out_of_range = json.loads(lines[1])
    out_of_range["i"][1][1] = [["CI", 99]]
    bad = tmp_path / "bad.json"
    rows = [lines[0], lines[1][:50], json.dumps(unknown), json.dumps(broken_step)]
    bad.write_text("\n".join([*rows, json.dumps(out_of_range)]) + "\n")
    arguments = ["predict", "--model", str(trained), "--records", str(bad)]
    assert main([*arguments, "--device", DEVICES[0], "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 1
    assert "its task is not in network_info" in captured.err
    assert captured.err.count("cannot be predicted") >= 2


@pytest.mark.parametrize("content", [b"", b"\x00\xff\x80garbage" * 50, b'{"i": [[\n'])
def test_predict_of_unusable_files_is_one_error(trained, tmp_path, content, capsys):
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    assert main(["predict", "--model", str(trained), "--records", str(bad)]) == 3
    assert "can be predicted" in capsys.readouterr().err


def test_card_round_trips_every_field_of_a_device(trained):
    from cdmpp.devices.spec import DeviceSpec
    from cdmpp.predict.saved_model import load_model

    stored = json.loads((trained / "model.json").read_text())["devices"]
    assert [set(spec) for spec in stored] == [{f.name for f in fields(DeviceSpec)}] * len(DEVICES)
    _, card = load_model(trained)
    assert [spec.name for spec in card.devices] == [spec["name"] for spec in stored]


def shipped_file() -> Path:
    """A small record file of the shipped data."""
    files = (default_dataset_dir() / "measure_records" / DEVICES[0]).iterdir()
    return min(files, key=lambda path: (path.stat().st_size, path.name))


@pytest.mark.exhaustive
def test_predict_counts_in_what_was_measured_elsewhere(capsys):
    asked = ["predict", "--records", str(shipped_file()), "--device", DEVICES[1]]
    assert main([*asked, "--json"]) == 0
    alone = {row["program_id"]: row for row in json_of(capsys)}
    assert main([*asked, "--measured-on", DEVICES[0], "--json"]) == 0
    rows = json_of(capsys)
    assert rows
    assert {row["program_id"] for row in rows} == set(alone)
    assert all(row["latency_s"] != alone[row["program_id"]]["latency_s"] for row in rows)
    assert main([*asked, "--measured-on", DEVICES[0], "-q"]) == 0
    assert f"on {DEVICES[0]}" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--measured-on", "v100", "--device", "a100"], 2, "--measured-on xeon-avx2-1c"),
        (["--measured-on", "xeon-avx2-2d", "--device", "epyc-avx2-1c"], 4, "did you mean"),
    ],
)
def test_a_wrong_device_of_the_records_is_refused(words, code, said, capsys):
    assert main(["predict", "--records", str(shipped_file()), *words]) == code
    assert said in capsys.readouterr().err


def test_measured_on_goes_with_records_only(capsys):
    assert main(["predict", "--network", "n.onnx", "--measured-on", "v100"]) == 2
    assert "--measured-on can only be used with --records" in capsys.readouterr().err
    assert main(["predict", "--program", "x.py", "--network-info", "info"]) == 2
    assert "--network-info can only be used with --records" in capsys.readouterr().err
