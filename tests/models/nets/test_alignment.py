"""Distances between distributions of embeddings, and training with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cdmpp.models.nets.alignment import (
    LEAST_SAMPLES,
    alignment_loss,
    central_moment_discrepancy,
    distance,
    maximum_mean_discrepancy,
)
from cdmpp.models.nets.options import LoopOptions, LossOptions, NetOptions
from cdmpp.models.options import TransformerOptions
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.testing.synthetic import make_samples, split_by_task

KINDS = ("cmd", "mmd")


def normal(count, width, *, mean=0.0, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return mean + scale * torch.randn(count, width, generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_distance_of_a_set_to_itself_is_zero(kind):
    values = normal(20, 5)
    assert float(distance(values, values, kind=kind)) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_distance_is_symmetric_and_positive(kind):
    first, second = normal(20, 5), normal(30, 5, mean=0.5, seed=1)
    there, back = distance(first, second, kind=kind), distance(second, first, kind=kind)
    assert float(there) == pytest.approx(float(back), rel=1e-5)
    assert float(there) > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_distance_grows_with_the_shift(kind):
    first = normal(200, 3)
    near, far = (distance(first, normal(200, 3, mean=m, seed=1), kind=kind) for m in (0.2, 1.0))
    assert float(far) > 2 * float(near)


@pytest.mark.parametrize("kind", KINDS)
def test_distance_sees_more_than_the_mean(kind):
    same = distance(normal(400, 3), normal(400, 3, seed=1), kind=kind)
    wider = distance(normal(400, 3), normal(400, 3, scale=3.0, seed=1), kind=kind)
    assert float(wider) > 2 * float(same)


def test_cmd_of_two_points_by_hand():
    # tanh(x) = 0.5 and -0.5 around 0 against 0: means equal, second moments 0.25 and 0, fourth
    # 0.0625 and 0, odd ones 0.
    point = math.atanh(0.5)
    spread = torch.tensor([[point], [-point]])
    still = torch.zeros(2, 1)
    expected = 0.25 / 2**2 + 0.0625 / 2**4
    got = central_moment_discrepancy(spread, still, moments=5)
    assert float(got) == pytest.approx(expected, abs=1e-5)


def test_mmd_does_not_depend_on_the_scale_of_embeddings():
    first, second = normal(20, 4), normal(20, 4, mean=1.0, seed=1)
    small = maximum_mean_discrepancy(first, second)
    large = maximum_mean_discrepancy(100 * first, 100 * second)
    assert float(small) == pytest.approx(float(large), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_finite_where_sets_are_equal(kind):
    values = torch.zeros(8, 3, requires_grad=True)
    alignment_loss(values, torch.arange(8) % 2, kind=kind).backward()
    assert torch.isfinite(values.grad).all()


@pytest.mark.parametrize("kind", KINDS)
def test_small_domains_and_a_single_domain_do_not_count(kind):
    values = normal(LEAST_SAMPLES + 1, 3)
    domain = torch.tensor([0] * LEAST_SAMPLES + [1])
    assert float(alignment_loss(values, domain, kind=kind)) == 0.0
    assert float(alignment_loss(values, torch.zeros_like(domain), kind=kind)) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_following_the_gradient_brings_domains_together(kind):
    values = torch.cat([normal(30, 4), normal(30, 4, mean=1.5, seed=1)]).requires_grad_()
    domain = torch.arange(60) // 30
    before = float(alignment_loss(values.detach(), domain, kind=kind))
    optimiser = torch.optim.Adam([values], lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        alignment_loss(values, domain, kind=kind).backward()
        optimiser.step()
    assert float(alignment_loss(values.detach(), domain, kind=kind)) < 0.3 * before


def options(**loss) -> TransformerOptions:
    return TransformerOptions(
        network=NetOptions(
            hidden=16, layers=1, heads=2, feed_forward=16, head_hidden=16, members=2
        ),
        loss=LossOptions(**loss),
        loop=LoopOptions(epochs=3, programs_per_batch=16),
    )


def embedding_gap(model, samples):
    """CMD between the embeddings of the two devices, mean over members."""
    trainee = model.tuning_trainee(samples, samples, LoopOptions(), seed=0)
    batches = trainee._train
    programs = np.arange(len(batches), dtype=np.int64)
    with torch.no_grad():
        embedding = model.tuning_network().with_embedding(batches.batch(programs))[1]
    device = torch.from_numpy(samples.device[batches.sample_rows(programs)])
    return float(np.mean([float(alignment_loss(e, device, kind="cmd")) for e in embedding]))


@pytest.mark.parametrize("groups", ["device", "task"])
@pytest.mark.parametrize("kind", KINDS)
def test_model_trains_with_the_term(kind, groups):
    train, validation, test = split_by_task(make_samples(10, 6))
    model = TransformerCostModel(options(alignment=kind, alignment_groups=groups))
    model.fit(train, validation, seed=0)
    assert np.all(np.isfinite(model.predict(test)))


def test_aligned_devices_have_nearer_embeddings():
    train, validation, _ = split_by_task(make_samples(10, 6))
    gaps = []
    for weight in (0.0, 10.0):
        model = TransformerCostModel(options(alignment="cmd", alignment_weight=weight))
        model.fit(train, validation, seed=0)
        gaps.append(embedding_gap(model, train))
    assert gaps[1] < gaps[0]
