"""Searches that build more programs than they run, ranked by a machine-code model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.errors import UsageError
from cdmpp.models.assemble import assemble_samples
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.machine_code.model import CodeModel, CodeRows
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES
from tests.tvm_helper.sampled import sample_schedules
from tests.tvm_helper.search.fixtures import asked_programs, matmul, train_into
from tests.tvm_helper.search.search_runs import few_are_drawn
from tvm_helper.compat import Target, te, tvm
from tvm_helper.measure.journal import read_journal
from tvm_helper.measure.options import TrialOptions
from tvm_helper.measure.target import measure_target
from tvm_helper.search.verifier import Verifier

pytestmark = pytest.mark.tvm

DEVICE = "epyc-avx2-1c"
WIDTH = len(MACHINE_CODE_NAMES)
_TARGET = measure_target(TrialOptions(device=DEVICE))


@pytest.fixture(scope="session")
@patch("cdmpp.predict.machine_code.net._EPOCHS", 3)
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a machine-code model for which more `cycles` means slower."""
    folder = train_into(tmp_path_factory.mktemp("verify") / "run")
    samples = assemble_samples(asked_programs())
    code = np.random.default_rng(0).random((len(samples), WIDTH)).astype(np.float32)
    rows = CodeRows.of(samples, code, samples.latency_s)
    rows.log_s[:] = rows.core_log_s + 12.0 + 4.0 * code[:, MACHINE_CODE_NAMES.index("cycles")]
    part = np.arange(len(samples)) % 3
    parts = [rows.take(part == number) for number in range(3)]
    model = CodeModel.fit(
        (parts[0], parts[1], parts[2]), targets={DEVICE: _TARGET.text},
        feature_schema=samples.programs.feature_schema, seed=0,
    )  # fmt: skip
    model.save(folder)
    return folder


@pytest.fixture
def trained(run_folder: Path) -> TrainedModel:
    return load_trained(run_folder, with_code=True)


def test_programs_without_code_or_features_come_last(trained: TrainedModel) -> None:
    modules = [one.mod for one in sample_schedules(matmul(32), "llvm", 4, seed=0)]
    a = te.placeholder((1 << 20, 1 << 20), name="A")
    odd = te.create_prim_func([a, te.compute((0,), lambda i: a[i, i], name="nothing")])
    slow, fast = np.full((2, WIDTH), 0.5)
    column = MACHINE_CODE_NAMES.index("cycles")
    slow[column], fast[column] = 1.0, 0.0
    verifier = Verifier(trained, DEVICE, _TARGET.tvm_target())
    latency_s = verifier.latency_s(
        [*modules, tvm.IRModule({"main": odd})],
        [slow.tolist(), fast.tolist(), [], fast.tolist(), fast.tolist()],
    )
    assert np.isfinite(latency_s).tolist() == [True, True, False, True, False]
    assert latency_s[1] < latency_s[0]
    assert verifier.latency_s(modules[:1], [[]]).tolist() == [np.inf]


@pytest.mark.parametrize(
    ("device", "target"),
    [
        ("epyc-avx512-1c", Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1})),
        ("graviton3", Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})),
        (DEVICE, Target({"kind": "llvm", "num-cores": 1})),
        (DEVICE, Target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2})),
    ],
)
def test_other_instructions_or_another_target_of_the_device_are_refused(
    device: str, target: Any, trained: TrainedModel
) -> None:
    with pytest.raises(UsageError, match=f"of {DEVICE} for .*, not of {device} for "):
        Verifier(trained, device, target)


def test_another_cpu_of_the_same_instructions_is_read(trained: TrainedModel) -> None:
    other = Target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 8})
    verifier = Verifier(trained, "ryzen-3700x", other)
    assert verifier.is_new_device
    assert not Verifier(trained, DEVICE, _TARGET.tvm_target()).is_new_device
    (module,) = [one.mod for one in sample_schedules(matmul(32), "llvm", 1, seed=0)]
    slow, fast = np.full((2, WIDTH), 0.5)
    column = MACHINE_CODE_NAMES.index("cycles")
    slow[column], fast[column] = 1.0, 0.0
    found = verifier.latency_s([module, module], [slow.tolist(), fast.tolist()])
    assert found[1] < found[0]


def test_a_model_without_one_is_refused(run_folder: Path) -> None:
    with pytest.raises(UsageError, match="reads the machine code of no device"):
        Verifier(load_trained(run_folder), DEVICE, _TARGET.tvm_target())


@pytest.mark.exhaustive
@pytest.mark.parametrize("cost_model", ["cdmpp", "random"])
def test_a_search_that_builds_more_than_it_runs(
    cost_model: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "search", "--out", str(tmp_path / "out"), "--device", DEVICE, "--force", "--task",
        "matmul:m=32,n=32,k=32", "--trials", "3", "--trials-per-round", "2", "--model",
        str(run_folder), "--cost-model", cost_model, "--set", "verify=3", "--set", "population=16",
        "--set", "search_threads=1", "--set", "timing.max_repeats=3", "--set", "final_repeats=3",
        "--set", "queue_timeout_s=600", "--set", "build_timeout_s=600", "--json",
    ]  # fmt: skip
    with few_are_drawn():
        assert main(words) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["trials"], summary["failed"], summary["drafted"]) == (3, 0, 9)
    assert summary["built"] == 9
    assert summary["tasks"][0]["tuned_s"] > 0
    kinds = [entry["kind"] for entry in read_journal(tmp_path / "out")]
    assert kinds.count("drafted") == 2
    assert kinds.count("measured") == 3
