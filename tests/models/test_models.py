"""Every kind of cost model against the contract, and what each promises on top."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cdmpp.errors import DataError, UsageError
from cdmpp.metrics import absolute_percentage_error
from cdmpp.models.constant import ConstantCostModel
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.models.nets.alike_rows import AlikeRows
from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import EnsembleOptions, GbdtOptions, SegmentMlpOptions, TransformerOptions
from cdmpp.models.registry import MODEL_CLASSES, model_class
from cdmpp.models.roofline import RooflineCostModel
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.testing.cost_model import check_cost_model
from cdmpp.testing.synthetic import make_samples, split_by_task
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import train_run

pytestmark = pytest.mark.training

SMALL = TransformerOptions(
    network=NetOptions(hidden=32, layers=1, heads=2, feed_forward=32, head_hidden=32),
    loop=LoopOptions(epochs=3, programs_per_batch=8),
)


SMALL_MLP = SegmentMlpOptions(hidden=16, least_mape_factor=False, loop=LoopOptions(epochs=2))
SMALL_TREES = GbdtOptions(trees=20, depth=3, threads=1, least_mape_factor=False)
UNTRAINED = {
    "constant": ConstantCostModel,
    "roofline": RooflineCostModel,
    "gbdt": lambda: GbdtCostModel(GbdtOptions(trees=20, depth=3, threads=1)),
    "transformer": lambda: TransformerCostModel(SMALL),
    "ensemble": lambda: EnsembleCostModel(
        EnsembleOptions(SMALL, SMALL_MLP, SMALL_TREES, least_tasks=1)
    ),
}


@pytest.mark.parametrize("kind", UNTRAINED)
def test_contract(kind):
    check_cost_model(UNTRAINED[kind])


def test_ensemble_leaves_devices_with_few_tasks_to_the_other_two():
    train, _, test = split_by_task(make_samples(10, 6))
    nothing = train.take(np.zeros(0, np.int64))
    options = EnsembleOptions(
        SMALL, SMALL_MLP, SMALL_TREES, least_tasks=100, default_shares=(0.5, 0.0, 0.5)
    )
    model = EnsembleCostModel(options)
    model.fit(train, nothing, seed=0)
    assert np.allclose(model.predict(test), model.transformer.predict(test))
    model = EnsembleCostModel(replace(options, least_tasks=1))
    model.fit(train, nothing, seed=0)
    assert not np.allclose(model.predict(test), model.transformer.predict(test))


def test_ensemble_shares_add_up_to_one(tmp_path):
    train, validation, _ = split_by_task(make_samples(10, 6))
    model = EnsembleCostModel(EnsembleOptions(SMALL, SMALL_MLP, SMALL_TREES, least_tasks=1))
    model.fit(train, validation, seed=0)
    assert sum(model.shares) == pytest.approx(1.0)
    assert min(model.shares) >= 0.0
    state = model.save(tmp_path)
    assert EnsembleCostModel.load(tmp_path, state).shares == model.shares
    with pytest.raises(ValueError, match="unpack"):  # `load_model` says that model.json is damaged
        EnsembleCostModel.load(tmp_path, {**state, "shares": [1 / 33] * 33})


def test_training_time_of_an_ensemble_includes_all_parts(tmp_path):
    ensemble = EnsembleOptions(SMALL, SMALL_MLP, SMALL_TREES, least_tasks=1)
    options = TrainOptions(model="ensemble", baselines=(), ensemble=ensemble)
    result = train_run(options, make_samples(20, 6), tmp_path)
    assert result.metrics["training_s"] > result.history[-1]["elapsed_s"]
    assert result.metrics["samples_per_s"] is None


def test_a_device_with_enough_validation_tasks_has_a_factor_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("cdmpp.models.ensemble._LEAST_FACTOR_TASKS", 2)
    train, validation, _ = split_by_task(make_samples(20, 6))
    slow = validation.device == 1
    validation = replace(validation, latency_s=validation.latency_s * np.where(slow, 3.0, 1.0))
    model = EnsembleCostModel(EnsembleOptions(SMALL, SMALL_MLP, SMALL_TREES, least_tasks=1))
    model.fit(train, validation, seed=0)
    loaded = EnsembleCostModel.load(tmp_path, model.save(tmp_path))
    error = np.log(loaded.predict(validation) / validation.latency_s)
    assert np.median(error[slow]) == pytest.approx(0.0, abs=0.05)
    assert np.median(error[~slow]) == pytest.approx(0.0, abs=0.05)


def test_a_fence_holds_a_part_that_runs_away():
    parts = np.log([[3e3, 1e-3, 1e-3], [1e-3, 1e-3, 1e-9], [2e-3, 2e-3, 2e-3]])
    free = EnsembleCostModel(EnsembleOptions())
    assert np.array_equal(free.fenced(parts), parts)
    fenced = np.exp(EnsembleCostModel(EnsembleOptions(fence=np.log(4.0))).fenced(parts))
    assert fenced == pytest.approx(
        np.array([[8e-3, 1e-3, 1e-3], [1e-3, 1e-3, 0.25e-3], [2e-3, 2e-3, 2e-3]])
    )


@pytest.mark.parametrize("kind", sorted(MODEL_CLASSES))
def test_registry_names_the_class(kind):
    assert model_class(kind).kind == kind


def test_registry_guesses_the_nearest_kind():
    with pytest.raises(UsageError, match="did you mean 'transformer'"):
        model_class("transfomer")


def test_constant_is_the_median_of_each_device():
    samples = make_samples(5, 5)
    model = ConstantCostModel()
    model.fit(samples, samples, seed=0)
    for index in range(2):
        rows = samples.device == index
        assert np.all(model.predict(samples)[rows] == np.median(samples.latency_s[rows]))


def test_roofline_has_no_median_error_on_its_training_part():
    samples = make_samples(9, 7)
    model = RooflineCostModel()
    model.fit(samples, samples, seed=0)
    for index in range(2):
        rows = samples.device == index
        ratio = model.predict(samples)[rows] / samples.latency_s[rows]
        assert np.median(np.log(ratio)) == pytest.approx(0.0, abs=1e-9)


def test_transformer_overfits_64_records():
    samples = make_samples(4, 8)
    assert len(samples) == 64
    options = TransformerOptions(
        network=NetOptions(hidden=48, layers=1, heads=2, feed_forward=64, dropout=0.0),
        loop=LoopOptions(
            epochs=50, programs_per_batch=16, learning_rate=5e-3, weight_decay=0.0, patience=50
        ),
    )
    model = TransformerCostModel(options)
    model.fit(samples, samples, seed=0)
    error = absolute_percentage_error(samples.latency_s, model.predict(samples))
    assert np.mean(error) < 0.08


@pytest.mark.exhaustive
def test_transformer_beats_constant_and_roofline_on_unseen_tasks():
    train, validation, test = split_by_task(make_samples(30, 8, seed=4))
    options = TransformerOptions(
        network=NetOptions(hidden=48, layers=1, heads=2, feed_forward=64),
        loop=LoopOptions(epochs=10, programs_per_batch=16, learning_rate=5e-3),
    )
    errors = {}
    for model in (TransformerCostModel(options), ConstantCostModel(), RooflineCostModel()):
        model.fit(train, validation, seed=0)
        error = absolute_percentage_error(test.latency_s, model.predict(test))
        errors[model.kind] = (float(np.mean(error)), float(np.median(error)))
    for other in ("constant", "roofline"):
        assert errors["transformer"][0] < errors[other][0]
        assert errors["transformer"][1] < errors[other][1]


def test_padding_does_not_change_a_prediction():
    samples = make_samples(6, 4, most_leaves=9)
    model = TransformerCostModel(SMALL)
    model.fit(samples, samples, seed=0)
    together = model.predict(samples)
    alone = np.concatenate(
        [model.predict(samples.take(np.array([i]))) for i in range(len(samples))]
    )
    assert np.allclose(together, alone, rtol=1e-4)


def test_columns_in_which_leaves_are_alike_count_as_others():
    samples = make_samples(3, 4)
    nothing = samples.take(np.zeros(0, np.int64))
    model = TransformerCostModel(SMALL)
    model.fit(samples, nothing, seed=0)
    rows = np.flatnonzero(samples.program < 2)
    asked = samples.take(rows)
    batches = model._batches(asked)
    programs = np.arange(len(batches))
    few = batches.batch(programs, alike=True).leaves
    assert isinstance(few, AlikeRows)
    assert few.unlike.shape[-1] < batches.batch(programs).leaves.shape[-1]
    with torch.no_grad():
        wanted = model.tuning_network()(batches.batch(programs)).mean(dim=0)
    found = np.log(model.predict(asked))[batches.sample_rows(programs)]
    assert np.allclose(found, wanted, rtol=0, atol=1e-5)


def test_samples_of_one_device_are_predicted_as_beside_those_of_others():
    samples = make_samples(3, 4)
    nothing = samples.take(np.zeros(0, np.int64))
    model = TransformerCostModel(SMALL)
    model.fit(samples, nothing, seed=0)
    own = samples.device == 0
    alone = replace(samples.take(np.flatnonzero(own)), devices=samples.devices[:1])
    assert len(samples.devices) > 1
    assert np.allclose(model.predict(alone), model.predict(samples)[own], rtol=1e-5)


def test_more_device_speed_means_less_time():
    """The device vector reaches the result: the same program is predicted faster on the fast
    device.
    """
    train, validation, test = split_by_task(make_samples(10, 6))
    model = TransformerCostModel(SMALL)
    model.fit(train, validation, seed=0)
    predicted = model.predict(test)
    assert np.all(predicted[test.device == 0] < predicted[test.device == 1])


@pytest.mark.parametrize("kind", ["gbdt", "transformer"])
def test_damaged_weights_are_one_clear_error(kind, tmp_path):
    samples = make_samples(4, 4)
    model = GbdtCostModel(GbdtOptions(trees=3)) if kind == "gbdt" else TransformerCostModel(SMALL)
    model.fit(samples, samples, seed=0)
    state = model.save(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="retrain with"):
        model_class(kind).load(tmp_path, state)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(DataError, match="retrain with"):
        model_class(kind).load(tmp_path, state)


def test_extra_leaf_columns_are_used():
    samples = make_samples(4, 4, extra=3)
    model = TransformerCostModel(SMALL)
    model.fit(samples, samples, seed=0)
    assert np.all(np.isfinite(model.predict(samples)))
