"""The published features: their columns by hand, and numbering that changes only the order."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.networks.dataset.features import (
    EDGE_FEATURES,
    GRAPH_FEATURES,
    NODE_FEATURES,
    graph_features,
)
from cdmpp.networks.graph.graph import ARGUMENTS, MEMORY, NetworkGraph
from tests.networks.graph.example_graphs import random_graph, renumbered


def _graph() -> NetworkGraph:
    """Conv -> Gelu, and Conv -> Add <- Gelu."""
    arguments = np.zeros((3, len(ARGUMENTS)))
    arguments[0, :5] = [3, 2, 1, 1, 4]
    #                  traffic weight batch with_w input c_in w h output c_out w h
    memory = np.array(
        [
            [180, 80, 2, 140, 60, 3, 8, 6, 40, 16, 4, 3],
            [80, 0, 2, 40, 40, 16, 4, 3, 40, 16, 4, 3],
            [120, 0, 2, 80, 80, 16, 4, 3, 40, 16, 4, 3],
        ],
        np.float64,
    )
    assert memory.shape[1] == len(MEMORY)
    return NetworkGraph(
        "hand", 2, ("Conv", "Gelu", "Add"), arguments, memory, np.array([900.0, 80.0, 20.0]),
        np.array([[0, 1], [0, 2], [1, 2]]),
    )  # fmt: skip


def test_how_many_columns() -> None:
    assert (len(NODE_FEATURES), len(EDGE_FEATURES), len(GRAPH_FEATURES)) == (30, 5, 18)
    assert len(set(NODE_FEATURES)) == 30
    assert len(set(GRAPH_FEATURES)) == 18


def test_nodes_by_hand() -> None:
    features = graph_features(_graph())
    conv = dict(zip(NODE_FEATURES, features.nodes[0].tolist(), strict=True))
    assert [name for name in NODE_FEATURES[:10] if conv[name]] == ["is_Conv"]
    assert (conv["conv_kernel_size"], conv["conv_stride"], conv["conv_groups"]) == (3, 2, 4)
    assert conv["log_flops"] == math.log(901)
    assert math.isclose(conv["log_bytes"], math.log(181))
    assert math.isclose(conv["log_weight_size"], math.log(81))
    assert conv["arith_intensity"] == 900 / 180
    assert conv["flops_share"] == 0.9
    assert math.isclose(conv["bytes_share"], 180 / 380)
    assert conv["weight_share"] == 1.0


def test_an_unknown_operator_has_a_place() -> None:
    features = graph_features(_graph())
    assert not features.nodes[1, :10].any()
    assert features.nodes[:, :10].argmax(1)[[0, 2]].tolist() == [0, 9]


def test_edges_by_hand() -> None:
    features = graph_features(_graph())
    assert features.edges.shape == (3, 5)
    expected = [math.log1p(value) for value in (40, 2, 16, 3, 4)]
    np.testing.assert_allclose(features.edges[1], expected)


def test_network_by_hand() -> None:
    network = dict(zip(GRAPH_FEATURES, graph_features(_graph()).network.tolist(), strict=True))
    assert (network["nodes"], network["edges"], network["density"]) == (3, 3, 0.5)
    assert math.isclose(network["log_total_flops"], math.log(1001))
    assert math.isclose(network["log_mean_bytes"], math.log1p(380 / 3))
    assert math.isclose(network["log_median_bytes"], math.log(121))
    assert math.isclose(network["log_max_weight_size"], math.log(81))
    assert math.isclose(network["log_mean_edge_size"], math.log(41))
    assert math.isclose(network["arith_intensity"], 1000 / 380)
    assert network["batch"] == 2


def test_one_operator_without_work() -> None:
    graph = NetworkGraph(
        "one", 1, ("Flatten",), np.zeros((1, len(ARGUMENTS))), np.zeros((1, len(MEMORY))),
        np.zeros(1), np.zeros((0, 2), np.int64),
    )  # fmt: skip
    features = graph_features(graph)
    assert np.isfinite(features.nodes).all()
    assert np.isfinite(features.network).all()
    assert features.edges.shape == (0, 5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 30))
def test_numbering_only_reorders_the_rows(seed: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, nodes)
    other, order = renumbered(graph, rng)
    first, second = graph_features(graph), graph_features(other)
    assert first.network.tobytes() == second.network.tobytes()
    assert first.nodes[order].tobytes() == second.nodes.tobytes()
    by_edge = {
        tuple(edge): row for edge, row in zip(graph.edges.tolist(), first.edges, strict=True)
    }
    for (source, target), row in zip(other.edges.tolist(), second.edges, strict=True):
        np.testing.assert_array_equal(row, by_edge[order[source], order[target]])
