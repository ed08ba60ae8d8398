"""Random operators and small networks of torch, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.torch_graph import torch_graph

#: Name, call, and shapes of its inputs without the batch.
Operator = tuple[str, Callable[..., Any], list[tuple[int, ...]]]


class Chain(nn.Module):
    """Calls one function after the other; each takes inputs of its own."""

    def __init__(self, calls: list[tuple[Callable[..., Any], int]]) -> None:
        super().__init__()
        self.calls = calls
        parts = [call for call, _ in calls if isinstance(call, nn.Module)]
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> list[Any]:
        found, place = [], 0
        for call, count in self.calls:
            found.append(call(*inputs[place : place + count]))
            place += count
        return found


def _side(rng: random.Random, most: int) -> int:
    return max(1, round(2 ** rng.uniform(0, most)))


def product(rng: random.Random) -> Operator:
    """Returns a product in a random form."""
    m, n, k = (_side(rng, 10) for _ in range(3))
    forms: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
        "mm": (lambda x, y: torch.mm(x, y.t()), [(k,), (k,)]),
        "bmm": (torch.bmm, [(m, k), (k, n)]),
        "matmul": (torch.matmul, [(2, m, k), (2, k, n)]),
        "einsum": (lambda x, y: torch.einsum("bik,bkj->bij", x, y), [(m, k), (k, n)]),
        "baddbmm": (lambda x, y: torch.baddbmm(y.new_zeros(1), x, y), [(m, k), (k, n)]),
        "linear": (nn.Linear(k, n, device="meta"), [(m, k)]),
        "tensordot": (lambda x: torch.tensordot(x, x, dims=([0, 1], [0, 1])), [(m, k)]),
        "cdist": (torch.cdist, [(m, k), (n, k)]),
        "bilinear": (nn.Bilinear(m, k, n, device="meta"), [(m,), (k,)]),
    }
    name = rng.choice(sorted(forms))
    return name, *forms[name]


def recurrent(rng: random.Random) -> Operator:
    """Returns a recurrent layer or cell."""
    width, state = _side(rng, 9), _side(rng, 9)
    kind = rng.choice((nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell))
    shape = (width,) if kind.__name__.endswith("Cell") else (_side(rng, 7), width)
    options = {} if len(shape) == 1 else {"batch_first": True, "num_layers": rng.choice((1, 2))}
    return kind.__name__, kind(width, state, device="meta", **options), [shape]


def convolution(rng: random.Random) -> Operator:
    """Returns a convolution of any rank, with groups, or transposed."""
    rank, groups = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2, 4))
    inputs, outputs = groups * _side(rng, 6), groups * _side(rng, 6)
    kernel = rng.choice((1, 3, 5))
    name = f"Conv{rng.choice(('', 'Transpose'))}{rank}d"
    layer = getattr(nn, name)(
        inputs, outputs, kernel, rng.choice((1, 2)), kernel // 2, groups=groups, device="meta"
    )
    return name, layer, [(inputs, *(kernel + _side(rng, 8 // rank + 1) for _ in range(rank)))]


def attention(rng: random.Random) -> Operator:
    """Returns attention, causal or not."""
    queries, keys = _side(rng, 11), _side(rng, 11)
    heads, width = rng.choice((1, 4, 12)), rng.choice((32, 64, 128))
    is_causal = rng.random() < 0.5

    def call(query: Tensor, key: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, key, is_causal=is_causal)

    return "attention", call, [(heads, queries, width), (heads, keys, width)]


def other(rng: random.Random) -> Operator:
    """Returns something without a product, or of which nothing is known."""
    n = _side(rng, 9)
    calls: dict[str, Callable[..., Any]] = {
        "relu": torch.relu, "softmax": lambda x: x.softmax(-1), "sort": lambda x: x.sort(-1)[0],
        "norm": nn.LayerNorm(n, device="meta"), "cumsum": lambda x: x.cumsum(1),
        "fft": lambda x: torch.fft.rfft2(x).real, "cholesky": torch.linalg.cholesky,
        "inverse": torch.linalg.inv, "matrix_exp": torch.linalg.matrix_exp,
        "transposed": lambda x: x.transpose(1, 2).clone(), "sum": lambda x: x.sum(1),
    }  # fmt: skip
    name = rng.choice(sorted(calls))
    return name, calls[name], [(n, n)]


KINDS = (product, recurrent, convolution, attention, other)


@cache
def generated(seed: int, count: int) -> tuple[str, NetworkGraph]:
    """Returns a name and the graph of `count` operators from a seed."""
    rng = random.Random(seed)
    operators = [rng.choice(KINDS)(rng) for _ in range(count)]
    calls = [(call, len(shapes)) for _, call, shapes in operators]
    shapes = [shape for _, _, own in operators for shape in own]
    name = f"{seed}: {', '.join(name for name, _, _ in operators)}"
    batch = rng.choice((1, 2, 16, 64))
    return name, torch_graph(Chain(calls), shapes, batch=batch, name=name,
                             dtypes=[torch.float32] * len(shapes))  # fmt: skip
