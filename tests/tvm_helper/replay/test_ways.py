"""A network has one answer for each way of running it, and `predict` and `replay` agree."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from tvm.s_tir import meta_schedule

from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, UsageError
from cdmpp.networks.predict import NetworkPredictor
from cdmpp.predict.networks import NetworkQuestion
from tests.tvm_helper.replay.test_network import Branches
from tests.tvm_helper.search.fixtures import train_into
from tests.tvm_helper.tasks.test_network_tasks import onnx_file
from tvm_helper.replay.ways import network_answers
from tvm_helper.tasks import network_tasks
from tvm_helper.tasks.network_tasks import load_network
from tvm_helper.tasks.sampling import valid_schedules
from tvm_helper.tasks.target import device_target

pytestmark = [pytest.mark.tvm, pytest.mark.slow]
DEVICE = "epyc-avx512-1c"
FACTORY = """
from torch import nn


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_into(tmp_path_factory.mktemp("ways") / "run")


@pytest.fixture(scope="module")
def network_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "branches.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Branches().eval(), (torch.zeros(2, 4, 4, 4),))
        torch.export.save(program, path)
    return path


@pytest.fixture
def database(network_file: Path, tmp_path: Path) -> Path:
    """One measured program of each task."""
    target = device_target(get_device(DEVICE))
    folder = tmp_path / "tuned"
    folder.mkdir()
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    for task in network_tasks.network_tasks(load_network(network_file), target).tasks:
        schedule = next(valid_schedules(task.module["main"], target, seed=3))
        workload = database.commit_workload(task.module)
        info = meta_schedule.arg_info.ArgInfo.from_entry_func(task.module, remove_preproc=False)
        database.commit_tuning_record(
            meta_schedule.database.TuningRecord(schedule.trace, workload, [1e-6], target, info)
        )
    return folder


def values(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    assert main([*map(str, words), "--json", "-q"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.exhaustive
def test_predict_and_replay_print_the_same_figure(
    run_folder: Path, network_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--model", run_folder, "--device", DEVICE)
    rows = values(capsys, "predict", "--network", network_file, *asked)
    (replayed,) = values(capsys, "replay", network_file, *asked)
    (compiled,) = (row for row in rows if row["way"] == "tvm-untuned")
    for key, other in (("latency_s", "total_s"), ("low_s", "low_s"), ("high_s", "high_s")):
        assert compiled[key] == replayed[other]
    assert compiled["schedule"] == replayed["schedule"]
    assert sum(one["calls"] for one in compiled["kernels"]) == replayed["operators"]
    whole = sum(one["calls"] * one["in_network_s"] for one in compiled["kernels"])
    assert whole == pytest.approx(replayed["sum_s"])


def test_a_saved_program_is_answered_as_torch_runs_it_too(
    run_folder: Path, network_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = values(capsys, "predict", "--network", network_file, "--model", run_folder)
    assert [(row["way"], row["mode"]) for row in rows] == [
        ("tvm-untuned", "infer"), ("torch-eager", "infer"), ("torch-eager", "train"),
    ]  # fmt: skip
    assert {row["device"] for row in rows} == {DEVICE}
    predictor = NetworkPredictor.load()
    graphs = predictor.graphs(Branches(), [(4, 4, 4)], [2], name="n")
    found = [one.time_s.value for one in predictor.predict(graphs)]
    assert [row["latency_s"] for row in rows[1:]] == pytest.approx(found)
    assert rows[1]["memory_bytes"] > 0
    asked = ("predict", "--network", network_file, "--device", "t4", "--way", "torch-eager")
    assert main([*map(str, asked), "--batch", "4"]) == 2
    assert "was exported with its sizes; --input and --batch are for" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_factory_has_the_same_ways_at_each_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    words = ("predict", "--torch", f"{tmp_path}/net.py:net", "--input", "3x8x8", "--batch", "1,4")
    rows = values(capsys, *words, "--device", f"{DEVICE},t4")
    assert [(row["device"], row["batch"], row["way"], row["mode"]) for row in rows] == [
        (device, batch, way, mode)
        for device in (DEVICE, "t4")
        for batch in (1, 4)
        for way, mode in (
            ("tvm-untuned", "infer"), ("torch-eager", "infer"), ("torch-eager", "train"),
        )
    ]  # fmt: skip
    assert all(row["latency_s"] > 0 for row in rows)
    keys = {"program_id", "latency_s", "low_s", "high_s", "measured_s", "out_of_distribution"}
    assert all(row.keys() >= keys for row in rows)
    assert main([*words, "--device", "t4", "-q"]) == 0
    text = capsys.readouterr().out
    assert "compiled by TVM, untuned" in text
    assert "run by torch (eager)" in text
    tables = [line for line in text.splitlines() if "   " in line]
    assert max(map(len, tables)) <= 80


@pytest.mark.exhaustive
def test_tuned_programs_come_from_a_database(
    run_folder: Path, network_file: Path, database: Path
) -> None:
    question = NetworkQuestion(
        network_file, "branches", batches=(None,), labels=(DEVICE,), model=run_folder,
        database=database,
    )  # fmt: skip
    found = network_answers(question)
    assert [one.way for one in found] == ["tvm-untuned", "tvm-tuned", "torch-eager", "torch-eager"]
    assert "fastest measured program" in found[1].schedule


def test_the_programs_of_a_database_are_predicted(
    run_folder: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`predict --records` took Ansor's records only."""
    words = ("predict", database, "--model", run_folder, "--device", DEVICE)
    rows = values(capsys, *words)
    assert rows
    assert {row["measured_s"] for row in rows} == {None}  # a database does not say on what
    assert all(0 < row["low_s"] <= row["latency_s"] <= row["high_s"] for row in rows)
    assert values(capsys, *words, "--target", "llvm") == rows


def test_torch_runs_no_onnx_file(run_folder: Path, tmp_path: Path) -> None:
    path = onnx_file(
        tmp_path / "net.onnx", lambda helper: [helper.make_node("Relu", ["x"], ["y"])], [4, 16]
    )
    question = NetworkQuestion(path, "net", labels=(DEVICE,), model=run_folder)
    assert [one.way for one in network_answers(question)] == ["tvm-untuned"]
    with pytest.raises(UsageError, match="torch cannot run an ONNX file"):
        network_answers(NetworkQuestion(path, "net", ways=["torch-eager"]))
    with pytest.raises(UsageError, match="--database"):
        network_answers(NetworkQuestion(path, "net", ways=["tvm-tuned"]))
    with pytest.raises(DataError, match=r"no database_workload\.json and no .*cdmpp search"):
        network_answers(NetworkQuestion(path, "net", database=tmp_path))


class _Sorts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svd(x)[1]


def test_what_tvm_cannot_import_has_a_line_that_says_so(run_folder: Path) -> None:
    question = NetworkQuestion(
        lambda: nn.Sequential(nn.Linear(6, 6), _Sorts()), "svd", labels=(DEVICE,),
        model=run_folder, shapes=[(6, 6)],
    )  # fmt: skip
    found = {one.way: one for one in network_answers(question)}
    assert found["tvm-untuned"].latency_s is None
    assert "svd" in found["tvm-untuned"].reasons[0]
    assert found["torch-eager"].latency_s is not None
    with pytest.raises(DataError, match="svd"):
        network_answers(NetworkQuestion(**{**vars(question), "ways": ["tvm-untuned"]}))


def _failing() -> nn.Module:
    raise RuntimeError("no weights here")


def test_a_factory_that_fails_is_one_sentence(run_folder: Path) -> None:
    question = NetworkQuestion(
        _failing, "net", labels=(DEVICE,), model=run_folder, shapes=[(6,)], ways=["tvm-untuned"]
    )
    with pytest.raises(DataError, match=r"net: the factory failed \(no weights here\)"):
        network_answers(question)


def test_a_missing_or_strange_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.txt").write_text("x")
    (tmp_path / "torn.pt2").write_bytes(b"PK\x03\x04")
    for name, said in (
        ("no.pt2", "no such file"),
        ("net.txt", "unknown kind"),
        ("torn.pt2", "not an exported"),
    ):
        assert main(["predict", "--network", str(tmp_path / name), "-q"]) == 3
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.count(said) == 1


@pytest.mark.exhaustive
def test_a_network_is_read_once_for_both_ways_of_tvm(
    run_folder: Path, network_file: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(
        network_tasks,
        "load_network",
        lambda path, sizes: (read.append(path), load_network(path))[1],
    )
    question = NetworkQuestion(
        network_file, "branches", ways=["tvm-untuned", "tvm-tuned"], batches=(None,),
        labels=(DEVICE,), model=run_folder, database=database,
    )  # fmt: skip
    assert len(network_answers(question)) == 2
    assert read == [network_file]
