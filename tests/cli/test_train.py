"""`cdmpp train` and the run folder it leaves."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from cdmpp.cli.main import main
from cdmpp.metrics import METRIC_NAMES
from cdmpp.predict.saved_model import load_model
from cdmpp.report.page import _script
from tests.cli.conftest import DEVICES, QUICK, json_of
from tests.models.loop.test_distributed import torchrun

pytestmark = pytest.mark.training


def test_run_folder_is_complete(trained):
    names = {path.name for path in trained.iterdir()}
    assert names == {
        "config.yaml", "metrics.json", "predictions.parquet", "model.safetensors", "model.json",
        "checkpoints", "report.html", "log.jsonl", "training_tasks.safetensors", "baselines.json",
    }  # fmt: skip


def test_predictions_agree_with_the_metrics(trained):
    table = pq.read_table(trained / "predictions.parquet")
    assert table.column_names == [
        "program_id", "device", "task", "operator", "part", "measured_s", "predicted_s",
    ]  # fmt: skip
    part = np.array(table["part"].to_pylist())
    measured = np.array(table["measured_s"])
    predicted = np.array(table["predicted_s"])
    metrics = json.loads((trained / "metrics.json").read_text())
    test = part == "test"
    error = np.abs(predicted - measured)[test] / measured[test]
    assert metrics["test"]["transformer"]["mape"] == pytest.approx(error.mean())
    assert metrics["test"]["transformer"]["n"] == test.sum()
    tasks = np.array(table["task"].to_pylist())
    assert not set(tasks[test]) & set(tasks[~test]), "a task is on both sides of the split"


def test_every_line_of_the_table_is_judged_on_every_device(trained):
    metrics = json.loads((trained / "metrics.json").read_text())
    assert list(metrics["test"]) == ["transformer", "gbdt", "roofline", "constant", "oracle"]
    for line in metrics["test"].values():
        assert set(line["by_device"]) == set(DEVICES)
        assert set(METRIC_NAMES) <= set(line)
        assert line["n"] == sum(values["n"] for values in line["by_device"].values())


def test_report_is_self_contained_and_names_everything(trained):
    text = (trained / "report.html").read_text()
    assert text.count("<svg") == 4
    assert re.findall("<script.*", text) == [f"<script>{_script().splitlines()[0]}"]
    assert not re.search(r"(src|href)=\"https?:", text)
    for word in ("transformer", "gbdt", "roofline", "constant", "oracle", *DEVICES):
        assert word in text


def test_config_holds_the_resolved_options(trained):
    config = yaml.safe_load((trained / "config.yaml").read_text())
    assert config["transformer"]["loop"]["epochs"] == 3
    assert config["split"] == "task"
    assert config["seed"] == 0


def test_model_json_remembers_its_training_tasks(trained):
    model, card = load_model(trained)
    assert model.kind == card.kind == "transformer"
    metrics = json.loads((trained / "metrics.json").read_text())
    assert len(card.training_tasks) == metrics["parts"]["train"]["tasks"]
    assert card.data_hash == metrics["data_hash"]
    assert {spec.name for spec in card.devices} == set(DEVICES)


def test_same_command_again_keeps_the_model(trained, dataset, cache, capsys):
    before = (trained / "model.safetensors").read_bytes()
    arguments = ["train", "--dataset", str(dataset), "--cache", str(cache), "--jobs", "1"]
    assert main([*arguments, "--out", str(trained), "--json", *QUICK]) == 0
    values = json_of(capsys)
    assert values["run"] == str(trained)
    assert (trained / "model.safetensors").read_bytes() == before


def test_other_options_do_not_overwrite_a_run(trained, dataset, cache, capsys):
    arguments = ["train", "--dataset", str(dataset), "--cache", str(cache), "--jobs", "1"]
    assert main([*arguments, "--out", str(trained), "-q", *QUICK, "--seed", "1"]) == 2
    assert "has a run with other options" in capsys.readouterr().err


def test_files_of_no_run_are_not_overwritten(tmp_path, dataset, cache, capsys):
    (tmp_path / "report.html").write_text("mine")
    arguments = ["train", "--dataset", str(dataset), "--cache", str(cache), "--jobs", "1"]
    assert main([*arguments, "--out", str(tmp_path), "-q", *QUICK]) == 2
    assert "has files report.html that do not belong" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.exhaustive
def test_one_device_of_two(dataset, tmp_path, capsys):
    arguments = ["train", "--dataset", str(dataset), "--cache", str(tmp_path), "--jobs", "1"]
    out = tmp_path / "run"
    code = main(
        [*arguments, "--device", DEVICES[0], "--model", "gbdt", "--out", str(out), "-q", *QUICK]
    )
    assert code == 0
    assert DEVICES[0] in capsys.readouterr().out
    assert (out / "trees.ubj.xz").exists()
    assert list(json.loads((out / "metrics.json").read_text())["test"]["gbdt"]["by_device"]) == [
        DEVICES[0]
    ]


@pytest.mark.exhaustive
def test_split_by_record_is_marked_as_leaking(dataset, cache, tmp_path, capsys):
    arguments = ["train", "--dataset", str(dataset), "--cache", str(cache), "--jobs", "1"]
    options = ["--split", "record", "--model", "constant", "--out", str(tmp_path / "run"), "-q"]
    assert main([*arguments, *options, *QUICK]) == 0
    assert "This split leaks" in (tmp_path / "run" / "report.html").read_text()
    assert json.loads((tmp_path / "run" / "model.json").read_text())["split"]["leaks"] is True


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_write_one_run_folder_and_one_finds_it(dataset, cache, tmp_path, capsys):
    words = [
        "scripts/train.py", "--dataset", str(dataset), "--cache", str(cache), "--jobs", "1",
        "--out", str(tmp_path / "run"), "--json", *QUICK, "--set", "baselines=[segment-mlp]",
        "--set", "segment_mlp.loop.epochs=1",
    ]  # fmt: skip
    done = torchrun(*words)
    assert done.returncode == 0, done.stderr
    assert main(["train", *words[1:]]) == 0
    assert json.loads(done.stdout)["test"] == json.loads(capsys.readouterr().out)["test"]
    assert (tmp_path / "run" / "report.html").exists()
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 3
