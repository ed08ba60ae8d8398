"""Fine-tuning: few measured tasks of a new device, on synthetic samples."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sampling import choose_tasks
from cdmpp.errors import DataError, UsageError
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import TransformerOptions
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.testing.synthetic import VECTOR_LENGTH, make_samples
from cdmpp.training.finetune.few_shot import (
    FinetuneResult,
    finetune_in_detail,
    try_tuning,
)
from cdmpp.training.finetune.folds import budget_folds
from cdmpp.training.finetune.options import FinetuneOptions, TuneWhat
from cdmpp.training.finetune.tuner import Tuner
from cdmpp.training.finetune.tuning_trainee import select_parameters

pytestmark = pytest.mark.training

QUICK = FinetuneOptions(
    what="adapters",
    steps=20,
    validate_every=10,
    learning_rate=1e-2,
    learning_rate_all=1e-2,
    folds=2,
)


def of_device(samples: Samples, device: int) -> Samples:
    return samples.take(samples.device == device)


def of_tasks(samples: Samples, tasks) -> Samples:
    return samples.take(np.isin(samples.task_id, tasks))


def twisted(samples: Samples) -> Samples:
    """The samples of a device that is three times slower and gains nothing from vectors."""
    programs = samples.programs
    vector = np.add.reduceat(
        programs.leaf_features[:, VECTOR_LENGTH].astype(np.float64), programs.leaf_offset[:-1]
    ) / np.diff(programs.leaf_offset)
    factor = 3.0 * np.exp2(1.5 * vector[samples.program])
    return replace(samples, latency_s=samples.latency_s * factor)


def mape(model, samples: Samples) -> float:
    return float(np.mean(np.abs(model.predict(samples) / samples.latency_s - 1.0)))


@pytest.fixture(scope="module")
def samples() -> Samples:
    return make_samples(24, 8)


@pytest.fixture(scope="module")
def base(samples):
    model = TransformerCostModel(
        TransformerOptions(
            network=NetOptions(
                hidden=16, layers=1, heads=2, feed_forward=16, head_hidden=16, members=2
            ),
            loop=LoopOptions(epochs=12, programs_per_batch=16, learning_rate=1e-2),
        )
    )
    known = of_device(samples, 0)
    model.fit(known.take(known.task_id >= 4), known.take(known.task_id < 4), seed=0)
    return model


@pytest.fixture(scope="module")
def target(samples) -> Samples:
    return twisted(of_device(samples, 1))


@pytest.fixture(scope="module")
def parts(target):
    """Budget of eight tasks, an empty validation part, and the other tasks."""
    chosen = choose_tasks(target, 8, seed=0)
    test = of_tasks(target, np.setdiff1d(target.task_id, chosen))
    return of_tasks(target, chosen), target.take(np.zeros(0, np.int64)), test


def finetuned(*samples, **options):
    return finetune_in_detail(*samples, **options).model


@pytest.fixture(scope="module")
def result(base, parts):
    return finetune_in_detail(base, parts[0], parts[1], options=QUICK, seed=0)


@pytest.fixture(scope="module")
def tuned(base, parts):
    """Tunings of the parts with one look at their end, each done once."""

    @cache
    def run(what: TuneWhat, *, l2_to_start: float = 0.0) -> FinetuneResult:
        options = replace(QUICK, what=what, validate_every=20, l2_to_start=l2_to_start)
        return finetune_in_detail(base, parts[0], parts[1], options=options, seed=0)

    return run


@pytest.mark.exhaustive
def test_beats_zero_shot_and_one_factor_on_other_tasks(base, parts, result):
    budget, _, test = parts
    factor = np.exp(np.median(np.log(budget.latency_s / base.predict(budget))))
    scaled = np.mean(np.abs(factor * base.predict(test) / test.latency_s - 1.0))
    assert result.kept == "tuned"
    assert result.steps["adapters"] in (10, 20)
    assert mape(result.model, test) < 0.9 * scaled
    assert mape(result.model, test) < mape(base, test)


def test_given_model_is_untouched(base, parts):
    budget, nothing, test = parts
    before = base.predict(test)
    weights = {k: v.clone() for k, v in base.tuning_network().state_dict().items()}
    finetuned(base, budget, nothing, options=replace(QUICK, what="all"), seed=1)
    assert np.array_equal(base.predict(test), before)
    for name, value in base.tuning_network().state_dict().items():
        assert torch.equal(value, weights[name])
    assert all(value.requires_grad for value in base.tuning_network().parameters())


@pytest.mark.exhaustive
def test_another_seed_other_predictions(base, parts, result):
    budget, nothing, test = parts
    other = finetuned(base, budget, nothing, options=QUICK, seed=1)
    assert not np.array_equal(other.predict(test), result.model.predict(test))


def test_split_into_training_and_validation_is_pooled(base, parts, result):
    budget, _, test = parts
    order = np.argsort(budget.task_id % 3 == 0, kind="stable")
    count = int((budget.task_id % 3 != 0).sum())
    shuffled = finetuned(
        base, budget.take(order[:count]), budget.take(order[count:]), options=QUICK, seed=0
    )
    assert np.allclose(shuffled.predict(test), result.model.predict(test), rtol=1e-3)


def test_loaded_model_predicts_the_same(result, parts, tmp_path):
    state = result.model.save(tmp_path)
    loaded = TransformerCostModel.load(tmp_path, state)
    assert np.array_equal(loaded.predict(parts[2]), result.model.predict(parts[2]))


def test_inputs_keep_the_normalisation_of_the_first_training(base, result, tmp_path):
    assert result.model.save(tmp_path)["normalisation"] == base.save(tmp_path)["normalisation"]


def test_held_out_predictions_cover_the_budget_once(parts, result):
    budget = parts[0]
    assert sorted(result.held_out.program.tolist()) == sorted(budget.program.tolist())
    assert result.held_out_s.shape == (len(budget),)
    assert np.all(np.isfinite(result.held_out_s))


@pytest.mark.parametrize("what", ["head", "adapters", "all"])
def test_only_the_chosen_weights_move(base, tuned, what):
    result = tuned(what)
    assert result.kept == "tuned"
    network = result.model.tuning_network()
    start = base.tuning_network().state_dict()
    moved = {k for k, v in network.state_dict().items() if not torch.equal(v, start[k])}
    select_parameters(network, what)
    chosen = {name for name, value in network.named_parameters() if value.requires_grad}
    assert moved <= chosen
    assert len(moved) > 0.8 * len(chosen)
    assert (len(chosen) == len(start)) == (what == "all")


def test_start_from_a_known_device_is_what_the_model_says_of_it(samples):
    """Where nothing but the device's vector enters, they predict the same."""
    model = TransformerCostModel(
        TransformerOptions(
            network=NetOptions(
                hidden=16, heads=2, head_hidden=16, members=2, anchor="none", ratios=False
            ),
            loop=LoopOptions(epochs=2),
        )
    )
    model.fit(samples, samples, seed=0)
    target = of_device(samples, 1)
    starts = model.tuning_starts(target)
    assert len(starts) == 3
    for index, start in enumerate(starts[1:]):
        known = replace(target, device=np.full(len(target), index, np.int64))
        assert np.allclose(start.predict(target), model.predict(known), rtol=1e-4)
    assert not np.allclose(starts[1].predict(target), model.predict(target), rtol=1e-2)
    assert len(model.tuning_starts(samples)) == 1


def test_known_devices_are_saved(base, target, tmp_path):
    loaded = TransformerCostModel.load(tmp_path, base.save(tmp_path))
    for first, second in zip(base.tuning_starts(target), loaded.tuning_starts(target), strict=True):
        assert np.array_equal(first.predict(target), second.predict(target))


@pytest.mark.exhaustive
def test_auto_is_the_mean_of_both_kinds_of_tuning(tuned):
    """As predictions of their mean lie between: it moves all weights, half as far."""
    assert tuned("auto").steps == {"adapters": 20, "all": 20}
    weights = {
        what: tuned(what).model.tuning_network().state_dict()
        for what in ("adapters", "all", "auto")
    }
    for name, value in weights["auto"].items():
        mean = (weights["adapters"][name] + weights["all"][name]) / 2
        assert torch.allclose(value, mean, atol=1e-6)


def test_what_is_no_better_is_not_kept(base, samples):
    """On the device it was trained on there is nothing to learn."""
    known = of_device(samples, 0)
    budget = of_tasks(known, [5, 6, 7, 8])
    hopeless = replace(QUICK, what="all", learning_rate_all=1.0)
    result = finetune_in_detail(
        base, budget, budget.take(np.zeros(0, np.int64)), options=hopeless, seed=0
    )
    assert result.kept in ("unchanged", "shifted")
    assert result.steps == {}
    assert result.held_out_error[result.kept] == min(result.held_out_error.values())
    if result.kept == "unchanged":
        assert np.array_equal(result.model.predict(known), base.predict(known))


def test_one_program_is_one_factor_scaling(base, target):
    one = target.take(np.array([3]))
    result = finetune_in_detail(base, one, one.take(np.zeros(0, np.int64)), options=QUICK, seed=0)
    assert result.kept == "shifted"
    ratio = result.model.predict(target) / base.predict(target)
    assert np.isclose(result.model.predict(one)[0], one.latency_s[0], rtol=0.3)
    assert np.ptp(np.log(ratio)) < 0.7  # each member is scaled by a factor of its own


@pytest.mark.exhaustive
def test_distance_from_the_start_is_held_by_its_weight(base, tuned):
    def distance(result: FinetuneResult) -> float:
        network = result.model.tuning_network()
        start = base.tuning_network().state_dict()
        return sum(
            float((value - start[name]).square().sum())
            for name, value in network.state_dict().items()
            if value.ndim > 0
        )

    assert distance(tuned("all", l2_to_start=10.0)) < 0.2 * distance(tuned("all"))


@pytest.mark.exhaustive
def test_source_samples_are_rehearsed(base, parts, samples, tuned):
    """With them the source device is forgotten less; asked of the tuned model, kept or not."""
    source = of_device(samples, 0)
    options = replace(QUICK, what="all", validate_every=20, replay=5.0)
    beside = try_tuning(base, parts[0], parts[1], options=options, seed=0, source=source)
    assert mape(beside.model("tuned"), source) < 0.5 * mape(tuned("all").model, source)


@pytest.mark.exhaustive
def test_same_seed_same_predictions_also_of_a_tuning_that_continues(base, parts, tmp_path, result):
    """A run folder holds log and checkpoints; a second call ends with the same model."""
    first = finetuned(base, parts[0], parts[1], options=QUICK, seed=0, run_dir=tmp_path)
    assert (tmp_path / "tuning-adapters" / "log.jsonl").exists()
    second = finetuned(base, parts[0], parts[1], options=QUICK, seed=0, run_dir=tmp_path)
    for model in (first, second):
        assert np.array_equal(model.predict(parts[2]), result.model.predict(parts[2]))


def test_a_tuning_does_all_wanted_steps_also_after_an_interruption(base, parts, tmp_path):
    def tuned(every, folder, on_progress=None):
        options = replace(QUICK, steps=25, validate_every=every)
        tuner = Tuner(base, parts[0], options, 0, None, on_progress)
        return tuner.tuned(parts[0], {"adapters": 25}, tmp_path / folder).predict(parts[2])

    def interrupt(progress):
        assert progress.validation_loss is None  # the value of a tuning only counts validations
        if progress.step == 23:
            raise KeyboardInterrupt

    whole = tuned(25, "whole")
    with pytest.raises(KeyboardInterrupt):
        tuned(10, "parts", interrupt)
    assert np.array_equal(tuned(10, "parts"), whole)


@pytest.mark.exhaustive
def test_of_an_ensemble_the_transformer_is_tuned(base, parts, result):
    ensemble = EnsembleCostModel()
    ensemble.transformer = base
    tuned = finetuned(ensemble, *parts[:2], options=QUICK, seed=0)
    assert tuned.kind == "transformer"
    assert np.array_equal(tuned.predict(parts[2]), result.model.predict(parts[2]))


def test_trees_cannot_be_fine_tuned(samples, parts):
    with pytest.raises(UsageError, match="model kind 'gbdt' cannot be fine-tuned"):
        finetuned(GbdtCostModel(), parts[0], parts[1], seed=0)


def test_untrained_model_is_refused(parts):
    with pytest.raises(UsageError, match="not been trained"):
        finetuned(TransformerCostModel(), parts[0], parts[1], options=QUICK, seed=0)


def test_empty_budget_is_refused(base, parts):
    with pytest.raises(DataError, match="training part is empty"):
        finetuned(base, parts[1], parts[1], seed=0)


def test_other_features_are_refused(base):
    newer = make_samples(4, 4, leaf_schema=2)
    with pytest.raises(DataError, match=r"leaf v1.*leaf v2"):
        finetuned(base, newer, newer.take(np.zeros(0, np.int64)), options=QUICK, seed=0)


def test_replay_without_source_samples_is_refused(base, parts):
    with pytest.raises(UsageError, match="replay needs samples"):
        finetuned(base, parts[0], parts[1], options=replace(QUICK, replay=0.5), seed=0)


def test_parts_of_different_data_are_refused(base, parts):
    other = make_samples(4, 4, seed=8)
    with pytest.raises(UsageError, match="different data sets"):
        finetuned(base, parts[0], other, options=QUICK, seed=0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"folds": 1}, "folds must be at least 2, got 1"),
        ({"learning_rate": -1.0}, "got -1.0"),
        ({"l2_to_start": -1.0}, "l2_to_start must be at least 0.0"),
        ({"what": "everything"}, "what is 'everything'"),
    ],
)
def test_options_out_of_range_are_named(base, parts, change, text):
    with pytest.raises(UsageError, match=text):
        finetuned(base, parts[0], parts[1], options=replace(QUICK, **change), seed=0)


def test_folds_are_whole_tasks_and_cover_the_budget(parts):
    budget = parts[0]
    folds = budget_folds(budget, 3, seed=0)
    assert len(folds) == 3
    assert np.array_equal(np.sum(folds, axis=0), np.ones(len(budget)))
    for rows in folds:
        assert not set(budget.task_id[rows]) & set(budget.task_id[~rows])


def test_folds_of_one_task_are_programs(target):
    one = of_tasks(target, [3])
    folds = budget_folds(one, 3, seed=0)
    assert len(folds) == 3
    assert np.array_equal(np.sum(folds, axis=0), np.ones(len(one)))
    assert budget_folds(one.take(np.arange(3)), 3, seed=0) == []
