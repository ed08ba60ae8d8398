"""The MetaSchedule plug-in: in TVM's own search, on an invented machine whose truth is known."""

from __future__ import annotations

import logging
import random
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from tvm.s_tir import meta_schedule as ms

from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.metrics import spearman
from tests.tvm_helper.sampled import sample_schedules, sample_target
from tests.tvm_helper.search.fixtures import (
    DEVICE,
    RunnerHere,
    matmul,
    measured_s,
    search,
    train_into,
)
from tvm_helper.compat import Target, te, tvm
from tvm_helper.cost_model import measured_programs
from tvm_helper.cost_model.measured_programs import SEARCH_TUNING
from tvm_helper.cost_model.metaschedule import UNSUPPORTED_SCORE, CdmppCostModel
from tvm_helper.cost_model.tune import local_builder, resolve_cost_model, tune_relax, tune_tir

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_into(tmp_path_factory.mktemp("search") / "run")


@pytest.fixture
def brief_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tunings that learn little."""
    few = replace(SEARCH_TUNING, steps=8, validate_every=4, folds=2)
    monkeypatch.setattr(measured_programs, "SEARCH_TUNING", few)


class Batch:
    """Random candidates of a task, with the context that TVM would give."""

    def __init__(self, function: Any, count: int, *, seed: int = 0) -> None:
        schedules = sample_schedules(function, "llvm", count, seed=seed)
        self.context = ms.TuneContext(
            mod=function, target=sample_target("llvm"), num_threads=1, task_name="task"
        )
        self.candidates = [candidate(schedule) for schedule in schedules]
        self.seconds = np.array([measured_s(schedule.mod) for schedule in schedules])

    def results(self) -> list[Any]:
        return [ms.runner.RunnerResult([float(value)], None) for value in self.seconds]


def candidate(schedule: Any) -> Any:
    entry = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return ms.MeasureCandidate(schedule, entry)


def unsupported_candidate() -> Any:
    """A schedule that stores nothing at a constant extent."""
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    function = te.create_prim_func([a, te.compute((n,), lambda i: a[i] + 1.0, name="B")])
    schedule = tvm.s_tir.Schedule(function)
    entry = [ms.arg_info.TensorInfo("float32", [1])]
    return ms.MeasureCandidate(schedule, entry)


def random_states() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), name, keys.tolist(), rest, torch.get_rng_state().tolist()


def test_faster_programs_get_higher_scores(run_folder: Path) -> None:
    batch = Batch(matmul(64), 32)
    model = CdmppCostModel(run_folder, DEVICE)
    scores = model.predict(batch.context, batch.candidates)
    assert scores.dtype == np.float64
    assert scores.shape == (32,)
    assert np.all(scores > UNSUPPORTED_SCORE)
    # The sign: the model knows the invented machine, so its scores go with measured rates.
    assert spearman(scores, -batch.seconds) > 0.6
    assert model.usage.predicted == 32
    assert not model.usage.unsupported


def test_scores_are_those_of_tvms_interface(run_folder: Path) -> None:
    batch = Batch(matmul(64), 8)
    model = CdmppCostModel(run_folder, DEVICE)
    direct = model.predict(batch.context, batch.candidates)
    through_tvm = ms.cost_model.CostModel.predict(model, batch.context, batch.candidates)
    np.testing.assert_array_equal(direct, through_tvm)


def test_a_search_that_listens_to_us_measures_faster_programs(
    run_folder: Path, tmp_path: Path
) -> None:
    own = search(matmul(96, 48), tmp_path / "own", CdmppCostModel(run_folder, DEVICE))
    reverse = search(matmul(96, 48), tmp_path / "reverse", Reversed(run_folder))
    assert np.median(own.measured_s) < np.median(reverse.measured_s)


def Reversed(run_folder: Path) -> Any:  # noqa: N802, a model like the others
    """Our model with the order turned round."""
    model = CdmppCostModel(run_folder, DEVICE, safety_net=False)
    scores = model._core.scores
    model._core.scores = lambda task, latency_s, **rest: scores(task, 1e-9 / latency_s, **rest)
    return model


@pytest.mark.exhaustive
@pytest.mark.usefixtures("brief_tuning")
def test_a_search_touches_no_global_random_state(run_folder: Path, tmp_path: Path) -> None:
    # The first search imports packages of others, some of which draw a number.
    first = CdmppCostModel(run_folder, DEVICE, finetune_every=8)
    search(matmul(32), tmp_path / "first", first, trials=16)
    before = random_states()
    model = CdmppCostModel(run_folder, DEVICE, finetune_every=8)
    search(matmul(48), tmp_path / "second", model, trials=16)
    assert model.usage.tunings > 0
    assert random_states() == before


@pytest.mark.exhaustive
def test_the_same_search_twice_measures_the_same_programs(run_folder: Path, tmp_path: Path) -> None:
    runs = [
        search(matmul(48), tmp_path / str(number), CdmppCostModel(run_folder, DEVICE)).measured_s
        for number in range(2)
    ]
    assert runs[0] == runs[1]


def test_unsupported_candidates_get_the_lowest_score_and_are_counted(
    run_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = Batch(matmul(64), 4)
    model = CdmppCostModel(run_folder, DEVICE)
    mixed = [*batch.candidates[:2], unsupported_candidate(), *batch.candidates[2:]]
    with caplog.at_level(logging.WARNING, logger="cdmpp"):
        first = model.predict(batch.context, mixed)
        second = model.predict(batch.context, mixed)
    assert first[2] == UNSUPPORTED_SCORE
    assert np.all(np.delete(first, 2) > UNSUPPORTED_SCORE)
    np.testing.assert_array_equal(first, second)
    assert sum(model.usage.unsupported.values()) == 2
    assert len([r for r in caplog.records if "cannot be scored" in r.message]) == 1
    only = model.predict(batch.context, [unsupported_candidate()])
    np.testing.assert_array_equal(only, [UNSUPPORTED_SCORE])


def test_failed_measurements_are_counted_and_not_learned_from(
    run_folder: Path, tmp_path: Path
) -> None:
    model = CdmppCostModel(run_folder, DEVICE, finetune_every=1000)
    runner = search(matmul(48), tmp_path, model, trials=16, fail_every=4)
    assert len(model._core.measured) == len(runner.measured_s)
    # TVM hands failures over or leaves them out, as it likes.
    assert model.usage.measured == len(runner.measured_s) + model.usage.failed


def test_empty_batches_are_no_news(run_folder: Path) -> None:
    batch = Batch(matmul(64), 2)
    model = CdmppCostModel(run_folder, DEVICE, finetune_every=1)
    model.update(batch.context, [], [])
    assert model.usage.measured == 0
    # TVM's own wrapper cannot pass on an empty batch.
    assert len(model._inst.predict(batch.context, [])) == 0


def test_frozen_weights_stay(run_folder: Path) -> None:
    batch = Batch(matmul(64), 24)
    model = CdmppCostModel(run_folder, DEVICE, neighbours=False, safety_net=False)
    before = model.predict(batch.context, batch.candidates)
    model.update(batch.context, batch.candidates, batch.results())
    after = model.predict(batch.context, batch.candidates)
    assert model.usage.tunings == 0
    assert spearman(before, after) == pytest.approx(1.0)


@pytest.mark.exhaustive
def test_tuning_learns_another_machine(run_folder: Path) -> None:
    batch = Batch(matmul(64), 48)
    model = CdmppCostModel(
        run_folder, DEVICE, finetune_every=24, neighbours=False, safety_net=False
    )
    before = model.predict(batch.context, batch.candidates)
    # A machine on which everything is the other way round.
    batch.seconds = 1e-10 / batch.seconds
    model.update(batch.context, batch.candidates, batch.results())
    after = model.predict(batch.context, batch.candidates)
    assert model.usage.tunings == model.usage.kept_tunings == 1
    assert spearman(after, -batch.seconds) > spearman(before, -batch.seconds) + 0.2


def test_what_was_missed_corrects_the_other_candidates_of_the_task(
    run_folder: Path, tmp_path: Path
) -> None:
    batch, others = Batch(matmul(64), 32), Batch(matmul(64), 16, seed=7)
    model = CdmppCostModel(run_folder, DEVICE, safety_net=False)
    elsewhere = Batch(matmul(48), 16)
    before = model.predict(others.context, others.candidates)
    untouched = model.predict(elsewhere.context, elsewhere.candidates)
    # A machine on which everything is the other way round.
    batch.seconds = 1e-10 / batch.seconds
    model.update(batch.context, batch.candidates, batch.results())
    after = model.predict(others.context, others.candidates)
    assert spearman(after, others.seconds) > spearman(before, others.seconds) + 0.2
    assert spearman(model.predict(batch.context, batch.candidates), -batch.seconds) > 0.5
    np.testing.assert_array_equal(model.predict(elsewhere.context, elsewhere.candidates), untouched)
    model.save(str(tmp_path / "search.tar"))
    other = CdmppCostModel(run_folder, DEVICE, safety_net=False)
    other.load(str(tmp_path / "search.tar"))
    np.testing.assert_array_equal(other.predict(others.context, others.candidates), after)


@pytest.mark.exhaustive
def test_tuning_to_noise_keeps_the_old_weights(run_folder: Path) -> None:
    batch = Batch(matmul(64), 24)
    model = CdmppCostModel(run_folder, DEVICE, finetune_every=24, safety_net=False)
    before = model.predict(batch.context, batch.candidates)
    # The measurements are what the model predicts: nothing can be better than the old weights.
    batch.seconds = 1e-4 / before
    model.update(batch.context, batch.candidates, batch.results())
    assert model.usage.tunings == 1
    assert model.usage.kept_tunings == 0
    after = model.predict(batch.context, batch.candidates)
    assert spearman(before, after) == pytest.approx(1.0)


@pytest.mark.exhaustive
def test_the_search_blends_to_xgb_where_it_ranks_better(
    run_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = CdmppCostModel(run_folder, DEVICE, neighbours=False)
    function = matmul(64)
    with caplog.at_level(logging.WARNING, logger="cdmpp"):
        for seed in range(5):
            batch = Batch(function, 24, seed=seed)
            batch.seconds = 1e-10 / batch.seconds
            model.update(batch.context, batch.candidates, batch.results())
    own, peer = model.net.means()
    assert own < peer
    assert 0.5 < model.net.peer_share <= 1.0
    assert any("XGB now has weight" in record.message for record in caplog.records)
    batch = Batch(function, 24, seed=9)
    blended = model.predict(batch.context, batch.candidates)
    model.net.peer_share = 0.0
    ours = model.predict(batch.context, batch.candidates)
    assert spearman(blended, ours) < 0.9
    assert spearman(blended, batch.seconds) > spearman(ours, batch.seconds)
    assert np.all(blended >= UNSUPPORTED_SCORE)


def test_where_we_rank_better_xgb_has_no_say(run_folder: Path) -> None:
    model = CdmppCostModel(run_folder, DEVICE)
    for seed in range(3):
        batch = Batch(matmul(64), 16, seed=seed)
        # What our model says is what is measured.
        batch.seconds = 1e-4 / model.predict(batch.context, batch.candidates)
        model.update(batch.context, batch.candidates, batch.results())
    assert [entry.own for entry in model.net.batches] == [pytest.approx(1.0)] * 3
    assert model.net.batches[0].peer is None
    assert model.net.peer_share == 0.0


@pytest.mark.usefixtures("brief_tuning")
def test_saved_and_loaded_through_tvm_it_goes_on(run_folder: Path, tmp_path: Path) -> None:
    batch = Batch(matmul(64), 32)
    batch.seconds = 1e-10 / batch.seconds
    model = CdmppCostModel(run_folder, DEVICE, finetune_every=16)
    model.update(batch.context, batch.candidates, batch.results())
    path = tmp_path / "search.tar"
    ms.cost_model.CostModel.save(model, str(path))
    other = CdmppCostModel(run_folder, DEVICE, finetune_every=16)
    ms.cost_model.CostModel.load(other, str(path))
    np.testing.assert_array_equal(
        model.predict(batch.context, batch.candidates),
        other.predict(batch.context, batch.candidates),
    )
    assert len(other._core.measured) == 32
    assert other.net.batches == model.net.batches
    for one in (model, other):
        more = Batch(matmul(64), 16, seed=5)
        one.update(more.context, more.candidates, more.results())
    np.testing.assert_array_equal(
        model.predict(batch.context, batch.candidates),
        other.predict(batch.context, batch.candidates),
    )
    np.testing.assert_array_equal(
        model._peer.scores(batch.context, batch.candidates),
        other._peer.scores(batch.context, batch.candidates),
    )


def test_a_saved_file_holds_no_pickle(run_folder: Path, tmp_path: Path) -> None:
    batch = Batch(matmul(64), 16)
    model = CdmppCostModel(run_folder, DEVICE, finetune_every=1000)
    model.update(batch.context, batch.candidates, batch.results())
    model.save(str(tmp_path / "search.tar"))
    with tarfile.open(tmp_path / "search.tar") as archive:
        archive.extractall(tmp_path, filter="data")
        names = {Path(member.name).suffix for member in archive.getmembers() if member.isfile()}
    assert names == {".json", ".npz", ".safetensors"}
    for path in tmp_path.rglob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype != object for name in arrays.files)


def test_a_file_of_another_kind_is_refused(run_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "search.tar"
    path.write_text("no tar")
    with pytest.raises(DataError, match="not a saved cost model"):
        CdmppCostModel(run_folder, DEVICE)._inst.load(str(path))


@pytest.mark.parametrize("kept", [0, 100])
def test_a_damaged_table_of_measured_programs_is_named(
    run_folder: Path, tmp_path: Path, kept: int
) -> None:
    path, inside = tmp_path / "search.tar", tmp_path / "inside"
    model = CdmppCostModel(run_folder, DEVICE)
    model.save(str(path))
    with tarfile.open(path) as archive:
        archive.extractall(inside, filter="data")
    table = inside / "measured.npz"
    table.write_bytes(table.read_bytes()[:kept])
    with tarfile.open(path, "w") as archive:
        archive.add(inside, arcname=".")
    with pytest.raises(DataError, match="not a saved cost model"):
        model._inst.load(str(path))


def test_a_device_of_another_kind_is_refused(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="t4 is a gpu, and the model was trained on no gpu"):
        CdmppCostModel(run_folder, "t4")
    batch = Batch(matmul(64), 1)
    model = CdmppCostModel("pretrained", "t4")
    with pytest.raises(UsageError, match="do not run on t4"):
        model._inst.predict(batch.context, batch.candidates)
    with pytest.raises(UsageError, match="do not run on t4"):  # before TVM starts
        tune_tir(matmul(48), sample_target("llvm"), tmp_path, 8, cost_model=model)
    with pytest.raises(DeviceError, match="did you mean 'epyc-avx2-2c'"):
        CdmppCostModel(run_folder, "epyc-avx2-2")


def test_gpu_candidates_are_scored() -> None:
    function = matmul(128, 128, 128)
    schedules = sample_schedules(function, "cuda", 4)
    context = ms.TuneContext(mod=function, target=Target("nvidia/nvidia-t4"), num_threads=1)
    scores = CdmppCostModel("pretrained", "t4").predict(context, [candidate(s) for s in schedules])
    assert np.all(scores > 0)


def test_the_front_resolves_names(run_folder: Path) -> None:
    model = resolve_cost_model("cdmpp", model=run_folder, device=DEVICE, finetune_every=8)
    assert model._core.finetune_every == 8
    assert resolve_cost_model(model) is model
    assert resolve_cost_model("random") is not None
    with pytest.raises(UsageError, match="device="):
        resolve_cost_model("cdmpp", model=run_folder)
    with pytest.raises(UsageError, match="unknown cost model 'cdmp'"):
        resolve_cost_model("cdmp", device=DEVICE)


def test_tune_tir_by_name(run_folder: Path, tmp_path: Path) -> None:
    runner = search(
        matmul(48), tmp_path, "cdmpp", trials=8, model=run_folder, device=DEVICE,
        cost_model_options={"safety_net": False},
    )  # fmt: skip
    assert len(runner.measured_s) == 8


def test_a_target_as_text_needs_intrinsics_of_cpus_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kinds: list[str] = []
    monkeypatch.setattr("tvm_helper.cost_model.tune.import_tensor_intrinsics", kinds.append)
    monkeypatch.setattr(ms, "tune_tir", lambda *_, **__: None)
    tune_tir(matmul(48), "llvm", tmp_path, 8, cost_model="random")
    assert kinds == ["llvm"]


def test_it_works_in_relax_tuning(run_folder: Path, tmp_path: Path) -> None:
    from tvm import relax
    from tvm.script import relax as R  # noqa: N812

    from tests.tvm_helper.search.fixtures import InventedRunner, NoBuilder
    from tvm_helper.tasks.network_tasks import fused_network

    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((8, 32), "float32"))
    w = relax.Var("w", R.Tensor((32, 16), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, w))
            z = builder.emit_output(relax.op.nn.softmax(y))
        builder.emit_func_output(z)
    target = sample_target("llvm")
    model = CdmppCostModel(run_folder, DEVICE)
    modules: list[Any] = []
    space = ms.space_generator.PostOrderApply(
        sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"
    )
    database = tune_relax(
        fused_network(builder.get(), target), {}, target, tmp_path, 8, cost_model=model,
        max_trials_per_task=4, num_trials_per_iter=4, seed=1, space=space,
        builder=NoBuilder(modules), runner=InventedRunner(modules),
        strategy=ms.search_strategy.EvolutionarySearch(population_size=16, genetic_num_iters=1),
    )  # fmt: skip
    assert len(database.get_all_tuning_records()) == 8
    assert model.usage.measured == 8
    assert model.usage.predicted > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_real_search_on_this_machine_with_the_real_builder(
    run_folder: Path, tmp_path: Path
) -> None:
    space = ms.space_generator.PostOrderApply(
        sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"
    )
    database = tune_tir(
        matmul(64), sample_target("llvm"), tmp_path, 4, model=run_folder, device=DEVICE,
        num_trials_per_iter=4, num_tuning_cores=1, seed=1, space=space, builder=local_builder(),
        runner=RunnerHere(),
        strategy=ms.search_strategy.EvolutionarySearch(population_size=16, genetic_num_iters=1),
    )  # fmt: skip
    records = database.get_all_tuning_records()
    assert len(records) == 4
    assert all(0 < float(record.run_secs[0]) < 1 for record in records)
