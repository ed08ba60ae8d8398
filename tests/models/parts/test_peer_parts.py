"""The parts that the peers are made of, against definitions written another way."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.models.baselines.step_coder import STEP_CODES, step_rows
from cdmpp.models.baselines.tree_shape import tree_shape
from cdmpp.models.nets.lambda_rank import lambda_rank_loss
from cdmpp.models.parts.labels import (
    BoxCoxLabels,
    LogLabels,
    ScoreLabels,
    labels_from_json,
    least_mape_factor,
)
from cdmpp.models.parts.program_groups import ProgramGroups
from cdmpp.testing.synthetic import make_samples

LATENCIES = np.exp(np.random.default_rng(0).normal(-8, 2, 200))


@pytest.mark.parametrize("kind", [LogLabels, BoxCoxLabels])
def test_labels_are_standard_and_come_back(kind):
    labels = kind.fit(LATENCIES)
    encoded = labels.encode(LATENCIES)
    assert encoded.mean() == pytest.approx(0, abs=1e-9)
    assert encoded.std() == pytest.approx(1)
    assert labels.decode(encoded) == pytest.approx(LATENCIES, rel=1e-9)
    assert labels_from_json(asdict(labels)) == labels


def test_box_cox_agrees_with_scikit_learn():
    from sklearn.preprocessing import PowerTransformer

    reference = PowerTransformer("box-cox", standardize=True).fit_transform(LATENCIES[:, None])
    assert BoxCoxLabels.fit(LATENCIES).encode(LATENCIES) == pytest.approx(reference[:, 0], abs=1e-4)


def test_box_cox_of_equal_latencies():
    labels = BoxCoxLabels.fit(np.full(5, 2e-3))
    assert labels.decode(labels.encode(np.array([2e-3]))) == pytest.approx([2e-3])


def test_outputs_without_a_latency_have_an_answer():
    labels = BoxCoxLabels(exponent=0.5, mean=0.0, scale=1.0)
    assert labels.decode(np.array([-100.0, np.inf, 0.0])).tolist() == [1e-6, 1e6, 1.0]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=9))
def test_least_mape_factor_is_not_beaten_by_any_ratio(pairs):
    predicted, measured = (np.array(side) for side in zip(*pairs, strict=True))

    def mape(factor):
        return np.mean(np.abs(factor * predicted - measured) / measured)

    best = mape(least_mape_factor(predicted, measured))
    # The error is piecewise linear in the factor with knots at the ratios.
    assert best <= min(mape(ratio) for ratio in measured / predicted) * (1 + 1e-9)


def test_calibrated_scores_keep_their_order_on_a_device():
    rng = np.random.default_rng(1)
    score = rng.normal(0, 1, 300)
    latency = np.exp(score + rng.normal(0, 1, 300))
    labels = ScoreLabels.fit(score, latency, np.zeros(300))
    asked = np.sort(np.append(rng.normal(0, 3, 50), [-99.0, 99.0]))
    assert np.all(np.diff(labels.decode(asked, np.zeros(52))) > 0)
    assert labels_from_json(asdict(labels)) == labels
    faster = labels.decode(asked, np.full(52, math.log(2.0)))
    assert faster == pytest.approx(labels.decode(asked, np.zeros(52)) / 2)


def test_lambda_rank_by_its_definition():
    score = torch.tensor([0.3, -1.0, 2.0, 0.5, 0.1])
    relevance = torch.tensor([1.0, 0.2, 0.6, 1.0, 0.4])
    group = torch.tensor([7, 7, 7, 3, 3])
    total, pairs = 0.0, 0
    for members in ([0, 1, 2], [3, 4]):
        order = sorted(members, key=lambda i: -float(score[i]))
        best = sorted((float(relevance[i]) for i in members), reverse=True)
        ideal = sum((2**r - 1) / math.log2(2 + k) for k, r in enumerate(best))
        for i, j in itertools.permutations(members, 2):
            if relevance[i] > relevance[j]:
                gain = abs(2 ** float(relevance[i]) - 2 ** float(relevance[j])) / ideal
                place = [1 / math.log2(2 + order.index(k)) for k in (i, j)]
                weight = gain * abs(place[0] - place[1])
                total += weight * math.log2(1 + math.exp(float(score[j] - score[i])))
                pairs += 1
    assert lambda_rank_loss(score, relevance, group).item() == pytest.approx(total / pairs)


def test_lambda_rank_without_pairs_is_zero():
    loss = lambda_rank_loss(torch.zeros(3), torch.ones(3), torch.tensor([0, 1, 2]))
    assert loss.item() == 0


def test_tree_shape_by_hand():
    # root( loop( store, loop( store ) ), store )
    tree = [0, 1, 2, -1, 3, 4, -1, -1, -1, 5, -1, -1]
    shape = tree_shape(tree, [2, 5, 9], collapse_chains=False)
    assert [level.leaf.tolist() for level in shape.levels] == [[[1]], [[0]], [[2]]]
    assert [level.child_level.tolist() for level in shape.levels] == [[[]], [[0]], [[1]]]
    assert [level.child_place.tolist() for level in shape.levels] == [[[]], [[0]], [[0]]]


def test_chains_of_loops_can_be_merged():
    # root( loop( loop( loop( store ), loop( store ) ) ) )
    tree = [0, 1, 2, 3, 4, -1, -1, 5, 6, -1, -1, -1, -1, -1]
    merged = tree_shape(tree, [4, 8], collapse_chains=True)
    assert [level.leaf.tolist() for level in merged.levels] == [[[0], [1]], [[]]]
    assert merged.levels[1].child_place.tolist() == [[0, 1]]
    assert len(tree_shape(tree, [4, 8], collapse_chains=False).levels) == 4


def test_every_sample_is_in_one_batch():
    samples = make_samples(5, 7)
    groups = ProgramGroups(samples.take(np.random.default_rng(0).permutation(len(samples))[:50]))
    for batches in (groups.in_order(6), groups.shuffled(6, 3, seed=1, epoch=2)):
        rows = np.concatenate([groups.samples_of(batch)[0] for batch in batches])
        assert sorted(rows.tolist()) == list(range(50))


def test_shuffling_is_a_function_of_seed_and_epoch():
    groups = ProgramGroups(make_samples(5, 7))

    def order(seed, epoch):
        return np.concatenate(groups.shuffled(6, 3, seed=seed, epoch=epoch)).tolist()

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_steps_by_hand():
    from dataclasses import replace

    programs = make_samples(1, 1).programs
    text = '[["SP",1,0,64,[4,2],1],["CHW",2,"shared"],["PR",0,1,"auto_unroll_max_step$512"]]'
    data = np.frombuffer(text.encode(), np.uint8)
    programs = replace(programs, schedule=data, schedule_offset=np.array([0, len(data)]))
    rows = step_rows(programs, np.array([0]), (4, 6))[0]
    assert rows.shape == (4, len(STEP_CODES) + 6)
    codes = [STEP_CODES[int(np.argmax(row[: len(STEP_CODES)]))] for row in rows[:3]]
    assert codes == ["SP", "CHW", "PR"]
    numbers = np.exp2(rows[:, len(STEP_CODES) :]) - 1
    assert numbers[:3] == pytest.approx(
        np.array([[1, 0, 64, 4, 2, 1], [2, 2, 0, 0, 0, 0], [0, 1, 4, 0, 0, 0]]), abs=1e-4
    )
    assert not rows[3].any()
    assert step_rows(programs, np.array([0]), (1, 2)).shape == (1, 1, len(STEP_CODES) + 2)


def test_every_tensor_of_a_batch_follows_the_network():
    from cdmpp.models.baselines.base import _on
    from cdmpp.models.nets.recursive_lstm import TreeBatch, TreeLevel

    here = torch.zeros(2, dtype=torch.int64)
    batch = TreeBatch(here, (TreeLevel(here, here),), here, here, here)
    assert _on(batch, torch.device("cpu")) is batch
    moved = _on(batch, torch.device("meta"))
    assert moved.leaves.is_meta
    assert moved.levels[0].child.is_meta
    assert moved.device.is_meta
