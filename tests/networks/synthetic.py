"""Small networks with made-up measurements: quick to fit, and possible to predict."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from torch import nn

from cdmpp.networks.dataset.rows import GraphRow, LabelRow
from cdmpp.networks.dataset.samples import NetworkSamples, assemble
from cdmpp.networks.dataset.store import NetworkData
from cdmpp.networks.graph.execution import MODES
from cdmpp.networks.graph.live_memory import live_memory
from cdmpp.networks.graph.torch_graph import torch_graph
from cdmpp.networks.models.options import (
    GraphFitOptions,
    GraphTreeOptions,
    NetworkOptions,
    SeerNetOptions,
)

DEVICE = "epyc-avx512-1c"
_FIT = GraphFitOptions(epochs=6, batch=16)
#: Options with which every model is fitted in a second.
QUICK = NetworkOptions(
    seernet=SeerNetOptions(hidden=16, fit=_FIT),
    seernet_multi=SeerNetOptions(hidden=16, fit=_FIT),
    trees=GraphTreeOptions(trees=30),
)
QUICK = replace(
    QUICK,
    mlp=replace(QUICK.mlp, hidden=16, fit=_FIT),
    residual=replace(
        QUICK.residual, hidden=16, members=2, trees=GraphTreeOptions(trees=20),
        fit=replace(_FIT, schedule="cosine", learning_rate=2e-3),
    ),
)  # fmt: skip


def convolutions(widths: list[int], kernel: int, *, has_branch: bool) -> nn.Module:
    """Returns a chain of convolutions, each with normalisation and activation."""
    layers: list[nn.Module] = []
    before = 3
    for width in widths:
        layers += [
            nn.Conv2d(before, width, kernel, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        if has_branch:
            layers.append(Branches(width))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class Branches(nn.Module):
    """Two paths that are added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left = nn.Conv2d(width, width, 1)
        self.right = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())

    def forward(self, x):  # type: ignore[no-untyped-def]
        """Returns the sum."""
        return x + self.left(x) + self.right(x)


@lru_cache(maxsize=2)
def data(architectures: int = 24, seed: int = 0) -> NetworkData:
    """Returns every architecture at two batches, measured in both modes."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for number in range(architectures):
        widths = (8 * rng.integers(1, 9, rng.integers(1, 5))).tolist()
        module = convolutions(widths, int(rng.choice([1, 3, 5])), has_branch=bool(number % 2))
        side = int(rng.choice([16, 32]))
        for batch in rng.choice([1, 2, 4, 8], 2, replace=False).tolist():
            graph = torch_graph(module, [(3, side, side)], batch=batch, name=f"net-{number}")
            rows.append(GraphRow(graph, f"a{number}", "generated", None, side))
            seconds = graph.flops / 6e10 + graph.column("bytes") / 2e10 + 5e-6
            for place, mode in enumerate(MODES):
                middle = float(seconds.sum()) * (1, 3)[place] * float(np.exp(rng.normal(0, 0.02)))
                times = tuple((middle * np.exp(rng.normal(0, 0.01, 7))).tolist())
                labels.append(
                    LabelRow(
                        graph.graph_id, DEVICE, mode, float(np.median(times)), min(times),
                        max(times), times, 2e6 + 1.1 * live_memory(graph, mode), None,
                        float(rng.uniform(0.95, 1.0)), threads=1,
                    )
                )  # fmt: skip
    manifest = {"sha256": {"graphs.parquet": "0" * 64, "labels.parquet": f"{seed:016d}"}}
    return NetworkData(rows, labels, manifest)


@lru_cache(maxsize=2)
def samples(architectures: int = 24, seed: int = 0) -> NetworkSamples:
    """Returns the samples of `data`."""
    return assemble(data(architectures, seed))
