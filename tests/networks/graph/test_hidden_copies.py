"""What torch copies unasked, beside what torch does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from cdmpp.networks.graph.execution import LAYOUTS
from cdmpp.networks.graph.hidden_copies import copied_size
from cdmpp.networks.graph.operator import OperatorCall, tensor_infos
from cdmpp.networks.graph.torch_graph import torch_graph

SHAPES = ((2, 3, 4, 5), (1, 6, 4), (2, 1, 8), (4, 4))


def _call(name, value, out=()):
    return OperatorCall(name, tuple(tensor_infos(value)), (), tuple(tensor_infos(out)))


def _wanted_shapes(count):
    """All shapes of up to three axes of so many elements."""
    sides = [side for side in range(1, count + 1) if count % side == 0]
    for axes in (1, 2, 3):
        yield from (one for one in itertools.product(sides, repeat=axes) if np.prod(one) == count)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_reshape_copies_where_torch_cannot_view(shape) -> None:
    seen = set()
    for order in itertools.permutations(range(len(shape))):
        value = torch.zeros(shape).permute(order)
        for wanted in _wanted_shapes(value.numel()):
            out = value.reshape(wanted)
            is_copy = out.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()
            found = copied_size(_call("reshape", value, out), "nchw")
            assert found == (4 * value.numel() if is_copy else 0), (order, wanted)
            seen.add(is_copy)
    assert seen == {True, False}


def test_a_slice_with_holes_is_viewed_only_within_its_rows() -> None:
    value = torch.zeros(4, 6, 8)[:, :3]
    assert copied_size(_call("reshape", value, value.reshape(4, 24)), "nchw") == 0
    assert copied_size(_call("reshape", value, value.reshape(96)), "nchw") == 4 * 96
    assert copied_size(_call("contiguous", value), "nchw") == 4 * 96


def test_operators_that_need_rows_copy_what_has_none() -> None:
    image = torch.zeros(2, 8, 4, 4)
    tokens = image.permute(0, 2, 3, 1)
    size = 4 * image.numel()
    for name in ("layer_norm", "softmax", "linear"):
        assert copied_size(_call(name, tokens.contiguous()), "nchw") == 0
    assert copied_size(_call("layer_norm", tokens), "nchw") == size
    assert copied_size(_call("linear", image.flatten(2).transpose(1, 2)), "nchw") == size
    query = torch.zeros(2, 16, 3, 5).transpose(1, 2)  # heads beside tokens
    assert copied_size(_call("matmul", query), "nchw") == 4 * query.numel()


def test_a_convolution_takes_an_image_in_its_memory_format() -> None:
    image = torch.zeros(2, 8, 4, 4)
    last = image.to(memory_format=torch.channels_last)
    pooled, size = torch.zeros(2, 8, 1, 1), 4 * image.numel()
    found = {
        layout: [copied_size(_call("conv2d", one), layout) for one in (image, last, pooled)]
        for layout in LAYOUTS
    }
    assert found == {"nchw": [0, 0, 0], "nhwc": [size, 0, 0]}
    assert copied_size(_call("max_pool2d", image.transpose(2, 3)), "nchw") == size


class _Windows(nn.Module):
    """Attention within windows of an image: a copy into them and one back."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 8)

    def forward(self, x):
        x = self.stem(x)
        batch, channels, height, width = x.shape
        windows = x.view(batch, channels, height // 4, 4, width // 4, 4).permute(0, 2, 4, 3, 5, 1)
        windows = self.inner(windows.reshape(-1, 16, channels))
        windows = windows.view(batch, height // 4, width // 4, 4, 4, channels)
        return windows.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, height, width)


def test_a_network_knows_its_copies_in_both_memory_formats() -> None:
    graph = torch_graph(_Windows, [(3, 16, 16)], batch=2, name="windows", in_both_layouts=True)
    assert graph.kinds == ("Conv", "Gemm")
    assert graph.copies.tolist() == [[16384.0, 16384.0], [16384.0, 16384.0]]


class _Normed(nn.Module):
    """A layer norm over the channels of an image: a copy in NCHW, none in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.stem(x).permute(0, 2, 3, 1))


def test_channels_last_spares_the_copy_before_a_norm_of_channels() -> None:
    graph = torch_graph(_Normed, [(3, 10, 10)], batch=2, name="normed", in_both_layouts=True)
    assert graph.copied("nchw").tolist() == [0.0, 4096.0]
    assert graph.copied("nhwc").tolist() == [0.0, 0.0]


class _Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.cache = nn.Linear(4, 4), {}

    def forward(self, x):
        if "bias" not in self.cache:
            self.cache["bias"] = self.weight(x)
        return self.weight(x) + self.cache["bias"]


def test_what_the_code_caches_is_forgotten() -> None:
    module = _Caching()
    first, second = (torch_graph(module, [(4,)], batch=2, name="caching") for _ in range(2))
    assert module.cache == {}
    assert first.graph_id == second.graph_id
