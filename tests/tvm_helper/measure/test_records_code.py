"""Machine code of measure records: tables a target, what is compiled again, predictions with it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.errors import UsageError
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.machine_code.model import CodeCalibration, CodeModel
from cdmpp.predict.records import predict_records
from cdmpp.pretrained import model_folder
from cdmpp.programs.machine_code.columns import BOUNDS
from tests.tvm_helper.measure.constant import Constant
from tvm_helper.measure import records_code
from tvm_helper.measure.records_code import write_records_code
from tvm_helper.predict.compiled_records import compiled_code

pytestmark = pytest.mark.tvm

LABELS = ("epyc-avx2-1c", "epyc-avx2-2c", "epyc-avx512-1c")
COUNT = 2


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """The first programs of one task on three labels of two targets."""
    folder, shipped = tmp_path / "data", default_dataset_dir()
    for label in LABELS:
        source = sorted((shipped / "measure_records" / label).iterdir())[0]
        own = folder / "measure_records" / label
        own.mkdir(parents=True)
        lines = gzip.decompress(source.read_bytes()).decode().splitlines()[:COUNT]
        (own / source.name.removesuffix(".gz")).write_text("\n".join(lines) + "\n")
    (folder / "network_info").symlink_to(shipped / "network_info")
    return folder


@pytest.mark.exhaustive
def test_one_table_a_target_and_nothing_twice(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    compiled: list[tuple[str, int]] = []
    real = records_code.compiled_columns

    def counted(dag: str, target: str, programs: Any) -> Any:
        compiled.append((json.loads(target)["mcpu"], len(programs)))
        return real(dag, target, programs)

    monkeypatch.setattr(records_code, "compiled_columns", counted)
    write_records_code(dataset, out, jobs=1)
    assert sorted(compiled) == [("core-avx2", COUNT), ("skylake-avx512", COUNT)]
    narrow, wide = read_machine_code(out)
    assert sorted(narrow.targets) == ["epyc-avx2-1c", "epyc-avx2-2c"]
    assert json.loads(narrow.targets["epyc-avx2-2c"])["num-cores"] == 2
    assert list(wide.targets) == ["epyc-avx512-1c"]
    assert narrow.columns.keys() == wide.columns.keys()
    missing, kept = narrow.columns
    replace(narrow, columns={kept: narrow.columns[kept]}).save(out, name="core-avx2")
    compiled.clear()
    write_records_code(dataset, out, jobs=1)
    assert compiled == [("core-avx2", 1)]
    (again, _) = read_machine_code(out)
    assert np.array_equal(again.columns[missing], narrow.columns[missing])


def test_extracting_compiles_and_copies_what_is_there(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["dataset", "extract", "--dataset", str(dataset), "--jobs", "1", "--json"]
    device = ["--device", "epyc-avx2-1c"]
    assert main([*words, *device, "--machine-code", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["machine_code"] == COUNT
    (table,) = read_machine_code(out)
    table.save(dataset, name="core-avx2")
    assert main([*words, "--out", str(tmp_path / "again")]) == 0
    (copied,) = read_machine_code(tmp_path / "again")
    assert copied.columns.keys() == table.columns.keys()


def test_what_cannot_be_compiled_is_said(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cdmpp measure --machine-code"):
        write_records_code(tmp_path, tmp_path)
    (dataset / "measure_records" / LABELS[0]).rename(dataset / "measure_records" / "k80")
    with pytest.raises(UsageError, match="k80: expected a known CPU or NVIDIA GPU"):
        write_records_code(dataset, tmp_path, ["k80"])
    out = tmp_path / "out"
    words = ["dataset", "extract", "--dataset", str(dataset), "--device", "k80", "--machine-code"]
    assert main([*words, "--out", str(out)]) == 2
    assert not out.exists(), "it is said before hours of work"


@pytest.mark.exhaustive
def test_records_are_predicted_with_their_code(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "cdmpp.predict.machine_code.model.core_log_s",
        lambda code, devices, device: np.full((len(code), 1 + len(BOUNDS)), np.log(3.0)),
    )
    trained = load_trained(model_folder("pretrained"))
    same: Any = Constant()
    target = '{"kind": "llvm", "mcpu": "core-avx2"}'
    code = CodeModel(
        {"epyc-avx2-1c": target}, trained.card.feature_schema, same, same,
        CodeCalibration(0.5, 0.5, 0.1), None,
    )  # fmt: skip
    with_code = replace(trained, code=code)
    (file,) = (dataset / "measure_records" / "epyc-avx2-1c").iterdir()
    found = predict_records(with_code, file, compiled=compiled_code)
    assert [one.latency_s for one in found.programs] == pytest.approx([3.0] * COUNT)
    labels = ("epyc-avx2-1c", "ryzen-3700x", "epyc-avx512-1c")
    all_three = predict_records(with_code, file, devices=labels, compiled=compiled_code)
    of: dict[str, list[Any]] = {label: [] for label in labels}
    for one in all_three.programs:
        of[one.device].append(one)
    assert [one.latency_s for one in of[labels[0]]] == pytest.approx([3.0] * COUNT)
    # Nobody measured the second, but the same instructions: half of what is said is the model's.
    alone = predict_records(trained, file, devices=labels[1:2])
    half = sorted(np.sqrt(3.0 * one.latency_s) for one in alone.programs if one.latency_s)
    assert sorted(one.latency_s for one in of[labels[1]]) == pytest.approx(half)
    assert all(one.is_compiled and one.out_of_distribution for one in of[labels[1]])
    alone = predict_records(trained, file, devices=labels[2:])
    said = [one.latency_s for one in alone.programs]
    assert [one.latency_s for one in of[labels[2]]] == pytest.approx(said)
    with pytest.raises(UsageError, match="reads the machine code of epyc-avx2-1c, not of epyc-av"):
        predict_records(with_code, file, devices=labels[2:], compiled=compiled_code)
    words = ["predict", "--model", "pretrained", "--records", str(file), "--machine-code"]
    assert main([*words, "--measured-on", "epyc-avx2-1c"]) == 2
    assert "cannot be combined" in capsys.readouterr().err
