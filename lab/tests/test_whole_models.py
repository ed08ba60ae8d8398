"""Predictions of `cdmpp compare` against measured whole networks (NeuSight, MIT)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cdmpp.networks.graph.factory import load_factory
from lab.experiments.compare import judge
from lab.experiments.compare_serving import PUBLISHED
from lab.experiments.compare_serving import judge as judge_passes
from tests.paths import ROOT, shared


@pytest.mark.exhaustive
def test_measured_transformers_are_answered_better_than_by_their_roofline() -> None:
    rows = judge(shared("neusight"), ("v100-32gb", "a100-40gb", "h100"), ["bert_large"])
    assert len(rows) == 6
    errors = np.array([row.error for row in rows])
    rooflines = np.array([abs(row.roofline_s / row.measured_s - 1) for row in rows])
    assert errors.mean() < 0.15 < rooflines.mean()
    assert all(row.low_s <= row.measured_s <= row.high_s for row in rows)
    assert {row.method for row in rows} == {"operator models"}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet50", 25_557_032), ("bert_large", 302_309_376 + 30_522 * 1024 + 2 * 1024)],
)
def test_the_networks_of_the_guide_are_the_published_ones(name: str, parameters: int) -> None:
    factory = load_factory(f"{ROOT / 'examples' / 'networks.py'}:{name}")
    with torch.device("meta"):
        module = factory()
    assert sum(one.numel() for one in module.parameters()) == parameters


def test_published_passes_are_answered_better_than_by_their_bound() -> None:
    """NVIDIA's figures of LLaMA 7B on three GPUs: one prompt of 2,048 tokens, a continued batch."""
    wanted = {("h100", 112), ("l40s", 64), ("a100-sxm", 60)}
    rows = judge_passes(
        [
            one
            for one in PUBLISHED
            if (one.device, one.batch) in wanted or (one.batch == one.degree == 1)
        ]
    )
    assert len(rows) == 10
    errors = np.array([abs(row.predicted_s / row.measured_s - 1) for row in rows])
    bounds = np.array([abs(row.least_s / row.measured_s - 1) for row in rows])
    assert errors.mean() < 0.2 < 0.35 < bounds.mean()
    assert all(row.least_s <= row.low_s for row in rows)
