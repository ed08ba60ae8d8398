"""Machine code of compiled programs: its columns, a campaign's table, and predictions with it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.devices.registry import get_device
from cdmpp.errors import ReplayError
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.machine_code.cold_memory import NetworkWidths
from cdmpp.predict.machine_code.model import CodeCalibration, CodeModel
from cdmpp.programs.machine_code.columns import (
    BOUNDS,
    MACHINE_CODE_NAMES,
    machine_code_columns,
)
from tests.tvm_helper.search.fixtures import DEVICE, matmul, train_into
from tvm_helper.compat import Target, s_tir, tvm
from tvm_helper.measure import machine_code
from tvm_helper.predict.predictor import Predictor
from tvm_helper.tasks.machine_code import code_of, is_target
from tvm_helper.tasks.network_tasks import NetworkTask
from tvm_helper.tasks.program_file import NamedProgram
from tvm_helper.tasks.target import device_target

pytestmark = pytest.mark.tvm

WIDE = Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1})


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_into(tmp_path_factory.mktemp("model") / "run")


def scheduled(*, vectors: bool) -> Any:
    """A matrix product whose inner loop runs along the columns, or is as it was written."""
    schedule = s_tir.Schedule(matmul(32, 64, 48))
    block = schedule.get_sblock("matmul")
    i, j, k = schedule.get_loops(block)
    if vectors:
        outer, inner = schedule.split(j, [None, 16])
        schedule.reorder(i, outer, k, inner)
        schedule.vectorize(inner)
        schedule.decompose_reduction(block, k)
    return schedule.mod


def columns(module: Any, target: Target = WIDE) -> dict[str, float]:
    found = machine_code_columns(code_of(module, target))
    assert found is not None
    return dict(zip(MACHINE_CODE_NAMES, found.tolist(), strict=True))


def test_the_code_says_what_was_vectorised() -> None:
    wide, plain = columns(scheduled(vectors=True)), columns(scheduled(vectors=False))
    operations = 2 * 32 * 64 * 48
    assert 2 ** wide["total.fma512"] - 1 == pytest.approx(operations / 32, rel=0.02)
    assert plain["hottest.fma512"] == 0
    for found in (wide, plain):
        assert found["unknown_loops"] == 0
        assert 2 ** found["flops"] - 1 == pytest.approx(operations, rel=0.02)
    assert wide["cycles"] < plain["cycles"] - 1


def test_a_module_that_does_not_compile() -> None:
    schedule = s_tir.Schedule(matmul(16))
    schedule.bind(schedule.get_loops(schedule.get_sblock("matmul"))[0], "blockIdx.x")
    with pytest.raises(ReplayError, match="does not compile"):
        code_of(schedule.mod, WIDE)


def test_targets_are_compared_by_what_they_say() -> None:
    assert is_target(WIDE, str(WIDE))
    assert not is_target(WIDE, '{"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1}')


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_campaigns_table_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["measure", "--out", str(out), "--device", "epyc-avx2-1c", "--force", "--per-task", "3",
             "--task", "matmul:m=16,n=16,k=16", "--set", "timing.budget_s=0.2", "-q"]  # fmt: skip
    assert main(words) == 0
    capsys.readouterr()
    assert main(["measure", "--machine-code", "--out", str(out), "--json", "-q"]) == 0
    said = json.loads(capsys.readouterr().out)
    (table,) = read_machine_code(out)
    assert len(table.columns) == said["programs"] == 3
    assert is_target(device_target(get_device("epyc-avx2-1c")), table.targets["epyc-avx2-1c"])
    # One is missing: only that one is compiled again.
    missing, *others = table.columns
    MachineCode(table.targets, {name: table.columns[name] for name in others}).save(out)
    calls: list[Any] = []

    def counted(module: Any, target: Target) -> str:
        calls.append(module)
        return code_of(module, target)

    monkeypatch.setattr(machine_code, "code_of", counted)
    machine_code.write_machine_code(out)
    assert len(calls) == 1
    (again,) = read_machine_code(out)
    assert np.array_equal(again.columns[missing], table.columns[missing])
    # Programs that do not compile any more are left out.
    (out / "machine_code.parquet").unlink()

    def failing(module: Any, target: Target) -> str:
        raise ReplayError("it does not compile")

    monkeypatch.setattr(machine_code, "code_of", failing)
    assert machine_code.write_machine_code(out).columns == {}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_campaign_keeps_the_code_of_what_it_builds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["measure", "--out", str(out), "--device", "epyc-avx2-1c", "--force", "--per-task", "2",
             "--task", "matmul:m=16,n=16,k=16", "--set", "timing.budget_s=0.2",
             "--set", "machine_code=true", "-q"]  # fmt: skip
    assert main(words) == 0
    (kept,) = read_machine_code(out)
    (out / "machine_code.parquet").unlink()
    compiled = machine_code.write_machine_code(out)
    assert kept.targets == compiled.targets
    assert kept.columns.keys() == compiled.columns.keys()
    for name, values in compiled.columns.items():
        assert np.array_equal(kept.columns[name], values)
    # One more program is measured: those of before stay.
    words[words.index("--per-task") + 1] = "3"
    (out / "machine_code.parquet").unlink()
    kept.save(out)
    assert main(words) == 0
    (more,) = read_machine_code(out)
    assert len(more.columns) == 3
    assert kept.columns.keys() < more.columns.keys()


def test_a_folder_without_a_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--machine-code", "--out", str(tmp_path)]) == 3
    assert "no campaign at" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_predict_compiles_where_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "programs.py"
    file.write_text(
        "from tests.tvm_helper.measure.test_machine_code import scheduled\n"
        "product = scheduled(vectors=True)\n"
    )
    words = ["predict", "--model", "pretrained", "--program", str(file), "--device"]

    def latency_s(*more: str) -> Any:
        assert main([*words, *more, "--json"]) == 0
        return [row["latency_s"] for row in json.loads(capsys.readouterr().out)]

    # Learned from; of the same instructions; of others.
    labels = ("epyc-avx512-1c", "--device", "ryzen-3700x", "--device", "graviton3")
    alone, with_code = latency_s(*labels), latency_s(*labels, "--machine-code")
    assert with_code[0] != alone[0]
    assert with_code[1] != alone[1]
    assert with_code[2] == alone[2]
    assert main([*words, "graviton3", "--machine-code"]) == 2
    assert "not of graviton3" in capsys.readouterr().err


@pytest.fixture
def no_core_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned is a ratio to a second."""
    monkeypatch.setattr(
        "cdmpp.predict.machine_code.model.core_log_s",
        lambda code, devices, device: np.zeros((len(code), 1 + len(BOUNDS))),
    )


class _Constant:
    """Stands for boosted trees and for a perceptron: everything takes two milliseconds."""

    def inplace_predict(self, columns: Any, **options: Any) -> Any:
        return np.full(len(columns), math.log(2e-3))

    def log_s(self, columns: Any) -> Any:
        return np.full(len(columns), math.log(2e-3))


@pytest.mark.usefixtures("no_core_time")
def test_a_prediction_counts_in_the_code_of_its_own_target(run_folder: Path) -> None:
    trained = load_trained(run_folder)
    spec = get_device(DEVICE)
    schema = dict(trained.model._schema)  # type: ignore[attr-defined]
    target = str(device_target(spec))
    calibration = CodeCalibration(trees=0.6, perceptron=0.4, width=0.5)
    same: Any = _Constant()
    trees = CodeModel({DEVICE: target}, schema, same, same, calibration, None)
    program = [NamedProgram("product", scheduled(vectors=True))]

    def answer(code: CodeModel | None, *, compiles: bool = True) -> Any:
        predictor = Predictor(replace(trained, code=code), [DEVICE], compiles=compiles)
        (found,) = predictor.programs(program)
        return found

    alone = answer(None)
    with_code = answer(trees)
    factor = 2.0 if with_code.is_far else 1.0
    assert with_code.latency_s == pytest.approx(2e-3)
    assert with_code.low_s == pytest.approx(2e-3 * math.exp(-0.5 * factor))
    assert with_code.high_s == pytest.approx(2e-3 * math.exp(0.5 * factor))
    assert with_code.mean_s == pytest.approx(2e-3)
    assert answer(trees, compiles=False).latency_s == alone.latency_s
    trees.targets = {DEVICE: str(WIDE)}
    assert answer(trees).latency_s == alone.latency_s
    trees.targets = {"epyc-avx2-1c": target}  # the same instructions
    assert answer(trees).latency_s != alone.latency_s


@pytest.mark.usefixtures("no_core_time")
def test_the_fastest_of_many_is_judged_as_searches_have_taught(run_folder: Path) -> None:
    trained = load_trained(run_folder)
    spec = get_device(DEVICE)
    same: Any = _Constant()
    code = CodeModel(
        {DEVICE: str(device_target(spec))}, dict(trained.model._schema), same, same,  # type: ignore[attr-defined]
        CodeCalibration(trees=0.6, perceptron=0.4, width=0.5), None,
    )  # fmt: skip
    module = tvm.IRModule({"main": matmul(32, 64, 48)})
    schedule = s_tir.Schedule(module)
    task = NetworkTask("product", "dense", ("32x48", "48x64", "32x64"), 1, module, "key")
    predictor = Predictor(replace(trained, code=code), [DEVICE], compiles=True)
    alone = Predictor(replace(trained, code=None), [DEVICE])

    def latency_s(predictor: Predictor, fastest_of: int) -> float | None:
        return predictor.scheduled(task, schedule, spec, fastest_of=fastest_of).latency_s

    assert latency_s(predictor, 0) == latency_s(predictor, 7) == pytest.approx(2e-3)
    assert latency_s(predictor, 8) == latency_s(alone, 8)
    code.fastest[DEVICE] = CodeCalibration(trees=1.0, perceptron=0.0, width=0.5, shift=-0.5)
    assert latency_s(predictor, 7) == pytest.approx(2e-3)
    assert latency_s(predictor, 8) == pytest.approx(2e-3 * math.exp(-0.5))

    code.network_widths = NetworkWidths(1.2)
    code.fastest = {"another-cpu": code.fastest[DEVICE]}
    widened = predictor.scheduled(task, schedule, spec)
    base = 2.0 * 0.5 if widened.is_far else 0.5
    assert widened.high_s == pytest.approx(2e-3 * math.exp(math.hypot(base, 1.2)))
    assert widened.low_s == pytest.approx(2e-3 * math.exp(-math.hypot(base, 1.2)))
    assert predictor.own_half_width(spec, 2e-3, widened) == pytest.approx(1.2)
    assert alone.own_half_width(spec, 2e-3, widened) == 0.0
