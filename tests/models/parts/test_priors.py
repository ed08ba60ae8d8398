"""Models with an analytic prior inside: the contract, what the prior does, and old states."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from cdmpp.analytic.prior import prior_times
from cdmpp.config import to_dict
from cdmpp.errors import UsageError
from cdmpp.files.stored import to_json
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.models.nets.latency_net import LatencyNet
from cdmpp.models.nets.options import LoopOptions, NetOptions, identity
from cdmpp.models.options import EnsembleOptions, GbdtOptions, SegmentMlpOptions, TransformerOptions
from cdmpp.models.parts.leaf_batches import SampleBatches, Statistics
from cdmpp.models.parts.prior import Prior
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.testing.cost_model import check_cost_model
from cdmpp.testing.synthetic import make_samples, split_by_task

NETWORK = NetOptions(hidden=32, layers=1, heads=2, feed_forward=32, head_hidden=32)
SMALL = TransformerOptions(network=NETWORK, loop=LoopOptions(epochs=3, programs_per_batch=8))
TREES = GbdtOptions(trees=20, depth=3, threads=1)


UNTRAINED = {
    "transformer, both": lambda: TransformerCostModel(replace(SMALL, prior="both")),
    "transformer, residual": lambda: TransformerCostModel(
        replace(SMALL, prior="residual", prior_model="roofline")
    ),
    "gbdt, both": lambda: GbdtCostModel(replace(TREES, prior="both")),
}


@pytest.mark.parametrize("kind", UNTRAINED)
def test_contract(kind):
    check_cost_model(UNTRAINED[kind])


@pytest.mark.parametrize("anchor", ["leaf_roofline", "none"])
def test_a_network_that_has_learned_nothing_predicts_its_base(anchor):
    samples = make_samples(4, 3)
    prior = Prior.fit(samples, "roofline")
    statistics = Statistics.fit(samples, prior=prior)
    batches = SampleBatches(samples, statistics)
    programs = np.arange(len(batches))
    batch = batches.batch(programs)
    network = LatencyNet(
        replace(NETWORK, anchor=anchor),
        feature_count=batch.leaves.shape[1],
        device_feature_count=batch.device.shape[1],
        prior="residual",
    ).eval()
    with torch.no_grad():
        for head in (network.leaf_head[-1], network.program_head[-1]):
            assert isinstance(head, torch.nn.Linear)
            head.weight.zero_()
            head.bias.zero_()
        found = network(batch).numpy()
    wanted = prior.log_s(samples)[batches.sample_rows(programs)]
    assert np.allclose(found, wanted, atol=1e-4)


def test_the_calibration_is_fitted_on_the_training_part_alone():
    train, validation, test = split_by_task(make_samples(10, 6))
    slow = replace(validation, latency_s=validation.latency_s * 1e3)
    for kind in (
        TransformerCostModel(replace(SMALL, prior="both")),
        GbdtCostModel(replace(TREES, prior="both")),
    ):
        kind.fit(train, slow, seed=1)
        facts = kind.prior_facts()
        assert facts == to_json(Prior.fit(train, "auto"))
        ratio = np.log(train.latency_s) - prior_times(train, "auto").log_s
        assert facts["log_factor"]["roofline"] == pytest.approx(np.median(ratio))
        # A source without samples has the factor of all.
        assert facts["log_factor"]["conv"] == facts["log_factor"]["roofline"]
        assert facts["training_samples"]["roofline"] == len(train)
        assert facts["roofline_because"] == {"not a GPU": len(train)}
    blind = replace(test, latency_s=np.full(len(test), np.nan))
    assert np.array_equal(kind.predict(blind), kind.predict(test))


def test_trees_that_learn_the_ratio_follow_a_prior_beyond_their_training():
    """Trees alone cannot leave the range of the labels; the ratio to a prior can."""
    samples = make_samples(40, 6, seed=4)
    order = np.argsort(samples.latency_s)
    train, test = samples.take(order[: len(order) // 2]), samples.take(order[-20:])
    errors = {}
    for prior in ("none", "residual"):
        model = GbdtCostModel(replace(TREES, trees=100, prior=prior))
        model.fit(train, train, seed=0)
        errors[prior] = np.abs(np.log(model.predict(test) / test.latency_s)).mean()
    assert errors["residual"] < 0.8 * errors["none"]


def test_an_order_has_no_ratio_to_a_prior():
    samples = make_samples(4, 4)
    model = GbdtCostModel(replace(TREES, objective="rank", prior="residual"))
    with pytest.raises(UsageError, match=r"cannot use prior 'residual'.*gbdt\.prior=none or"):
        model.fit(samples, samples, seed=0)
    seen = GbdtCostModel(replace(TREES, objective="rank", prior="feature"))
    seen.fit(samples, samples, seed=0)
    assert np.all(seen.predict(samples) > 0)


@pytest.mark.parametrize(
    "model", [TransformerCostModel(SMALL), GbdtCostModel(TREES)], ids=["transformer", "gbdt"]
)
def test_a_state_that_knows_no_prior_loads_and_predicts_the_same(model, tmp_path):
    samples = make_samples(6, 4)
    model.fit(samples, samples, seed=2)
    state = json.loads(json.dumps(model.save(tmp_path)))
    for name in ("prior", "prior_model"):
        del state["options"][name]
    state.pop("prior", None)
    loaded = type(model).load(tmp_path, state)
    assert np.array_equal(loaded.predict(samples), model.predict(samples))
    assert loaded.prior_facts() is None


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        (TransformerOptions(), "eb26e377ef9aa06a"),
        (GbdtOptions(), "f771b0bfcee4f384"),
        (EnsembleOptions(), "8270024fba2d48e7"),
        (SegmentMlpOptions(), "bab0dad990ecb7fa"),
    ],
)
def test_the_identity_of_default_options_is_that_of_finished_cells(options, digest):
    """A field at its default must not make finished cells unknown: mark it ADDED_LATER."""
    text = json.dumps(identity(options), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def test_the_identity_holds_later_fields_that_were_changed():
    plain, changed = TransformerOptions(), TransformerOptions(prior="both")
    assert identity(changed) == identity(plain) | {"prior": "both"}
    inside = EnsembleOptions(transformer=changed)
    assert identity(inside)["transformer"]["prior"] == "both"
    assert set(to_dict(plain)) - set(identity(plain)) == {"prior", "prior_model"}
