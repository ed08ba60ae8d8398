"""`train-code` on the measurements of searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.errors import DataError
from cdmpp.models.assemble import assemble_samples
from cdmpp.models.gbdt import GbdtOptions
from cdmpp.models.parts.checks import as_read_by
from cdmpp.predict.corrections import MachineCodeCorrection
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.machine_code.cold_memory import (
    KernelInNetwork,
    read_in_network,
    write_in_network,
)
from cdmpp.predict.machine_code.known import code_columns
from cdmpp.predict.machine_code.model import CodeModel, CodeRows
from cdmpp.predict.saved_model import task_digest
from cdmpp.programs.gpu_code.columns import GPU_CODE_NAMES
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES
from cdmpp.training import train_code as code_run
from cdmpp.training.evaluate import evaluate
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import train_run
from tests.tvm_helper.search.fixtures import DEVICE, PROGRAMS, asked_programs, train_into
from tests.tvm_helper.search.search_runs import search

pytestmark = pytest.mark.tvm

TARGETS = {DEVICE: '{"kind": "llvm", "mcpu": "skylake-avx512"}'}


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of the invented machine; reading any folder returns this machine's programs."""
    samples = assemble_samples(asked_programs())
    names = [str(name) for name in samples.programs.program_id]
    rng = np.random.default_rng(0)
    columns = rng.random((len(names), len(MACHINE_CODE_NAMES))).astype(np.float32)
    code = MachineCode(TARGETS, dict(zip(names, columns, strict=True)))
    monkeypatch.setattr(code_run, "load_samples", lambda folder, cache_dir: samples)
    monkeypatch.setattr(code_run, "read_machine_code", lambda folder: (code,))
    return train_into(tmp_path / "run")


@patch("cdmpp.predict.machine_code.net._EPOCHS", 3)
def trained_code(
    run_folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> dict[str, Any]:
    assert main(["train-code", "--model", str(run_folder), "--data", "any", *words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_dataset_without_machine_code(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train-code", "--model", str(run_folder), "--data", "any"]
    monkeypatch.setattr(code_run, "read_machine_code", lambda folder: ())
    assert main(words) == 3
    said = capsys.readouterr().err
    assert "any: has no machine code; add it with: cdmpp measure --machine-code" in said
    monkeypatch.setattr(code_run, "load_samples", load_samples)
    assert main(words) == 3
    assert "any: not a complete extracted dataset" in capsys.readouterr().err


def test_searches_say_what_the_fastest_take(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(code_run, "LEAST_MEASURED", PROGRAMS)
    samples = code_run.load_samples(tmp_path, cache_dir=tmp_path)
    fastest_s = {
        str(task): samples.latency_s[samples.task_id == number].min()
        for number, task in enumerate(samples.programs.tasks)
    }
    monkeypatch.setattr("cdmpp.predict.machine_code.cold_memory.LEAST_S", 0.0)
    write_in_network(
        tmp_path,
        [
            KernelInNetwork(task.removesuffix("|llvm"), 1e5, seconds + 1e5 * 2e-11)
            for task, seconds in fastest_s.items()
        ],
    )
    answer = trained_code(run_folder, capsys, "--searched", str(tmp_path))
    trained = load_trained(run_folder, with_code=True)
    known = trained.card.training_tasks
    assert len(known) < len(fastest_s)
    (label,) = answer["fastest_test"]
    held_out = answer["fastest_test"][label]["programs"]
    assert 1 <= held_out < len(fastest_s) - len(known)
    assert answer["cold_s_per_byte"] == {label: pytest.approx(2e-11)}
    code = trained.code
    assert code is not None
    assert code.fastest[label].shift == answer["fastest"][label]["shift"]
    assert code.cold_s_per_byte == answer["cold_s_per_byte"]


def test_three_fifths_of_further_tasks_are_learned_from(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    parts: list[set[str]] = []
    fit = CodeModel.fit.__func__  # type: ignore[attr-defined]

    def fitted(cls: type[CodeModel], rows: tuple[CodeRows, ...], **facts: Any) -> CodeModel:
        parts.extend(set(map(task_digest, part.task)) for part in rows)
        found: CodeModel = fit(cls, rows, **facts)
        return found

    monkeypatch.setattr(CodeModel, "fit", classmethod(fitted))
    samples = code_run.load_samples(tmp_path, cache_dir=tmp_path)
    known = load_trained(run_folder).card.training_tasks
    digests = [task_digest(str(task)) for task in samples.programs.tasks]
    new = next(
        place
        for place, digest in enumerate(digests)
        if digest not in known and int(digest, 16) % 5 > 1
    )
    shown = samples.take(samples.task_id != new)  # its tasks outside `known` stay held out
    monkeypatch.setattr(
        code_run, "load_samples", lambda folder, cache_dir: samples if folder == tmp_path else shown
    )
    trained_code(run_folder, capsys, "--further", str(tmp_path))
    trained = load_trained(run_folder, with_code=True)
    assert trained.code is not None
    assert trained.code.added_tasks == {digests[new]}
    assert parts[0] == trained.learned_tasks == known | {digests[new]}
    assert parts[1] | parts[2] == set(digests) - parts[0]


def test_without_searches_nothing_is_said_of_the_fastest(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = trained_code(run_folder, capsys)
    assert answer["fastest"] == answer["cold_s_per_byte"] == {}


def test_machine_code_is_read_with_newer_leaf_columns_than_the_model_has(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = code_run.load_samples(run_folder, cache_dir=run_folder)
    older = as_read_by({"leaf": 1, "leaf_extra": 4}, samples)
    options = TrainOptions(model="gbdt", gbdt=GbdtOptions(trees=3, threads=1), baselines=())
    folder = tmp_path / "older"
    train_run(options, older, folder)
    alone = load_trained(folder)
    assert alone.leaf_extra_version == 4
    trained_code(folder, capsys)
    trained = load_trained(folder, with_code=True)
    assert (trained.card.leaf_extra_version, trained.leaf_extra_version) == (4, 5)
    assert np.array_equal(trained.estimate(samples).latency_s, alone.estimate(older).latency_s)
    (code,) = code_run.read_machine_code(folder)
    step = MachineCodeCorrection(code_columns(samples, code))
    assert np.all(trained.estimate(samples, [step]).latency_s > 0)
    assert trained.code is not None
    assert trained.code.feature_schema == {"leaf": 1, "leaf_extra": 5}
    with pytest.raises(DataError, match="leaf_extra v5 but got leaf v1, leaf_extra v4"):
        trained.estimate(older, [step])
    values = evaluate(trained, samples, {}, (code,))["tiers"]["compiled"]
    assert np.isfinite(values["mean_log_error"])
    assert evaluate(trained, older)["tiers"]["compiled"] is None  # needs no newer columns


def test_programs_of_gpus_have_a_model_of_their_own(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (of_cpu,) = code_run.read_machine_code(run_folder)
    rng = np.random.default_rng(1)
    columns = rng.random((len(of_cpu.columns), len(GPU_CODE_NAMES))).astype(np.float32)
    of_gpu = MachineCode(TARGETS, dict(zip(of_cpu.columns, columns, strict=True)), "gpu")
    monkeypatch.setattr(code_run, "read_machine_code", lambda folder: (of_gpu,))
    answer = trained_code(run_folder, capsys)
    trained = load_trained(run_folder, with_code=True)
    assert trained.code is None
    assert trained.gpu_code is not None
    assert trained.readers == [trained.gpu_code]
    assert trained.gpu_code.targets == answer["targets"] == TARGETS
    samples = code_run.load_samples(run_folder, cache_dir=run_folder)
    alone = trained.estimate(samples)
    said = trained.estimate(samples, [MachineCodeCorrection(columns, "gpu")])
    assert np.all(np.isfinite(said.latency_s))
    unknown = np.full_like(columns, np.nan)
    same = trained.estimate(samples, [MachineCodeCorrection(unknown, "gpu")])
    assert np.array_equal(same.latency_s, alone.latency_s)


def test_programs_of_cpus_and_gpus_are_not_learned_from_at_once(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (of_cpu,) = code_run.read_machine_code(run_folder)
    of_gpu = MachineCode({"v100": "{}"}, {}, "gpu")
    monkeypatch.setattr(code_run, "read_machine_code", lambda folder: (of_cpu, of_gpu))
    assert main(["train-code", "--model", str(run_folder), "--data", "any"]) == 3
    assert "programs of CPUs and of GPUs" in capsys.readouterr().err


def test_tasks_of_few_programs_are_no_search(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(code_run.CodeModel, "fit", None)  # it is said before minutes of fitting
    words = ["train-code", "--model", str(run_folder), "--data", "any"]
    assert main([*words, "--searched", str(tmp_path)]) == 3
    assert "no searched task with 8 measured programs" in capsys.readouterr().err


def test_an_extracted_search_keeps_what_is_known_of_its_programs(tmp_path: Path) -> None:
    folder, data = tmp_path / "search", tmp_path / "data"
    search(folder, trials=4, machine_code=True)
    kernels = [KernelInNetwork('["1"]', 4096.0, 1e-3)]
    write_in_network(folder, kernels)
    words = ["dataset", "extract", "--dataset", str(folder), "--out", str(data), "--jobs", "1"]
    assert main([*words, "--device", "epyc-avx2-2c", "-q"]) == 0
    samples = load_samples(data, cache_dir=tmp_path / "cache")
    (code,) = read_machine_code(data)
    assert sorted(code.columns) == sorted(str(name) for name in samples.programs.program_id)
    assert read_in_network(data) == kernels
