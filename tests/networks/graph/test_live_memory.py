"""Rooflines by hand, and peak memory against hand counts and what torch itself allocates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.networks.account import Account, Product
from cdmpp.networks.graph.execution import Mode
from cdmpp.networks.graph.graph import ARGUMENTS, MEMORY, NetworkGraph
from cdmpp.networks.graph.live_memory import (
    live_memory,
    operator_seconds,
    packed_bytes,
    roofline_seconds,
)
from cdmpp.networks.graph.torch_graph import Method, torch_graph
from cdmpp.networks.least_time import least_seconds
from tests.networks.allocations import peak_allocated
from tests.networks.graph.example_graphs import random_graph, renumbered

DEVICE = DeviceSpec("hand", "cpu", peak_fp32_flop_per_s=100.0, mem_bandwidth_bytes_per_s=10.0)


def _chain(kinds: tuple[str, ...], sizes: list[float], weights: list[float]) -> NetworkGraph:
    """Operators one after the other; `sizes` are those of the input and of every output."""
    memory = np.zeros((len(kinds), len(MEMORY)))
    for name, values in (
        ("weight_size", weights), ("input_size", sizes[:-1]), ("output_size", sizes[1:]),
    ):  # fmt: skip
        memory[:, MEMORY.index(name)] = values
    memory[:, MEMORY.index("bytes")] = np.array(weights) + sizes[:-1] + sizes[1:]
    edges = np.array([(node, node + 1) for node in range(len(kinds) - 1)], np.int64)
    return NetworkGraph(
        "chain", 2, kinds, np.zeros((len(kinds), len(ARGUMENTS))), memory,
        np.full(len(kinds), 1000.0), edges.reshape(-1, 2),
    )  # fmt: skip


def test_rooflines_by_hand() -> None:
    graph = _chain(("Gemm", "Relu", "Flatten"), [30, 50, 50, 50], [40, 0, 0])
    graph = replace(graph, flops=np.array([1000.0, 50.0, 0.0]))
    assert operator_seconds(graph, DEVICE, "infer").tolist() == [12.0, 10.0, 0.0]
    assert roofline_seconds(graph, DEVICE, "infer") == 22.0
    # backward: 2 x 1000 flops or 2 x 30 + 50 + 2 x 40 bytes; update: 3 x 40 bytes
    gemm = 12.0 + max(20.0, 19.0) + 12.0
    relu = 10.0 + max(0.5, 15.0)
    assert operator_seconds(graph, DEVICE, "train").tolist() == [gemm, relu, 0.0]


def test_the_floor_by_hand() -> None:
    graph = _chain(("Conv", "MatMul", "Flatten"), [30, 50, 50, 50], [400, 400, 0])
    accounts = (Account(least_bytes=480.0), Account((Product(1, 5, 10, 10),)), Account())
    graph = replace(graph, accounts=accounts)
    gpu = replace(DEVICE, kind="gpu", vendor="NVIDIA", launch_s=2.0, l2_bytes=100)
    assert least_seconds(graph, gpu) == pytest.approx(38.0 + 40.0), "480 and 500, less 100 bytes"
    cached = replace(gpu, l2_bytes=800)
    assert least_seconds(graph, cached) == pytest.approx(2.0 + 10.0), "a kernel, and 1000 flops"
    fast = replace(cached, peak_fp32_flop_per_s=1e9)
    assert least_seconds(graph, fast) == pytest.approx(4.0), "two kernels"
    assert least_seconds(graph, replace(cached, vendor="AMD")) == pytest.approx(2.0 + 5.0)
    assert least_seconds(graph, replace(cached, vendor="Intel")) == pytest.approx(2.0 + 2.5)
    assert 0 < least_seconds(graph, DeviceSpec("unknown", "gpu")) < 1e-4


def test_a_device_without_numbers_is_refused() -> None:
    graph = _chain(("Relu",), [1, 1], [0])
    with pytest.raises(DataError, match="hand: `mem_bandwidth_bytes_per_s` is unknown"):
        roofline_seconds(graph, replace(DEVICE, mem_bandwidth_bytes_per_s=None), "infer")
    with pytest.raises(DataError, match="`peak_fp32_flop_per_s` is unknown"):
        roofline_seconds(graph, replace(DEVICE, peak_fp32_flop_per_s=None), "infer")


def test_an_unknown_mode_is_refused() -> None:
    graph = _chain(("Relu",), [1, 1], [0])
    with pytest.raises(DataError, match="mode 'x', expected one of infer, train"):
        live_memory(graph, "x")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="mode 'x'"):
        operator_seconds(graph, DEVICE, "x")  # type: ignore[arg-type]


def test_inference_by_hand() -> None:
    graph = _chain(("Gemm", "Relu", "Flatten", "Gemm"), [10, 40, 40, 40, 5], [100, 0, 0, 200])
    # Weights and input stay. The widest moment is relu: 40 in, 40 out, which the view shares.
    assert live_memory(graph, "infer") == 300 + 10 + 80


def test_training_by_hand() -> None:
    graph = _chain(("Gemm", "Relu", "Gemm"), [10, 40, 40, 5], [100, 0, 200])
    # Kept: relu's output (40), which the second product needs too. The first product's output is
    # gone after relu. Backward, first step: output 5 has its gradient 5, relu's output a gradient
    # of 40, the weights one of 200. Last step: gradients 40 (product's output), 200 + 100.
    assert live_memory(graph, "train") == 300 + 10 + (40 + 200 + 100)


def test_training_takes_more() -> None:
    for seed in range(20):
        graph = random_graph(np.random.default_rng(seed), 15)
        assert live_memory(graph, "train") > live_memory(graph, "infer")


def test_a_scale_keeps_nothing_for_the_backward_pass() -> None:
    graph = _chain(("Gemm", "Mul", "Relu"), [10, 40, 40, 40], [4, 0, 0])
    # Only relu's output is kept. Backward of the scale: its output's gradient and its input's.
    assert live_memory(graph, "train") == 4 + 10 + 40 + 80
    by_weights = _chain(("Gemm", "Mul", "Relu"), [10, 40, 40, 40], [4, 1, 0])
    assert live_memory(by_weights, "train") == 4 + 1 + 10 + 40 + 80 + 40


def test_max_pooling_makes_places_in_inference_too() -> None:
    graph = _chain(("Relu", "MaxPool"), [40, 40, 10], [0, 0])
    assert live_memory(graph, "infer") == 40 + 40 + 10 + 20


def test_heads_of_attention_are_copied() -> None:
    graph = _chain(("Gemm", "Gemm", "MatMul"), [10, 10, 10, 10], [0, 0, 0])
    graph = replace(graph, edges=np.array([[0, 2], [1, 2]]))
    plain = replace(graph, kinds=("Relu", "Relu", "MatMul"))
    assert live_memory(graph, "infer") == live_memory(plain, "infer") + 20


def test_a_branch_lives_until_it_is_read() -> None:
    graph = _chain(("Relu", "Relu", "Relu", "Add"), [10, 10, 10, 10, 10], [0] * 4)
    chain = live_memory(graph, "infer")
    skip = replace(graph, edges=np.array([[0, 1], [0, 3], [1, 2], [2, 3]]))
    assert (chain, live_memory(skip, "infer")) == (30, 40)


def test_what_the_code_holds_lives_longer() -> None:
    graph = _chain(("Relu", "Relu", "Relu", "Relu"), [10] * 5, [0] * 4)
    held = replace(graph, holds=np.array([[0, 3]]))
    assert (live_memory(graph, "infer"), live_memory(held, "infer")) == (30, 40)
    rng = np.random.default_rng(0)
    other, _ = renumbered(held, rng)
    assert live_memory(other, "infer") == 40
    assert held.graph_id == graph.graph_id
    with pytest.raises(DataError, match="a hold has an unknown operator"):
        replace(graph, holds=np.array([[0, 4]]))


def test_what_code_keeps_in_a_variable_is_held() -> None:
    class Keeps(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            kept = torch.relu(values)
            other = torch.sigmoid(kept)
            other = torch.tanh(other)
            other = torch.relu(other)  # `kept` goes when this returns
            return torch.sigmoid(other)

    class LetsGo(Keeps):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            values = torch.relu(values)
            for function in (torch.sigmoid, torch.tanh, torch.relu, torch.sigmoid):
                values = function(values)
            return values

    keeps = torch_graph(Keeps(), [(8,)], batch=2, name="n")
    assert keeps.holds.tolist() == [[0, 4]]
    lets_go = torch_graph(LetsGo(), [(8,)], batch=2, name="n")
    assert lets_go.holds.tolist() == []
    assert live_memory(keeps, "infer") == live_memory(lets_go, "infer") + 64


def test_products_pack_blocks_of_their_weights() -> None:
    network = nn.Sequential(nn.Linear(256, 100), nn.Linear(100, 300))
    graph = torch_graph(network, [(256,)], batch=8, name="n")
    # Forward: 192 of 256 rows by 100, 100 by 300. Backward: the first input has no gradient.
    assert packed_bytes(graph).tolist() == [4 * 100 * 300, 4 * 192 * 100, 0]
    few = torch_graph(network, [(256,)], batch=2, name="n")
    assert packed_bytes(few).tolist() == [0, 0, 0]
    native = torch_graph(nn.Conv2d(32, 8, 3, padding=1), [(32, 8, 8)], batch=1, name="n")
    assert packed_bytes(native).tolist() == [0, 0, 4 * 192 * 64]


@pytest.mark.parametrize("method", ["fx", "export"])
def test_a_caller_holds_what_goes_into_a_module(method: Method) -> None:
    inner = nn.Sequential(nn.ReLU(), nn.Sigmoid(), nn.Tanh())
    network = nn.Sequential(nn.Linear(8, 8), inner, nn.Softmax(-1))
    graph = torch_graph(network, [(8,)], batch=2, name="n", method=method)
    assert graph.kinds == ("Gemm", "Relu", "Sigmoid", "Tanh", "Softmax")
    assert graph.holds.tolist() == [[0, 3]]


def test_roofline_sum_does_not_depend_on_numbering() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        graph = random_graph(rng, 12)
        other, _ = renumbered(graph, rng)
        assert roofline_seconds(graph, DEVICE, "train") == roofline_seconds(other, DEVICE, "train")


def _mobile() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU6(), nn.Conv2d(32, 96, 1),
        nn.BatchNorm2d(96), nn.ReLU6(), nn.Conv2d(96, 96, 3, 1, 1, groups=96), nn.BatchNorm2d(96),
        nn.ReLU6(), nn.Conv2d(96, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100),
    )  # fmt: skip


def _vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize(
    ("factory", "shape"), [(_mobile, (3, 64, 64)), (_vgg, (3, 32, 32)), (_mlp, (256,))]
)
def test_against_what_torch_allocates(
    factory: Callable[[], nn.Module], shape: tuple[int, ...], mode: Mode
) -> None:
    module = factory().train(mode == "train")
    inputs = torch.randn(8, *shape)
    graph = torch_graph(module, [shape], batch=8, name="net")
    before = graph.column("weight_size").sum() + inputs.nbytes
    threads = torch.get_num_threads()

    def run() -> None:
        if mode == "train":
            module(inputs).sum().backward()
        else:
            with torch.inference_mode():
                module(inputs)

    torch.set_num_threads(1)  # convolutions take scratch memory for every thread
    try:
        measured = peak_allocated(run)
    finally:
        torch.set_num_threads(threads)
    assert live_memory(graph, mode) - before == pytest.approx(measured, rel=0.05)
