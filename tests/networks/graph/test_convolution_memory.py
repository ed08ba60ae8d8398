"""Copies of convolutions against what torch allocates for single ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn

from cdmpp.networks.graph import convolution_memory
from cdmpp.networks.graph.convolution_memory import (
    ConvolutionKinds,
    backward_scratch_bytes,
    convolution_kinds,
    forward_scratch_bytes,
)
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.torch_graph import torch_graph
from tests.networks.allocations import peak_allocated

#: batch, side, channels in and out, kernel, stride, groups -> the code that runs it.
CASES = {
    (4, 64, 3, 48, 3, 1, 1): "plain",  # three channels are read where they are
    (4, 64, 10, 20, 3, 1, 1): "plain",
    (4, 32, 40, 96, 3, 1, 1): "plain",
    (4, 32, 64, 64, 3, 2, 1): "plain",
    (2, 64, 11, 22, 5, 1, 1): "plain",
    (4, 32, 64, 5, 3, 1, 1): "plain",
    (16, 32, 64, 40, 1, 1, 1): "pointwise",
    (4, 32, 64, 40, 1, 2, 1): "pointwise",
    (4, 32, 40, 40, 3, 1, 40): "depthwise",
    (4, 32, 32, 32, 3, 1, 4): "grouped",
    (4, 32, 24, 24, 3, 1, 2): "grouped",
    (4, 32, 20, 20, 3, 1, 2): "product",
    (1, 112, 20, 20, 7, 1, 2): "product",  # unfolded in pieces
    (4, 32, 6, 8, 3, 1, 2): "product",
    (1, 16, 8, 8, 3, 1, 1): "native",
    (4, 64, 48, 10, 1, 1, 1): "native",
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Convolutions take scratch memory for every thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _needs_avx512() -> None:
    found = torch.backends.cpu.get_cpu_capability()
    if found != "AVX512":
        pytest.skip(f"the layout is that of AVX-512, this CPU has {found}")


def _made(case: tuple[int, ...]) -> tuple[nn.Module, torch.Tensor, NetworkGraph]:
    batch, side, inputs, outputs, kernel, stride, groups = case
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups)
    graph = torch_graph(layer, [(inputs, side, side)], batch=batch, name="c")
    return layer, torch.randn(batch, inputs, side, side), graph


@pytest.mark.parametrize(("case", "kind"), CASES.items())
def test_each_convolution_has_one_kind(case: tuple[int, ...], kind: str) -> None:
    kinds = convolution_kinds(_made(case)[2])
    found = [f.name for f in fields(ConvolutionKinds) if getattr(kinds, f.name).tolist() == [True]]
    assert found == [kind]


def test_other_operators_are_no_convolutions_and_hold_nothing() -> None:
    graph = torch_graph(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), [(8,)], batch=2, name="n")
    kinds = convolution_kinds(graph)
    assert not any(getattr(kinds, f.name).any() for f in fields(ConvolutionKinds))
    assert forward_scratch_bytes(graph) == backward_scratch_bytes(graph) == [0.0, 0.0]


@pytest.fixture
def cache_of_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces of a large image fit the second-level cache; ours are those of one MiB."""
    size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    if size.exists():
        fitting = 0.93 * 1024 * int(size.read_text().strip().removesuffix("K"))
        monkeypatch.setattr(convolution_memory, "_MOST_UNFOLDED_BYTES", fitting)


@pytest.mark.usefixtures("cache_of_this_cpu")
@pytest.mark.parametrize("case", CASES)
def test_forward_copies_are_those_that_torch_allocates(case: tuple[int, ...]) -> None:
    _needs_avx512()
    layer, values, graph = _made(case)
    with torch.inference_mode():
        layer(values)
        measured = peak_allocated(lambda: layer(values))
    (scratch,) = forward_scratch_bytes(graph)
    output = float(graph.column("output_size")[0])
    assert scratch + output == pytest.approx(measured, rel=0.05, abs=4096)


@pytest.mark.parametrize("case", [case for case in CASES if case[2] > 3])
def test_backward_copies_are_about_those_that_torch_allocates(case: tuple[int, ...]) -> None:
    _needs_avx512()
    layer, values, graph = _made(case)
    values.requires_grad_()
    outputs = layer(values)
    gradient = torch.ones_like(outputs)

    def backward() -> None:
        torch.autograd.grad(outputs, (values, *layer.parameters()), gradient, retain_graph=True)

    backward()
    measured = peak_allocated(backward)
    (scratch,) = backward_scratch_bytes(graph)
    made = float(graph.column("input_size")[0] + graph.column("weight_size")[0])
    least = 0.7 if CASES[case] == "grouped" else 0.95  # groups: some weights by a product instead
    assert least * (scratch + made) <= measured + 4096
    assert scratch + made >= 0.95 * measured - 4096


def test_native_convolutions_are_those_that_torch_names() -> None:
    """Torch tells by which code a convolution runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for batch, channels, side, kernel, stride, groups in (
            (1, 8, 16, 3, 1, 1), (1, 8, 64, 3, 1, 1), (2, 8, 16, 3, 1, 1), (1, 8, 16, 5, 1, 1),
            (1, 8, 16, 3, 1, 8), (4, 8, 16, 1, 1, 1), (4, 8, 16, 1, 2, 1), (16, 8, 16, 1, 1, 1),
        ):  # fmt: skip
            layer = nn.Conv2d(channels, 8, kernel, stride, kernel // 2, groups=groups)
            values = torch.zeros(batch, channels, side, side)
            backend = torch._C._select_conv_backend(
                values, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation,
                False, (0, 0), groups, None,
            )  # fmt: skip
            graph = torch_graph(layer, [(channels, side, side)], batch=batch, name="c")
            is_native = "Mkldnn" not in str(backend)
            assert convolution_kinds(graph).native.tolist() == [is_native], (batch, kernel, stride)
    finally:
        torch.set_num_threads(threads)
