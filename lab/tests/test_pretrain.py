"""Packaged models: made by `python -m lab pretrain`, found by `--model pretrained`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import cdmpp.pretrained
from cdmpp.cli.main import main
from cdmpp.datasets.cache import load_samples
from cdmpp.errors import DataError, UsageError
from cdmpp.files.places import package_folder
from cdmpp.pretrained import find_pretrained, model_folder
from lab.__main__ import main as lab_main
from lab.package import LICENCES, MOST_BYTES, bytes_of, package_run, read_card, shippable
from tests.cli.conftest import DEVICES, QUICK, json_of


@pytest.fixture(scope="module")
def packaged(dataset, tmp_path_factory):
    """A folder of packaged models with a tiny one in it, and the run behind it."""
    parent = tmp_path_factory.mktemp("pretrained")
    arguments = [
        "pretrain", "--cache", str(parent / "cache"), "--jobs", "1", "-q",
        "--run", str(parent / "run"), "--out", str(parent / "models"), *QUICK,
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdmpp.datasets.sources.default_dataset_dir", lambda: dataset)
        assert lab_main(arguments) == 0
    return parent


def extracted_samples(packaged):
    (folder,) = (packaged / "cache").glob("small-tenset-*")
    return load_samples(folder, list(DEVICES))


@pytest.fixture
def installed(packaged, monkeypatch):
    """The tiny model as the packaged one."""
    monkeypatch.setattr(cdmpp.pretrained, "package_folder", lambda name: packaged / "models")


@pytest.mark.exhaustive
@pytest.mark.training
def test_without_package_the_installed_weights_stay(dataset, tmp_path, monkeypatch, capsys):
    """Was: `python -m lab pretrain` replaced them without asking and without a copy."""
    monkeypatch.setattr("cdmpp.datasets.sources.default_dataset_dir", lambda: dataset)
    monkeypatch.chdir(tmp_path)
    parent = package_folder("cdmpp.pretrained")
    before = {path: path.stat().st_mtime_ns for path in parent.rglob("*") if path.is_file()}
    assert lab_main(["pretrain", "--jobs", "1", "-q", *QUICK]) == 0
    assert "nothing was packaged" in capsys.readouterr().out
    assert (tmp_path / "runs" / "pretrained-default" / "model.json").is_file()
    after = {path: path.stat().st_mtime_ns for path in parent.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.exhaustive
def test_with_package_they_are_replaced(packaged, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("cdmpp.datasets.sources.default_dataset_dir", lambda: dataset)
    monkeypatch.setattr("lab.commands.pretrain.package_folder", lambda name: tmp_path / "package")
    arguments = ["--cache", str(packaged / "cache"), "--run", str(tmp_path / "run")]
    assert lab_main(["pretrain", "--package", "--jobs", "1", "-q", *arguments, *QUICK]) == 0
    assert set(read_card(tmp_path / "package" / "default")["devices"]) == set(DEVICES)


def test_train_code_changes_the_package_only_where_asked(capsys, tmp_path):
    words = ["train-code", "--model", "pretrained", "--data", str(tmp_path / "none")]
    assert main(words) == 2
    assert "--package to write into the package" in capsys.readouterr().err
    assert main([*words, "--package"]) == 3


@pytest.mark.exhaustive
def test_card_says_what_it_is_trained_on_and_how_good_it_is(packaged):
    card = read_card(packaged / "models" / "default")
    metrics = json.loads((packaged / "run" / "metrics.json").read_text())
    assert set(card["devices"]) == set(DEVICES)
    assert [set(entry["devices"]) for entry in card["licences"]] == [set(DEVICES)]
    assert card["data_hash"] == metrics["data_hash"]
    assert card["test"] == metrics["test"][card["model"]]
    assert card["split"]["leaks"] is False
    assert card["command"].startswith("cdmpp")


def test_only_what_a_prediction_needs_is_packaged(packaged):
    names = {path.name for path in (packaged / "models" / "default").iterdir()}
    assert names == {
        "model.json", "model.safetensors", "training_tasks.safetensors", "card.json",
    }  # fmt: skip
    assert [path.name for path in (packaged / "models").iterdir()] == ["default"]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("installed")
def test_predict_and_evaluate_work_without_training(packaged, dataset, capsys):
    records = sorted((dataset / "measure_records" / DEVICES[0]).iterdir())[0]
    both = []
    for model in ("pretrained", str(packaged / "run")):
        assert main(["predict", "--model", model, "--records", str(records), "--json"]) == 0
        both.append(json_of(capsys))
    assert both[0] == both[1]
    arguments = ["--dataset", str(dataset), "--cache", str(packaged / "cache2"), "--jobs", "1"]
    for model in (["--model", "pretrained:default"], []):
        assert main(["evaluate", *model, *arguments, "-q"]) == 0
        assert "are left out" in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_unknown_names_list_what_there_is(capsys):
    with pytest.raises(UsageError, match="packaged: default"):
        find_pretrained("fast")
    records = ["--records", "x.json"]
    assert main(["predict", "--model", "pretrained:fast", *records]) == 2
    assert "packaged: default" in capsys.readouterr().err


def test_nothing_packaged_says_how_to_get_a_model(tmp_path):
    with pytest.raises(UsageError, match=r"no packaged models.*cdmpp train"):
        find_pretrained(parent=tmp_path)


def test_other_words_are_run_folders():
    assert model_folder("runs/x") == Path("runs/x")
    assert model_folder("./pretrained") == Path("pretrained")


def test_weights_of_other_devices_are_refused(packaged, tmp_path):
    assert shippable(["t4", "v100", "xeon-avx2-1c"]) == (["v100", "xeon-avx2-1c"], ["t4"])
    with pytest.raises(DataError, match="may train a shipped model"):
        shippable(["t4"])
    assert "t4" not in LICENCES
    run = tmp_path / "run"
    shutil.copytree(packaged / "run", run)
    value = json.loads((run / "model.json").read_text())
    value["devices"][0]["name"] = "t4"
    (run / "model.json").write_text(json.dumps(value))
    samples = extracted_samples(packaged)
    with pytest.raises(UsageError, match="t4"):
        package_run(run, tmp_path / "models", samples, name="x", command="c")
    assert not (tmp_path / "models").exists() or not any((tmp_path / "models").iterdir())


def test_too_large_models_are_refused_and_leave_nothing(packaged, tmp_path, monkeypatch):
    samples = extracted_samples(packaged)
    monkeypatch.setattr("lab.package.MOST_BYTES", 1000)
    with pytest.raises(DataError, match="MB are allowed"):
        package_run(packaged / "run", tmp_path, samples, name="big", command="c")
    assert not any(tmp_path.iterdir())


def test_what_is_shipped_is_small_and_allowed():
    """Checks the packaged models of this checkout."""
    parent = package_folder("cdmpp.pretrained")
    folders = [path.parent for path in parent.glob("*/model.json")]
    if not folders:
        pytest.skip("no model is packaged yet: make pretrained")
    assert bytes_of(parent) <= MOST_BYTES
    for folder in folders:
        card = read_card(folder)
        assert set(card["devices"]) <= set(LICENCES)
        assert np.isfinite(card["test"]["mape"])
