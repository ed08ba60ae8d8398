"""Predictions of record files as a library function."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.errors import DeviceError
from cdmpp.models.constant import ConstantCostModel
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.records import predict_records
from cdmpp.pretrained import model_folder
from cdmpp.programs.featurise import featurise_records
from cdmpp.records import MeasureRecord, TensetTask
from tests.paths import ROOT

DEVICE, OTHER = "epyc-avx2-1c", "xeon-avx2-1c"
COUNT = 4


class Descending(ConstantCostModel):
    """Predicts 4 s, 3 s, 2 s, ... in the order of the samples."""

    def predict(self, samples: Samples) -> np.ndarray:
        return np.arange(len(samples), 0, -1).astype(float)


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    found = load_trained(model_folder("pretrained"))
    model: Any = Descending()
    return replace(found, model=model, tasks=None, card=replace(found.card, calibration=None))


@pytest.fixture
def records(tmp_path: Path) -> Path:
    source = sorted((default_dataset_dir() / "measure_records" / DEVICE).iterdir())[0]
    content = source.read_bytes()
    text = (gzip.decompress(content) if source.suffix == ".gz" else content).decode()
    path = tmp_path / "measure_records" / DEVICE / "some.json"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(text.splitlines()[:COUNT]) + "\n")
    return path


def test_the_fastest_comes_first(trained: TrainedModel, records: Path) -> None:
    found = predict_records(trained, records)
    assert [one.latency_s for one in found.programs] == [1.0, 2.0, 3.0, 4.0]
    assert len({one.program_id for one in found.programs}) == COUNT
    for one in found.programs:
        assert one.device == DEVICE
        assert one.measured_s is not None
        assert one.operator in one.name
        assert one.low_s is one.high_s is one.is_far is None
    assert found.report.records == COUNT
    assert found.failures == {}


def test_another_device_has_no_measurement(trained: TrainedModel, records: Path) -> None:
    found = predict_records(trained, records, devices=[OTHER])
    assert {(one.device, one.measured_s) for one in found.programs} == {(OTHER, None)}


def test_several_devices_side_by_side(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = tmp_path / "my.yaml"
    board.write_text(
        "common: {kind: cpu}\ndevices:\n  my-board:\n"
        "    peak_fp32_flop_per_s: {value: 1.0e11, source: the data sheet}\n"
        "    mem_bandwidth_bytes_per_s: {value: 2.0e10, source: the data sheet}\n"
    )
    words = ["predict", "--records", str(records), "--device", f"{DEVICE},xeon-avx2-1c"]
    assert main([*words, "--device-spec", str(board), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = Counter(row["device"] for row in rows)
    assert found == {DEVICE: COUNT, "xeon-avx2-1c": COUNT, "my-board": COUNT}
    assert {row["device"] for row in rows if row["measured_s"]} == {DEVICE}
    assert main(words) == 0
    assert "xeon-avx2-1c" in capsys.readouterr().out


def test_a_record_is_featurised_once_for_all_devices(
    trained: TrainedModel, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[MeasureRecord] = []

    def watched(task: TensetTask, records: list[MeasureRecord]) -> list[Any]:
        read.extend(records)
        return featurise_records(task, records)

    monkeypatch.setattr("cdmpp.predict.records.featurise_records", watched)
    assert len(predict_records(trained, records, devices=[DEVICE, OTHER]).programs) == 2 * COUNT
    assert len(read) == COUNT


def test_a_record_of_a_cpu_has_no_latency_on_a_gpu(
    trained: TrainedModel, records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Was a confident latency of a program that no GPU runs."""
    found = predict_records(trained, records, devices=["v100"])
    reason = "it has no thread bindings, v100 is a GPU; schedule it for one"
    assert (found.programs, found.failures) == ((), {reason: COUNT})
    words = ["predict", "--model", "pretrained", "--records", str(records), "--device", "v100"]
    assert main([*words, "-q"]) == 3
    assert reason in capsys.readouterr().err


def test_a_record_of_a_gpu_has_no_latency_on_a_cpu(trained: TrainedModel, tmp_path: Path) -> None:
    folder = ROOT / "data" / "ansor-gpu"
    source = sorted(path for path in (folder / "measure_records").rglob("*") if path.is_file())[0]
    content = source.read_bytes()
    text = (gzip.decompress(content) if source.suffix == ".gz" else content).decode()
    records = tmp_path / "some.json"
    records.write_text("\n".join(text.splitlines()[:COUNT]) + "\n")
    info = folder / "network_info"
    found = predict_records(trained, records, devices=[DEVICE], network_info=info)
    assert (found.programs, found.failures) == (
        (), {f"it has GPU threads, {DEVICE} is a cpu": COUNT}
    )  # fmt: skip


def test_an_unknown_device_is_refused(
    trained: TrainedModel, records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Was a latency of hardware without a single known value, and a warning."""
    with pytest.raises(DeviceError, match="unknown device 'epyc-avx2-1d', did you mean"):
        predict_records(trained, records, devices=["epyc-avx2-1d"])
    words = ["predict", "--model", "pretrained", "--records", str(records), "--device", "v10O"]
    assert main([*words, "-q"]) == 4
    assert "did you mean 'v100'?" in capsys.readouterr().err


def test_failures_are_counted(trained: TrainedModel, records: Path, tmp_path: Path) -> None:
    lines = records.read_text().splitlines()
    unknown = json.loads(lines[0])
    unknown["i"][0][0] = '["0123456789abcdef0123456789abcdef", 1, 2]'
    mixed = tmp_path / "mixed.json"
    mixed.write_text(f"{lines[0]}\n{json.dumps(unknown)}\n")
    found = predict_records(trained, mixed, devices=[DEVICE])
    assert len(found.programs) == 1
    assert found.failures == {"its task is not in network_info": 1}
    mixed.write_text(json.dumps(unknown))
    found = predict_records(trained, mixed)
    assert (found.programs, found.failures) == (
        (),
        {"its task is not in network_info": 1},
    )
    found = predict_records(trained, records, network_info=_one_small_network(tmp_path))
    assert (found.programs, found.failures) == ((), {"its task is not in network_info": COUNT})


def _one_small_network(folder: Path) -> Path:
    """Returns a folder of tasks with those of one small network alone."""
    source = default_dataset_dir() / "network_info"
    place = folder / "network_info"
    place.mkdir()
    name = "((bert_tiny,[(1,128)]),llvm).task.pkl.gz"
    (place / name).symlink_to(source / name)
    return place


def test_a_device_that_cannot_be_told_is_asked_for(
    trained: TrainedModel, records: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "measure_records" / "some-box" / "some.json"
    elsewhere.parent.mkdir()
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for line in lines:
        line["i"][0][1] = "llvm"  # instead of a target that names the device
    elsewhere.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(DeviceError, match="unknown device 'some-box' in a record"):
        predict_records(trained, elsewhere)
    (device,) = (one for one in trained.card.devices if one.name == "xeon-avx512-1c")
    card = replace(trained.card, devices=(device,))
    found = predict_records(replace(trained, card=card), elsewhere)
    assert {one.device for one in found.programs} == {device.name}


def test_the_task_of_an_unknown_workload_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.json"
    record = {
        "i": [['["my_matmul", 512, 512, 512, "float32"]', "llvm", [8, 64, 64, 0, 0, 0, 0, 0], "", 1,
               []], [[], [["AN", 0, 0, 3]]]],
        "r": [[0.004], 0, 0.3, 1600000000], "v": "v0.6",
    }  # fmt: skip
    path.write_text(json.dumps(record) + "\n")
    assert main(["predict", str(path), "--device", DEVICE]) == 3
    said = capsys.readouterr().err
    assert "its task 'my_matmul' is not in network_info" in said
    assert "docs/how-to/bring-logs.md" in said
