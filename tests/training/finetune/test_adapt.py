"""Adapting a whole model, an ensemble above all, to one new device; on synthetic samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.datasets.samples import Samples
from cdmpp.models.adapted import AdaptedCostModel
from cdmpp.models.base import CostModel
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import EnsembleOptions, GbdtOptions, SegmentMlpOptions, TransformerOptions
from cdmpp.models.parts.labels import least_mape_factor
from cdmpp.models.registry import saved_model_class
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.finetune.adapt import Adapted, TriedFits, adapt, comparable
from cdmpp.training.finetune.choice import KEPT
from cdmpp.training.finetune.options import FinetuneOptions

pytestmark = pytest.mark.training

OPTIONS = FinetuneOptions(what="adapters", steps=10, validate_every=10, learning_rate=1e-2, folds=2)


def of_device(samples: Samples, device: int) -> Samples:
    return samples.take(samples.device == device)


def mape(model: CostModel, samples: Samples) -> float:
    return float(np.mean(np.abs(model.predict(samples) / samples.latency_s - 1.0)))


@pytest.fixture(scope="module")
def samples() -> Samples:
    return make_samples(20, 6)


@pytest.fixture(scope="module")
def base(samples: Samples) -> EnsembleCostModel:
    network = NetOptions(hidden=16, layers=1, heads=2, feed_forward=16, head_hidden=16)
    loop = LoopOptions(epochs=10, programs_per_batch=16, learning_rate=1e-2)
    model = EnsembleCostModel(
        EnsembleOptions(
            TransformerOptions(network=network, loop=loop),
            SegmentMlpOptions(hidden=16, least_mape_factor=False, loop=loop),
            GbdtOptions(trees=40, depth=3, threads=1, least_mape_factor=False),
            least_tasks=1,
        )
    )
    known = of_device(samples, 0)
    model.fit(known.take(known.task_id >= 4), known.take(known.task_id < 4), seed=0)
    return model


@pytest.fixture(scope="module")
def target(samples: Samples) -> Samples:
    """A device five times slower than the known one."""
    known = of_device(samples, 0)
    new = replace(samples.devices[1], name="new-box", kind=samples.devices[0].kind)
    return replace(
        known, devices=(samples.devices[0], new), device=np.ones(len(known), np.int64),
        latency_s=5.0 * known.latency_s,
    )  # fmt: skip


@pytest.fixture(scope="module")
def fits(base: EnsembleCostModel, samples: Samples, target: Samples) -> TriedFits:
    train = target.take(target.task_id < 10)
    return TriedFits(base, train, [samples.devices[0]], options=OPTIONS, seed=0)


@pytest.fixture(scope="module")
def adapted(base: EnsembleCostModel, samples: Samples, target: Samples) -> Adapted:
    train = target.take(target.task_id < 10)
    return adapt(base, train, [samples.devices[0]], options=OPTIONS, seed=0)


def test_it_learns_that_the_device_is_slower(
    base: EnsembleCostModel, target: Samples, adapted: Adapted
) -> None:
    test = target.take(target.task_id >= 10)
    assert isinstance(adapted.model, AdaptedCostModel)
    assert adapted.choice.kept != "unchanged"
    assert mape(adapted.model, test) < 0.6 * mape(base, test)


def test_other_devices_are_predicted_as_before(
    base: EnsembleCostModel, samples: Samples, adapted: Adapted
) -> None:
    known = of_device(samples, 0)
    assert np.array_equal(adapted.model.predict(known), base.predict(known))


def test_every_candidate_was_held_out(fits: TriedFits) -> None:
    assert set(fits.held_out_s) == set(KEPT) == set(fits.choice.errors)
    assert fits.held_out is not None
    for values in fits.held_out_s.values():
        assert values.shape == (len(fits.held_out),)


def test_models_are_what_they_are_called(
    base: EnsembleCostModel, target: Samples, fits: TriedFits
) -> None:
    test = target.take(target.task_id >= 10)
    predicted = {name: np.log(fits.model(name).predict(test)) for name in KEPT}
    assert np.array_equal(predicted["unchanged"], np.log(base.predict(test)))
    assert np.ptp(predicted["one_factor"] - predicted["unchanged"]) < 1e-9
    middle = (predicted["one_factor"] + predicted["full"]) / 2
    assert np.allclose(predicted["shrunken"], middle)


def test_one_task_gives_a_factor_half_way_to_one(
    base: EnsembleCostModel, samples: Samples, target: Samples
) -> None:
    """What one task says of a device may be of that task: 44.6 became 55.2 % that way."""
    one = target.take(target.task_id == 3)
    adapted = adapt(base, one, [samples.devices[0]], options=OPTIONS, seed=0)
    ratio = adapted.model.predict(target) / base.predict(target)
    whole = least_mape_factor(base.predict(one), one.latency_s)
    assert adapted.choice.kept == "one_factor"
    assert np.allclose(ratio, np.sqrt(whole))


def test_what_cannot_be_learned_is_not_kept(base: EnsembleCostModel, samples: Samples) -> None:
    """On the device it was trained on, with weights that fly away, the full fit is refused, and
    what is half of it. A factor of eight tasks may suit twelve others a little worse than none.
    """
    hopeless = replace(OPTIONS, what="all", learning_rate_all=1.0)
    known = of_device(samples, 0)
    budget = known.take((known.task_id >= 4) & (known.task_id < 12))
    adapted = adapt(base, budget, [samples.devices[0]], options=hopeless, seed=0)
    assert adapted.choice.errors["full"] > adapted.choice.errors["unchanged"], "it is hopeless"
    assert adapted.choice.kept in ("unchanged", "one_factor")
    test = known.take(known.task_id >= 12)
    assert mape(adapted.model, test) < 1.2 * mape(base, test)


def test_several_devices_are_fitted_together(base: EnsembleCostModel, samples: Samples) -> None:
    adapted = adapt(base, samples, samples.devices, options=OPTIONS, seed=0)
    assert adapted.shares is None
    assert set(adapted.choice.errors) == set(KEPT)


def test_shares_are_a_mean_and_held_out_predictions_are_complete(
    target: Samples, fits: TriedFits
) -> None:
    assert fits.shares is not None
    assert sum(fits.shares) == pytest.approx(1.0)
    assert min(fits.shares) >= 0.0
    assert fits.held_out is not None
    assert fits.nearest == target.devices[0].name
    relative = np.abs(np.log(fits.held_out_s["full"] / fits.held_out.latency_s))
    assert np.median(relative) < np.log(5.0) / 2, "the factor five is in it"


def test_saved_and_loaded_it_predicts_the_same(
    tmp_path: Path, target: Samples, fits: TriedFits
) -> None:
    for name in KEPT[1:]:
        model = fits.model(name)
        (tmp_path / name).mkdir()
        state = json.loads(json.dumps(model.save(tmp_path / name)))
        loaded = AdaptedCostModel.load(tmp_path / name, state)
        assert np.allclose(loaded.predict(target), model.predict(target), rtol=1e-6)


def test_an_adapted_model_is_adapted_again(
    tmp_path: Path, samples: Samples, target: Samples, adapted: Adapted
) -> None:
    known = [samples.devices[0], target.devices[1]]
    again = adapt(adapted.model, target.take(target.task_id >= 12), known, options=OPTIONS, seed=0)
    state = json.loads(json.dumps(again.model.save(tmp_path)))
    loaded = saved_model_class(again.model.kind).load(tmp_path, state)
    assert np.allclose(loaded.predict(target), again.model.predict(target), rtol=1e-6)


def test_the_given_model_stays_as_it_is(
    base: EnsembleCostModel, samples: Samples, target: Samples
) -> None:
    before = base.predict(target)
    adapt(base, target.take(target.task_id < 3), [samples.devices[0]], options=OPTIONS, seed=1)
    assert np.array_equal(base.predict(target), before)


def test_a_model_of_one_piece_is_just_fine_tuned(
    base: EnsembleCostModel, samples: Samples, target: Samples
) -> None:
    train = target.take(target.task_id < 10)
    result = adapt(base.transformer, train, [samples.devices[0]], options=OPTIONS, seed=0)
    assert (result.nearest, result.shares) == (None, None)
    assert isinstance(result.model, AdaptedCostModel)
    assert result.model.base.kind == "transformer"


def test_a_cpu_is_compared_with_cpus(samples: Samples) -> None:
    cpu = replace(samples.devices[0], name="a", kind="cpu")
    gpu = replace(cpu, name="b", kind="gpu")
    of_cpu = replace(of_device(samples, 0), devices=(cpu, samples.devices[1]))
    assert comparable(of_cpu, [gpu, cpu]) == ("a",)
    assert comparable(of_cpu, [gpu]) == ("b",)
