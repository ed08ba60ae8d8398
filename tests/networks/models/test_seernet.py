"""SeerNet's network, its segments, and PCGrad, against small examples done by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cdmpp.files.stored import from_json, to_json
from cdmpp.networks.models.batch import (
    GraphTensors,
    Standard,
    collate,
    segment_max,
    segment_mean,
    segment_softmax_sum,
)
from cdmpp.networks.models.pcgrad import pcgrad_backward, reconcile
from cdmpp.networks.models.seernet_net import SeerNet

pytestmark = pytest.mark.training


def _tensors(seed: int, nodes: int, links: list[tuple[int, int]]) -> GraphTensors:
    generator = torch.Generator().manual_seed(seed)
    return GraphTensors(
        nodes=torch.randn(nodes, 30, generator=generator, dtype=torch.float64),
        edges=torch.randn(len(links), 5, generator=generator, dtype=torch.float64),
        network=torch.randn(18, generator=generator, dtype=torch.float64),
        links=torch.tensor(links, dtype=torch.int64).reshape(-1, 2),
        base=torch.zeros(nodes, 0, dtype=torch.float64),
        measured=torch.zeros(nodes, 0, dtype=torch.float64),
    )


GRAPHS = [
    _tensors(0, 4, [(0, 1), (0, 2), (1, 3), (2, 3)]),
    _tensors(1, 1, []),
    _tensors(2, 3, [(0, 1), (1, 2)]),
]


def test_it_is_about_as_large_as_published():
    network = SeerNet((30, 5, 18), hidden=256, blocks=1, targets=1)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == pytest.approx(1.02e6, rel=0.03)


@pytest.mark.parametrize("blocks", [1, 2])
def test_graphs_of_a_batch_do_not_see_each_other(blocks):
    torch.manual_seed(0)
    network = SeerNet((30, 5, 18), hidden=12, blocks=blocks, targets=2).double()
    together = network(collate(GRAPHS))
    alone = torch.cat([network(collate([graph])) for graph in GRAPHS])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


def test_numbering_changes_nothing():
    torch.manual_seed(0)
    network = SeerNet((30, 5, 18), hidden=12, blocks=1, targets=1).double()
    graph = GRAPHS[0]
    order = torch.tensor([0, 2, 1, 3])
    place = torch.argsort(order)
    other = GraphTensors(
        graph.nodes[order], graph.edges.flip(0), graph.network, place[graph.links].flip(0),
        graph.base, graph.measured,
    )  # fmt: skip
    with torch.no_grad():
        difference = network(collate([graph])) - network(collate([other]))
    assert float(difference.abs().max()) <= 1e-12


def test_a_part_by_part_layer_is_the_layer_on_joined_vectors():
    torch.manual_seed(0)
    block = SeerNet((30, 5, 18), hidden=6, blocks=1, targets=1).double().blocks[0]
    parts = [torch.randn(5, 6, dtype=torch.float64) for _ in range(4)]
    summed = sum(block.edge.part(number, part) for number, part in enumerate(parts))
    torch.testing.assert_close(summed, block.edge.layer(torch.cat(parts, 1)))


def test_segments_by_hand():
    values = torch.tensor([[1.0], [3.0], [-2.0]], dtype=torch.float64)
    segment = torch.tensor([0, 0, 2])
    assert segment_mean(values, segment, 3).flatten().tolist() == [2.0, 0.0, -2.0]
    assert segment_max(values, segment, 3).flatten().tolist() == [3.0, 0.0, -2.0]
    weights = np.exp([1.0, 3.0]) / np.exp([1.0, 3.0]).sum()
    found = segment_softmax_sum(values, segment, 3).flatten().tolist()
    assert found == pytest.approx([float(weights @ [1.0, 3.0]), 0.0, -2.0])


def test_conflicting_gradients_lose_what_conflicts():
    gradients = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    # first - (-1 / 2) second = (0.5, 0.5); second - (-1 / 1) first = (0, 1)
    found = reconcile(gradients, torch.Generator().manual_seed(0))
    assert found.tolist() == pytest.approx([0.5, 1.5])


def test_gradients_that_agree_are_added():
    gradients = torch.tensor([[1.0, 0.5], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    found = reconcile(gradients, torch.Generator().manual_seed(0))
    assert found.tolist() == [1.0, 1.5]


def test_heads_keep_their_own_gradients():
    shared = nn.Parameter(torch.tensor([1.0, 2.0]))
    own = [nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.tensor([4.0]))]
    losses = torch.stack([(own[0] * shared[0]).sum(), (own[1] * shared[1]).sum()])
    pcgrad_backward(losses, [shared], [[own[0]], [own[1]]], torch.Generator().manual_seed(0))
    assert shared.grad is not None
    assert shared.grad.tolist() == [3.0, 4.0]
    assert [parameter.grad.tolist() for parameter in own] == [[1.0], [2.0]]


def test_columns_that_never_change_become_zero():
    rows = np.array([[1.0, 5.0], [3.0, 5.0]])
    standard = Standard.fit(rows)
    assert standard.apply(rows).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert standard.apply(np.array([[1.0, 9.0]])).tolist() == [[-1.0, 0.0]]
    again = from_json(Standard, to_json(standard))
    assert again.undo(again.apply(rows)).tolist() == rows.tolist()
