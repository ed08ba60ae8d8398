"""What every whole-network model keeps: positive, the same for a seed, saved, without numbering."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.config import to_dict
from cdmpp.errors import DataError, UsageError
from cdmpp.models.registry import NETWORK_CLASSES
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples, unmeasured
from cdmpp.networks.dataset.split import split_networks
from cdmpp.networks.evaluate import judge
from cdmpp.networks.models.base import new_model
from tests.networks.graph.example_graphs import renumbered
from tests.networks.synthetic import QUICK, data, samples

pytestmark = pytest.mark.training


def parts() -> tuple[NetworkSamples, NetworkSamples, NetworkSamples]:
    """Returns training, validation and test part."""
    whole = samples()
    found = split_networks(whole.architecture, whole.sample_names, kind="architecture", seed=0)
    return whole.take(found.train), whole.take(found.validation), whole.take(found.test)


@pytest.fixture(scope="module", params=NETWORK_CLASSES)
def fitted(request):
    train, validation, _ = parts()
    model = new_model(request.param, QUICK)
    model.fit(train, validation, seed=0)
    return model


def test_predictions_are_positive_and_shares_at_most_one(fitted):
    found = fitted.predict(parts()[2])
    assert found.shape == (len(parts()[2]), len(TARGETS))
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (found[:, 4:] <= 1.5).all()


def test_numbering_operators_changes_nothing(fitted):
    rng = np.random.default_rng(0)
    rows = data().graphs[1:12:2]  # with branches
    graphs = [row.graph for row in rows]
    others = [renumbered(graph, rng)[0] for graph in graphs]
    assert any(a.graph_id != b.graph_id for a, b in zip(graphs, others, strict=True))
    devices = samples().devices
    first, second = (fitted.predict(unmeasured(each, devices)) for each in (graphs, others))
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_a_saved_model_predicts_the_same(fitted, tmp_path):
    state = json.loads(json.dumps(fitted.save(tmp_path), allow_nan=False))
    assert not list(tmp_path.glob("*.p*kl*"))
    again = type(fitted).load(tmp_path, {**state, "options": to_dict(QUICK)})
    test = parts()[2]
    np.testing.assert_array_equal(fitted.predict(test), again.predict(test))


def test_a_seed_gives_one_model(fitted):
    train, validation, test = parts()
    again = new_model(fitted.kind, QUICK)
    again.fit(train, validation, seed=0)
    np.testing.assert_array_equal(fitted.predict(test), again.predict(test))


def test_no_samples_give_no_predictions(fitted):
    nothing = samples().take(np.zeros(0, np.int64))
    assert fitted.predict(nothing).shape == (0, len(TARGETS))


def test_a_target_that_was_never_measured_is_unknown(fitted):
    train, validation, test = parts()
    column = TARGETS.index("train_memory_bytes")
    train, validation = (_without(part, column) for part in (train, validation))
    model = new_model(fitted.kind, QUICK)
    model.fit(train, validation, seed=0)
    found = model.predict(test)
    assert np.isnan(found[:, column]).all()
    assert np.isfinite(np.delete(found, column, axis=1)).all()


def test_one_missing_label_does_not_spoil_the_others(fitted):
    train, validation, test = parts()
    targets = train.targets.copy()
    targets[0, 0] = targets[1, 3] = np.nan
    model = new_model(fitted.kind, QUICK)
    model.fit(replace(train, targets=targets), validation, seed=0)
    assert np.isfinite(model.predict(test)).all()


def _without(part: NetworkSamples, column: int) -> NetworkSamples:
    targets = part.targets.copy()
    targets[:, column] = np.nan
    return replace(part, targets=targets)


def test_ours_is_better_than_a_constant_and_the_roofline():
    train, validation, test = parts()
    errors = {}
    for kind in ("residual", "constant", "roofline"):
        model = new_model(kind, QUICK)
        model.fit(train, validation, seed=0)
        errors[kind] = judge(test, model.predict(test))
    for target in TARGETS[:4]:
        ours = errors["residual"][target]["mape"]
        assert ours < errors["constant"][target]["mape"]
        assert ours < errors["roofline"][target]["mape"]


def test_time_grows_with_the_batch():
    train, validation, _ = parts()
    model = new_model("residual", QUICK)
    model.fit(train, validation, seed=0)
    from cdmpp.networks.graph.torch_graph import torch_graph
    from tests.networks.synthetic import convolutions

    module = convolutions([16, 32], 3, has_branch=True)
    graphs = [torch_graph(module, [(3, 32, 32)], batch=batch, name="n") for batch in (1, 4, 16, 64)]
    found = model.predict(unmeasured(graphs, samples().devices))
    assert (np.diff(found[:, :4], axis=0) > 0).all()


def test_operator_seconds_add_up_to_the_networks_part():
    train, validation, test = parts()
    model = new_model(
        "residual", replace(QUICK, residual=replace(QUICK.residual, members=1, has_trees=False))
    )
    model.fit(train, validation, seed=0)
    sums = np.array([rows.sum(axis=0) for rows in model.operator_seconds(test)])
    np.testing.assert_allclose(sums, model.predict(test)[:, :2], rtol=1e-9)


def test_an_unknown_model_is_refused():
    with pytest.raises(UsageError, match="expected one of residual"):
        new_model("resnet")


def test_nothing_measured_is_refused():
    train, validation, _ = parts()
    empty = replace(train, targets=np.full_like(train.targets, np.nan))
    with pytest.raises(DataError, match="networks measure"):
        new_model("constant").fit(empty, validation, seed=0)
