"""Intervals and flags of `predict` and `evaluate`, on a model that was trained on convolutions."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.splits import split
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.datasets.tenset.operator_kinds import operator_kind
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.models.options import GbdtOptions
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.machine_code.model import FOLDER as MACHINE_CODE_FOLDER
from cdmpp.predict.saved_model import ModelCard, task_digests
from cdmpp.training.run_folder import save_trained
from tests.cli.conftest import json_of, read_text

DEVICE = "epyc-avx2-1c"


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    out = tmp_path_factory.mktemp("intervals") / "extracted"
    arguments = ["--dataset", str(default_dataset_dir()), "--device", DEVICE, "--jobs", "1"]
    assert main(["dataset", "extract", *arguments, "--out", str(out), "-q"]) == 0
    return out


@pytest.fixture(scope="module")
def samples(extracted):
    return load_samples(extracted, [DEVICE])


def of_kind(samples, *kinds):
    operators = samples.programs.operator[samples.program]
    return samples.take(np.array([operator_kind(str(name)) in kinds for name in operators], bool))


@pytest.fixture(scope="module")
def convolutions(samples):
    """Training and validation parts: convolutions only."""
    chosen = of_kind(samples, "conv2d")
    parts = split(chosen, "task", seed=0, fractions=(0.6, 0.4, 0.0))
    return chosen.take(parts.train), chosen.take(parts.validation)


@pytest.fixture(scope="module")
def run(convolutions, tmp_path_factory):
    """A run folder of trees trained on convolutions of one device."""
    train, validation = convolutions
    model = GbdtCostModel(GbdtOptions(trees=40, depth=4, learning_rate=0.2))
    model.fit(train, validation, seed=0)
    folder = tmp_path_factory.mktemp("convolutions")
    card = ModelCard(
        kind="gbdt",
        feature_schema=dict(train.programs.feature_schema),
        data_hash=train.programs.data_hash,
        split={},
        devices=train.devices,
        training_tasks=task_digests(train),
        versions={},
    )
    calibrated, _ = save_trained(model, folder, card, train=train, validation=validation)
    assert calibrated.calibration is not None
    return folder


@pytest.mark.exhaustive
@pytest.mark.training
def test_a_new_model_does_not_keep_the_old_ones_machine_code(convolutions, run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / MACHINE_CODE_FOLDER).mkdir()
    old = load_trained(folder)
    save_trained(old.model, folder, old.card, train=convolutions[0], validation=convolutions[1])
    assert not (folder / MACHINE_CODE_FOLDER).exists()


def record_file(samples, tmp_path, count=3):
    """Returns a file with some records of the first tasks of the samples."""
    names = {
        str(task).rpartition("|")[0] for task in samples.programs.tasks[np.unique(samples.task_id)]
    }
    lines = []
    for path in sorted((default_dataset_dir() / "measure_records" / DEVICE).iterdir()):
        text = read_text(path).splitlines()
        if json.loads(text[0])["i"][0][0] in names:
            lines += text[:2]
        if len(lines) >= 2 * count:
            break
    assert len(lines) >= 2
    out = tmp_path / "records.json"
    out.write_text("\n".join(lines) + "\n")
    return out


def predict(run, records, capsys, *more):
    arguments = ["predict", "--model", str(run), "--records", str(records), *more]
    assert main([*arguments, "--json"]) == 0
    return json_of(capsys)


def test_softmax_is_strange_to_a_model_of_convolutions(run, samples, tmp_path, capsys):
    records = record_file(of_kind(samples, "softmax", "pool"), tmp_path)
    rows = predict(run, records, capsys)
    assert rows
    assert all(row["out_of_distribution"] is True for row in rows)
    for row in rows:
        assert [near["operator"].split("+")[0] for near in row["nearest_tasks"]] == ["conv2d"] * 3
    widest = json.loads((run / "model.json").read_text())["calibration"]["by_operator"]
    half_widths = [np.log(row["high_s"] / row["latency_s"]) for row in rows]
    assert min(half_widths) >= 2.0 * max(widest.values()) - 1e-9


def test_training_tasks_are_not_strange(run, convolutions, tmp_path, capsys):
    rows = predict(run, record_file(convolutions[0], tmp_path), capsys)
    assert all(row["out_of_distribution"] is False for row in rows)
    assert all(row["low_s"] < row["latency_s"] < row["high_s"] for row in rows)


def test_a_device_that_was_not_trained_on_is_strange(run, convolutions, tmp_path, capsys):
    records = record_file(convolutions[0], tmp_path)
    rows = predict(run, records, capsys, "--device", "xeon-avx2-1c")
    assert all(row["out_of_distribution"] is True for row in rows)
    assert main(["predict", "--model", str(run), "--records", str(records),
                 "--device", "xeon-avx2-1c"]) == 0  # fmt: skip
    assert "unseen device xeon-avx2-1c" in capsys.readouterr().out


def test_words_show_intervals_marks_and_the_nearest_tasks(run, samples, tmp_path, capsys):
    records = record_file(of_kind(samples, "softmax"), tmp_path)
    assert main(["predict", "--model", str(run), "--records", str(records)]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    number = r"[\d.]+"
    assert re.match(rf"\s+1  {number} [mµ]?s \[{number}, {number}\]  ", lines[1])
    assert lines[1].endswith(" !")
    assert "out of distribution; their intervals are widened" in text
    assert re.search(r"softmax .* is out of distribution", text)
    assert re.search(r"nearest: conv2d", text)


@pytest.mark.exhaustive
def test_evaluate_judges_the_intervals_and_says_what_was_trained_on(
    run, extracted, convolutions, capsys
):
    arguments = ["evaluate", "--model", str(run), "--dataset", str(extracted)]
    assert main([*arguments, "--json"]) == 0
    values = json_of(capsys)
    assert 0.5 < values["interval_coverage"] <= 1.0
    assert values["interval_log_width"] > 0
    assert values["by_device"][DEVICE]["interval_coverage"] == values["interval_coverage"]
    assert values["overlap_with_training"] == len(task_digests(convolutions[0]))
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "are left out" in text
    assert "in their interval" in text


def test_a_run_folder_without_calibration_says_so(run, convolutions, tmp_path, capsys):
    import shutil

    old = tmp_path / "old"
    shutil.copytree(run, old)
    value = json.loads((old / "model.json").read_text())
    del value["calibration"]
    (old / "model.json").write_text(json.dumps(value))
    (old / "training_tasks.safetensors").unlink()
    records = record_file(convolutions[0], tmp_path)
    rows = predict(old, records, capsys)
    for row in rows:
        keys = ("low_s", "high_s", "out_of_distribution", "nearest_tasks")
        assert [row[key] for key in keys] == [None] * 4
    assert main(["predict", "--model", str(old), "--records", str(records)]) == 0
    assert "no intervals" in capsys.readouterr().err
