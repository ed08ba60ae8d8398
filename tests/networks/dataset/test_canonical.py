"""What the models see does not depend on how operators are numbered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.errors import DataError
from cdmpp.networks.dataset.canonical import canonical_order
from cdmpp.networks.dataset.canonical import renumbered as reorder
from cdmpp.networks.dataset.encode import FAMILIES, encode, family_of
from tests.networks.graph.example_graphs import random_graph, renumbered


def canonical(graph):
    """Returns the graph in canonical order."""
    return reorder(graph, canonical_order(graph))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14))
def test_every_numbering_has_the_same_canonical_graph(seed, nodes):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, nodes)
    other, _ = renumbered(graph, rng)
    first, second = canonical(graph), canonical(other)
    assert first.graph_id == second.graph_id


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_every_numbering_is_encoded_alike(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 9)
    other, _ = renumbered(graph, rng)
    first, second = encode(graph), encode(other)
    for name in ("nodes", "edges", "network", "operators", "totals", "memory_bytes"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=1e-12)


def test_operators_that_are_alike_can_be_swapped():
    rng = np.random.default_rng(0)
    graph = random_graph(rng, 3)
    memory = graph.memory.copy()
    memory[2] = memory[1]
    arguments = graph.arguments.copy()
    arguments[2] = arguments[1]
    twins = type(graph)(
        graph.name, graph.batch, ("Conv", "Relu", "Relu"), arguments, memory,
        np.array([1.0, 2.0, 2.0]), np.array([[0, 1], [0, 2]]),
    )  # fmt: skip
    swapped = reorder(twins, np.array([0, 2, 1]))
    assert canonical(twins).graph_id == canonical(swapped).graph_id


def test_a_branch_is_followed_to_its_end():
    rng = np.random.default_rng(1)
    graph = random_graph(rng, 6)
    edges = np.array([[0, 1], [0, 2], [1, 3], [2, 4], [3, 5], [4, 5]])
    forked = type(graph)(
        graph.name, graph.batch, graph.kinds, graph.arguments, graph.memory, graph.flops, edges
    )
    order = canonical_order(forked).tolist()
    assert order in ([0, 1, 3, 2, 4, 5], [0, 2, 4, 1, 3, 5])


def test_an_order_against_the_edges_is_refused():
    graph = random_graph(np.random.default_rng(2), 4)
    with pytest.raises(DataError, match="order"):
        reorder(graph, np.array([3, 2, 1, 0]))


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("Conv", "Conv"), ("Gelu", "activation"), ("LogSoftmax", "softmax"),
        ("LayerNorm", "normalisation"), ("ScaledDotProductAttention", "product"),
        ("MatMul", "product"), ("Embedding", "embedding"), ("Mul", "elementwise"),
        ("SomethingNew", "other"),
    ],
)  # fmt: skip
def test_families(kind, family):
    assert FAMILIES[family_of(kind)] == family
