"""Adapting a whole model, an ensemble above all, to one new device; on synthetic samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.datasets.samples import Samples
from cdmpp.errors import UsageError
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.models.options import EnsembleOptions, GbdtOptions, SegmentMlpOptions, TransformerOptions
from cdmpp.nn.options import LoopOptions, NetOptions
from cdmpp.training.finetune.adapt import Adapted, adapt, comparable
from cdmpp.training.finetune.options import FinetuneOptions
from tests.models.synthetic import make_samples

pytestmark = pytest.mark.training

OPTIONS = FinetuneOptions(what="adapters", steps=20, validate_every=10, learning_rate=5e-3)


def of_device(samples: Samples, device: int) -> Samples:
    return samples.take(samples.device == device)


def mape(model: EnsembleCostModel, samples: Samples) -> float:
    return float(np.mean(np.abs(model.predict(samples) / samples.latency_s - 1.0)))


@pytest.fixture(scope="module")
def samples() -> Samples:
    return make_samples(20, 6)


@pytest.fixture(scope="module")
def base(samples: Samples) -> EnsembleCostModel:
    network = NetOptions(hidden=16, layers=1, heads=2, feed_forward=16, head_hidden=16)
    loop = LoopOptions(epochs=15, programs_per_batch=16, learning_rate=5e-3)
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
def adapted(base: EnsembleCostModel, samples: Samples, target: Samples) -> Adapted:
    train = target.take(target.task_id < 10)
    return adapt(base, train, [samples.devices[0]], options=OPTIONS, seed=0)


def test_it_learns_that_the_device_is_slower(
    base: EnsembleCostModel, target: Samples, adapted: Adapted
) -> None:
    test = target.take(target.task_id >= 10)
    assert isinstance(adapted.model, EnsembleCostModel)
    assert mape(adapted.model, test) < 0.6 * mape(base, test)
    assert adapted.nearest == target.devices[0].name


def test_shares_are_a_mean_and_held_out_predictions_are_complete(adapted: Adapted) -> None:
    assert adapted.shares is not None
    assert sum(adapted.shares) == pytest.approx(1.0)
    assert min(adapted.shares) >= 0.0
    assert adapted.held_out is not None
    assert adapted.held_out_s is not None
    assert adapted.held_out_s.shape == (len(adapted.held_out),)
    relative = np.abs(np.log(adapted.held_out_s / adapted.held_out.latency_s))
    assert np.median(relative) < np.log(5.0) / 2, "the factor five is in it"


def test_saved_and_loaded_it_predicts_the_same(
    tmp_path: Path, target: Samples, adapted: Adapted
) -> None:
    state = json.loads(json.dumps(adapted.model.save(tmp_path)))
    loaded = EnsembleCostModel.load(tmp_path, state)
    assert np.allclose(loaded.predict(target), adapted.model.predict(target), rtol=1e-6)
    del state["stand_ins"]
    plain = EnsembleCostModel.load(tmp_path, state)
    assert not np.allclose(plain.predict(target), adapted.model.predict(target), rtol=0.1)


def test_the_given_model_stays_as_it_is(
    base: EnsembleCostModel, samples: Samples, target: Samples
) -> None:
    before = base.predict(target)
    adapt(base, target.take(target.task_id < 3), [samples.devices[0]], options=OPTIONS, seed=1)
    assert np.array_equal(base.predict(target), before)


def test_a_model_of_one_piece_is_just_fine_tuned(
    base: EnsembleCostModel, samples: Samples, target: Samples
) -> None:
    train = target.take(target.task_id < 4)
    result = adapt(base.transformer, train, [samples.devices[0]], options=OPTIONS, seed=0)
    assert (result.nearest, result.shares) == (None, None)
    assert result.model.kind == "transformer"


def test_several_devices_are_refused(base: EnsembleCostModel, samples: Samples) -> None:
    with pytest.raises(UsageError, match="one device at a time, got 2"):
        adapt(base, samples, samples.devices, options=OPTIONS, seed=0)


def test_a_cpu_is_compared_with_cpus(samples: Samples) -> None:
    cpu = replace(samples.devices[0], name="a", kind="cpu")
    gpu = replace(cpu, name="b", kind="gpu")
    of_cpu = replace(of_device(samples, 0), devices=(cpu, samples.devices[1]))
    assert comparable(of_cpu, [gpu, cpu]) == ("a",)
    assert comparable(of_cpu, [gpu]) == ("b",)
