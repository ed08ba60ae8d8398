"""Machine code of GPU programs in measure records and AutoTVM logs: tables and predictions."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")
if find_spec("nvidia") is None or find_spec("nvidia.cuda_nvrtc") is None:
    pytest.skip("needs cdmpp[nvrtc]", allow_module_level=True)

from cdmpp.cli.main import main
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.devices.registry import get_device
from cdmpp.errors import UsageError
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.machine_code.model import CodeCalibration, CodeModel
from cdmpp.predict.records import predict_records
from cdmpp.pretrained import model_folder
from cdmpp.programs.code_layout import CODE_LAYOUTS
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION, LEAF_SCHEMA_VERSION
from cdmpp.programs.gpu_code.columns import GPU_CODE_NAMES
from tests.paths import ROOT, shared
from tests.tvm_helper.measure.constant import Constant
from tests.tvm_helper.tasks.test_gpu_code import scheduled
from tvm_helper.legacy.environment import LegacyEnvironment, default_folder
from tvm_helper.predict.compiled_records import compiled_code
from tvm_helper.predict.predictor import Predictor, check_reads_code
from tvm_helper.tasks.program_file import NamedProgram
from tvm_helper.tasks.target import device_target

pytestmark = pytest.mark.tvm

COUNT = 2


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """The first programs of one task on two GPUs; of one of them no code can be read."""
    folder, shipped = tmp_path / "data", ROOT / "data" / "ansor-gpu"
    for label in ("v100", "k80"):
        source = sorted((shipped / "measure_records" / label).iterdir())[0]
        own = folder / "measure_records" / label
        own.mkdir(parents=True)
        lines = gzip.decompress(source.read_bytes()).decode().splitlines()[:COUNT]
        (own / source.name.removesuffix(".gz")).write_text("\n".join(lines) + "\n")
    (folder / "network_info").symlink_to(shipped / "network_info")
    return folder


def test_records_of_a_gpu_have_a_table_and_predictions_with_it(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out"
    words = ["dataset", "extract", "--dataset", str(dataset), "--jobs", "1", "--machine-code"]
    assert main([*words, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine_code"] == COUNT
    (table,) = read_machine_code(out)
    assert (table.kind, list(table.targets)) == ("gpu", ["v100"])
    assert json.loads(table.targets["v100"])["arch"] == "sm_70"
    samples = load_samples(out, cache_dir=tmp_path / "cache")
    is_own = np.array([one.name == "v100" for one in samples.devices])[samples.device]
    names = samples.programs.program_id[samples.program[is_own]]
    assert sorted(table.columns) == sorted(map(str, names))
    assert min(one[GPU_CODE_NAMES.index("threads")] for one in table.columns.values()) > 0

    read = _read_by_model(monkeypatch)
    trained = _reading(dict(table.targets))
    (file,) = (dataset / "measure_records" / "v100").iterdir()
    found = predict_records(trained, file, devices=["v100"], compiled=compiled_code)
    assert [one.latency_s for one in found.programs] == pytest.approx([3.0] * COUNT)
    assert all(one.is_compiled for one in found.programs)
    rows = np.concatenate(read)
    assert {row.tobytes() for row in rows} == {one.tobytes() for one in table.columns.values()}
    assert rows.shape[1] == len(CODE_LAYOUTS["gpu"].names)


def test_programs_of_a_user_are_compiled_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    read = _read_by_model(monkeypatch)
    trained = _reading({"v100": str(device_target(get_device("v100")))})
    program = NamedProgram("product", scheduled(4))
    asked = Predictor(trained, ["v100", "t4"], compiles=True, must_compile=True)
    on_v100, on_t4 = asked.programs([program])
    assert on_v100.latency_s == pytest.approx(3.0)
    assert on_t4.latency_s != on_v100.latency_s
    assert (on_v100.is_compiled, on_t4.is_compiled) == (True, False)
    assert len(read) == 1
    assert not Predictor(trained, ["v100"], compiles=True).reads_code_of(get_device("v100"))
    with pytest.raises(UsageError, match="reads the machine code of v100, not of t4"):
        check_reads_code(Predictor(trained, ["t4"], compiles=True, must_compile=True))


def _read_by_model(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lets every program take 3 s; returns the columns that are looked at, as they come."""
    read: list[Any] = []

    def time_of(code: Any, devices: Any, device: Any) -> Any:
        read.append(code)
        return np.full((len(code), 6), np.log(3.0))

    monkeypatch.setattr("cdmpp.predict.machine_code.model.gpu_log_s", time_of)
    return read


def _reading(targets: dict[str, str]) -> TrainedModel:
    same: Any = Constant()
    schema = {"leaf": LEAF_SCHEMA_VERSION, "leaf_extra": LEAF_EXTRA_SCHEMA_VERSION}
    reader = CodeModel(
        targets, schema, same, same, CodeCalibration(0.5, 0.5, 0.1), None, kind="gpu"
    )
    return replace(load_trained(model_folder("pretrained")), gpu_code=reader)


@pytest.mark.ansor
def test_logs_of_autotvm_have_a_table_of_what_was_extracted(tmp_path: Path) -> None:
    log = shared("autotvm/gtx1650.json.gz")
    if not LegacyEnvironment(default_folder()).is_complete:
        pytest.skip("no side environment: make legacy-env")
    with gzip.open(log, "rt") as file:
        lines = [line for line, _ in zip(file, range(40), strict=False)]
    own, out = tmp_path / "gtx1650.json", tmp_path / "out"
    own.write_text("".join(lines))
    words = ["dataset", "extract", "--dataset", str(own), "--jobs", "1", "--per-task", "2"]
    assert main([*words, "--machine-code", "--out", str(out), "-q"]) == 0
    (table,) = read_machine_code(out)
    assert (table.kind, list(table.targets)) == ("gpu", ["gtx1650"])
    samples = load_samples(out, cache_dir=tmp_path / "cache")
    assert sorted(table.columns) == sorted(map(str, samples.programs.program_id))
