"""Operators timed where they stand, and the trees that learn from them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from cdmpp.networks.campaign import operator_times
from cdmpp.networks.campaign.labels import FEWEST_REPEATS
from cdmpp.networks.campaign.operator_times import OperatorRunner
from cdmpp.networks.graph.torch_graph import torch_graph
from cdmpp.networks.models.base import new_model
from tests.networks.synthetic import QUICK, convolutions, samples


class Clock:
    """Time that passes by waiting alone, and by a microsecond a look."""

    def __init__(self):
        self.now_s = 0.0
        self.waits = 0

    def perf_counter(self):
        self.now_s += 1e-6
        return self.now_s

    def wait(self, seconds):
        self.now_s += seconds
        self.waits += 1


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(operator_times, "time", SimpleNamespace(perf_counter=CLOCK.perf_counter))
    return CLOCK


class Slow(torch.autograd.Function):
    """Waits 20 ms forward and 40 ms backward."""

    @staticmethod
    def forward(ctx, value):
        CLOCK.wait(0.02)
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        CLOCK.wait(0.04)
        return gradient


class SlowSigmoid(nn.Sigmoid):
    """A leaf that takes a known time. (torch_graph takes subclasses of torch's modules apart.)"""

    __module__ = "torch.nn.slow"

    def forward(self, value):
        return Slow.apply(value)


@pytest.fixture
def network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), SlowSigmoid(), nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )  # fmt: skip


INPUTS = (torch.zeros(2, 3, 8, 8),)


def test_times_are_in_the_order_of_the_graph(network):
    network.eval()
    with torch.inference_mode():
        runner = OperatorRunner(network, INPUTS)
        found = runner.times("infer", runs=3, budget_s=1.0)
    graph = torch_graph(network, [(3, 8, 8)], batch=2, name="n")
    assert runner.graph.graph_id == graph.graph_id
    assert len(found) == len(graph.kinds)
    slow = int(np.argmax(found))
    assert graph.kinds[slow] == "SlowSigmoid"
    assert found[slow] == pytest.approx(0.02, rel=0.01)
    assert min(found) > 0


def test_a_training_step_counts_the_backward_pass_and_the_update(network):
    network.train()
    updates = []

    def update():
        updates.append(1)
        CLOCK.wait(0.03)
        network.zero_grad()

    runner = OperatorRunner(network, INPUTS)
    found = np.array(runner.times("train", update, runs=3, budget_s=1.0))
    kinds = runner.graph.kinds
    assert found[kinds.index("SlowSigmoid")] == pytest.approx(0.06, rel=0.01)
    weights = runner.graph.column("weight_size")
    with_weights = found[weights > 0]
    assert with_weights.sum() > 0.03
    assert found[kinds.index("Gemm")] > found[kinds.index("BatchNormalization")]
    assert len(updates) == 4
    assert all(part.training for part in network.modules())


@pytest.mark.parametrize(("budget_s", "runs"), [(0.01, FEWEST_REPEATS), (0.19, 10)])
def test_the_runs_end_with_the_budget(network, clock, budget_s, runs):
    network.eval()
    with torch.inference_mode():
        runner = OperatorRunner(network, INPUTS)
        clock.waits = 0
        runner.times("infer", runs=1000, budget_s=budget_s)
    assert clock.waits == 1 + runs


def test_the_output_is_the_networks():
    torch.manual_seed(0)
    network = convolutions([8, 16], 3, has_branch=True).eval()
    inputs = torch.randn(2, 3, 16, 16)
    seen = []
    with torch.inference_mode():
        runner = OperatorRunner(network, (inputs,))
        forward = runner._forward

        def keep(clock, *, with_hooks):
            seen.append(forward(clock, with_hooks=with_hooks))
            return seen[-1]

        runner._forward = keep
        runner.times("infer", runs=3, budget_s=1.0)
        torch.testing.assert_close(seen[-1], network(inputs))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_model_learns_from_operators_what_networks_do_not_tell():
    """All networks have equal parts of two kinds; only the operators tell which one is slow."""
    whole = samples()
    operators, targets = [], whole.targets.copy()
    for row, graph in enumerate(whole.encoded):
        is_conv = graph.family == 0
        share = np.where(is_conv, 9.0 / is_conv.sum(), 1.0 / (~is_conv).sum()) / 10.0
        seconds = share[:, None] * targets[row, :2]
        operators.append(seconds)
    taught = replace(whole, operators=tuple(operators))
    parts = np.array_split(np.arange(len(whole)), 3)
    residual = replace(
        QUICK.residual,
        members=1,
        has_trees=False,
        fit=replace(QUICK.residual.fit, epochs=30, batch=4),
    )
    errors = []
    for data in (whole, taught):
        model = new_model("residual", replace(QUICK, residual=residual))
        model.fit(data.take(parts[0]), data.take(parts[1]), seed=0)
        found = model.operator_seconds(taught.take(parts[2]))
        wanted = np.concatenate([taught.operators[row] for row in parts[2].tolist()])
        logs = np.log(np.concatenate(found)) - np.log(wanted)
        errors.append(float(np.average(np.abs(logs), weights=wanted)))
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.slow
def test_operators_that_were_not_measured_do_not_count():
    whole = samples()
    parts = np.array_split(np.arange(len(whole)), 3)
    found = []
    for weight in (0.0, 2.0):
        options = replace(QUICK, residual=replace(QUICK.residual, operator_weight=weight))
        model = new_model("residual", options)
        model.fit(whole.take(parts[0]), whole.take(parts[1]), seed=0)
        found.append(model.predict(whole.take(parts[2])))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)
