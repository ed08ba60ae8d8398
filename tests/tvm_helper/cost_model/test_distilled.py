"""The network that is distilled from a model, and searches that it scores candidates for."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.datasets.samples import Samples
from cdmpp.devices.registry import load_registry
from cdmpp.errors import DataError
from cdmpp.models.assemble import assemble_samples
from cdmpp.models.nets.options import LoopOptions
from cdmpp.models.options import SegmentMlpOptions
from cdmpp.predict import distilled
from cdmpp.predict.distilled import DistilledModel
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES
from cdmpp.training import distil as distil_run
from tests.tvm_helper.search.fixtures import DEVICE, asked_programs, train_into
from tvm_helper.cost_model.safety_net import SafetyNet
from tvm_helper.cost_model.scoring import SearchCore
from tvm_helper.cost_model.state_file import read_state, write_state

pytestmark = pytest.mark.tvm

SMALL = SegmentMlpOptions(
    hidden=16, loop=LoopOptions(epochs=30, programs_per_batch=16, learning_rate=3e-3)
)


@pytest.fixture(scope="module")
def samples() -> Samples:
    return assemble_samples(asked_programs())


@pytest.fixture(scope="module")
def run_folder(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the invented machine, distilled by the command; every folder is its programs."""
    folder = train_into(tmp_path_factory.mktemp("distilled") / "run")
    out = tmp_path_factory.mktemp("said") / "out.json"
    with pytest.MonkeyPatch.context() as patch, out.open("w") as said:
        patch.setattr(distil_run, "merged_folder", lambda folders, cache_dir: folders[0])
        patch.setattr(distil_run, "load_samples", lambda folder, cache_dir: samples)
        patch.setattr(distil_run, "read_machine_code", lambda folder: ())
        patch.setattr(
            "cdmpp.cli.train.distil.dataset_of", lambda place, **_: SimpleNamespace(folder=place)
        )
        patch.setattr(distilled, "_OPTIONS", SMALL)
        patch.setattr("sys.stdout", said)
        assert main(["distil", "--model", str(folder), "--data", "any", "--json"]) == 0
    (folder / "said.json").write_text(out.read_text())
    return folder


@pytest.fixture(scope="module")
def trained(run_folder: Path) -> TrainedModel:
    return load_trained(run_folder)


@pytest.mark.exhaustive
def test_the_command_judges_network_and_teacher_on_tasks_that_neither_learned(
    run_folder: Path, trained: TrainedModel
) -> None:
    said = json.loads((run_folder / "said.json").read_text())
    assert said["kinds"] == ["cpu"]
    assert said["teacher_share"] in distilled.TRIED_SHARES
    assert said["network"]["spearman"] > 0.5
    assert said["network"]["log_error"] < 0.5
    assert said["teacher"] != said["network"]
    network = trained.distilled
    assert network is not None
    assert network.errors is not None
    assert network.errors.spearman == said["network"]["spearman"]


def test_a_search_scores_by_the_network_and_predictions_stay_the_models(
    trained: TrainedModel, samples: Samples
) -> None:
    assert trained.distilled is not None
    by_network = trained.distilled.predict(samples)
    core = SearchCore(trained, DEVICE)
    assert core.scorer.kind == "distilled"
    assert np.array_equal(core.latency_s("task", samples), by_network)
    by_model = trained.model.predict(samples)
    assert np.array_equal(trained.estimate(samples).latency_s, np.maximum(
        by_model, trained.floor_s(samples)))  # fmt: skip
    assert not np.array_equal(by_network, by_model)


@pytest.mark.parametrize("case", ["none", "tuned", "of another kind"])
def test_without_a_network_of_its_own_the_model_scores(
    trained: TrainedModel, samples: Samples, case: str
) -> None:
    known = replace(trained, distilled=None) if case == "none" else trained
    core = SearchCore(known, load_registry()["t4" if case == "of another kind" else DEVICE])
    if case == "tuned":
        core.current = copy.copy(core.trained.model)
    assert core.scorer is core.current
    assert np.array_equal(core.latency_s("task", samples), core.current.predict(samples))


def test_neighbours_correct_what_the_network_says(trained: TrainedModel, samples: Samples) -> None:
    core = SearchCore(trained, DEVICE, neighbours=True)
    own = [one for one in asked_programs() if one.task == "task 0|llvm"]
    seen = assemble_samples(own)
    core.learn("task", [one.ast for one in own], 3.0 * core.latency_s("task", seen))
    assert core.latency_s("task", seen) == pytest.approx(core.scorer.predict(seen), rel=1e-6)


def test_a_saved_search_goes_on_with_the_network(
    trained: TrainedModel, samples: Samples, tmp_path: Path
) -> None:
    core = SearchCore(trained, DEVICE)
    before = core.latency_s("task", samples)
    write_state(tmp_path / "state.tar", core.state(SafetyNet(), peer=None))
    again = SearchCore(replace(trained, distilled=None), DEVICE)
    again.restore(read_state(tmp_path / "state.tar", peer=None))
    assert again.scorer.kind == "distilled"
    assert np.array_equal(again.latency_s("task", samples), before)


def test_machine_code_teaches_where_it_is_known(trained: TrainedModel, samples: Samples) -> None:
    reader = SimpleNamespace(
        kind="cpu", feature_schema={}, estimate=lambda rows: (rows.model_log_s + 1.0, None)
    )
    names = [str(name) for name in samples.programs.program_id[::2]]
    columns = np.zeros(len(MACHINE_CODE_NAMES), np.float32)
    table = MachineCode({DEVICE: "{}"}, dict.fromkeys(names, columns))
    known = replace(trained, code=reader)  # type: ignore[arg-type]
    said = np.log(distil_run._taught_s(known, samples, [table]))
    alone = np.log(trained.model.predict(samples))
    is_compiled = np.isin(samples.programs.program_id[samples.program].astype(str), names)
    assert 0 < is_compiled.sum() < len(samples)
    np.testing.assert_allclose(said, alone + is_compiled)


def test_programs_that_never_ran_are_learned_from_their_teacher(
    samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distilled, "_OPTIONS", SMALL)
    monkeypatch.setattr(distilled, "TRIED_SHARES", (0.5,))
    never_ran = replace(samples, latency_s=np.full(len(samples), np.nan))
    nothing = samples.take(np.zeros(0, np.int64))
    taught_s = 7.0 * samples.latency_s
    found = DistilledModel.fit(
        (never_ran, replace(samples, latency_s=taught_s), nothing),
        (taught_s, taught_s, np.zeros(0)), taught_by="", seed=0,
    )  # fmt: skip
    assert found.errors is None
    assert abs(np.log(found.predict(samples) / taught_s).mean()) < 0.3


def test_a_damaged_network_or_one_of_another_model_is_refused(
    run_folder: Path, trained: TrainedModel, tmp_path: Path
) -> None:
    assert trained.distilled is not None
    with pytest.raises(DataError, match="distilled from a model of other data"):
        DistilledModel.load(run_folder, taught_by="other")
    trained.distilled.save(tmp_path)
    path = tmp_path / distilled.FOLDER / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"distilled is damaged .*`cdmpp distil`"):
        DistilledModel.load(tmp_path, taught_by=trained.card.data_hash)
