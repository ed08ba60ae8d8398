"""Kernels of networks: sizes by hand, and inductor's own fusion."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

from cdmpp.networks.graph.execution import Execution
from cdmpp.networks.graph.torch_graph import torch_graph
from cdmpp.networks.kernels.torch_kernels import (
    COLUMNS,
    DATA_GRADIENT,
    FORWARD,
    KERNELS,
    UPDATE,
    WEIGHT_GRADIENT,
    fused_groups,
    torch_kernels,
)


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.last_norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        y = torch.relu(self.last_norm(self.second(y)) + x)
        return self.head(y.mean((2, 3)))


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)
        self.last = nn.LayerNorm(64)

    def forward(self, x):
        x = self.norm(x)
        x = x + self.down(nn.functional.gelu(self.up(x)))
        return self.last(x) * 2 + 1


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        return torch.softmax(self.linear(torch.sigmoid(x) * x) + x, -1)


class _Turned(nn.Module):
    """An image in tokens: a copy before the norm in NCHW, none in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(self.norm(self.stem(x).permute(0, 2, 3, 1)))


def _counts(table, phase=FORWARD):
    chosen = table.column("phase") == phase
    kinds = table.column("kind")[chosen].astype(int)
    counts = np.bincount(kinds, table.column("count")[chosen], minlength=len(KERNELS))
    return {KERNELS[code]: int(count) for code, count in enumerate(counts) if count}


def _one(table, kind):
    rows = table.column("kind") == KERNELS.index(kind)
    assert rows.sum() == 1
    return {
        name: float(table.column(name)[rows][0])
        for name in ("flop", "bytes", "m", "n", "k", "batch", "is_half", "is_map", "count")
    }


def test_eager_kernels_in_float32() -> None:
    graph = torch_graph(_Residual, [(16, 8, 8)], batch=2, name="net")
    table = torch_kernels(graph, Execution())
    assert _counts(table) == {
        "convolution": 2, "product": 1, "batch norm": 2, "element-wise": 3, "reduction": 1,
    }  # fmt: skip
    assert table.calls == 9
    product = _one(table, "product")
    assert product == {
        "flop": 2 * (2 * 16 * 10) + 20, "bytes": 4 * (32 + 16 * 10 + 10 + 20), "m": 2, "n": 10,
        "k": 16, "batch": 1, "is_half": 0, "is_map": 0, "count": 1,
    }  # fmt: skip
    convolution = _one(table, "convolution")
    assert (convolution["m"], convolution["n"], convolution["k"]) == (128, 16, 144)
    assert convolution["bytes"] == 4 * (2 * 2 * 16 * 64 + 16 * 144)


@pytest.mark.parametrize("execution", [Execution(), Execution("float16", "nhwc", True, "train")])
def test_views_have_no_kernels(execution) -> None:
    graph = torch_graph(nn.Flatten, [(3, 8, 8)], batch=2, name="views")
    assert torch_kernels(graph, execution).rows.shape == (0, len(COLUMNS))


def test_autocast_casts_weights_once_and_inputs_of_products() -> None:
    graph = torch_graph(_Mlp, [(20, 64)], batch=2, name="net")
    plain = torch_kernels(graph, Execution())
    table = torch_kernels(graph, Execution("amp-fp16"))
    assert "cast" not in _counts(plain)
    # two weights, and the norm's float32 output that the first product reads
    assert _counts(table)["cast"] == 3
    products = table.column("kind") == KERNELS.index("product")
    assert set(table.column("is_half")[products]) == {1.0}
    assert table.column("bytes")[products].sum() < plain.column("bytes")[
        plain.column("kind") == KERNELS.index("product")
    ].sum() * 0.51  # fmt: skip


def test_a_training_step_goes_back_through_products_twice() -> None:
    graph = torch_graph(_Residual, [(16, 8, 8)], batch=2, name="net")
    infer = torch_kernels(graph, Execution("amp-fp16"))
    train = torch_kernels(graph, Execution("amp-fp16", mode="train"))
    assert _counts(train) == _counts(infer)
    assert _counts(train, WEIGHT_GRADIENT) == {"convolution": 2, "product": 1}
    assert _counts(train, UPDATE) == {"update": 5}
    work = (train.column("flop") * train.column("count"))[train.column("phase") != UPDATE].sum()
    assert 2.3 < work / (infer.column("flop") * infer.column("count")).sum() < 3.0


def test_what_lies_in_another_order_is_copied() -> None:
    graph = torch_graph(_Turned, [(3, 8, 8)], batch=2, name="turned", in_both_layouts=True)
    eager = torch_kernels(graph, Execution())
    copy = _one(eager, "transposed copy")
    assert copy["bytes"] == 2 * 4 * 2 * 8 * 8 * 8
    half = torch_kernels(graph, Execution("float16"))
    assert _one(half, "transposed copy")["bytes"] == copy["bytes"] / 2
    trained = torch_kernels(graph, Execution(mode="train"))
    assert _counts(trained, DATA_GRADIENT)["transposed copy"] == 1
    for other in (Execution(layout="nhwc"), Execution(compiled=True)):
        assert "transposed copy" not in _counts(torch_kernels(graph, other))


def test_images_have_a_memory_format_and_tokens_none() -> None:
    graph = torch_graph(_Turned, [(3, 8, 8)], batch=2, name="turned", in_both_layouts=True)
    eager = torch_kernels(graph, Execution())
    found = {kind: _one(eager, kind)["is_map"] for kind in ("convolution", "norm", "product")}
    assert found == {"convolution": 1.0, "norm": 0.0, "product": 0.0}
    graph = torch_graph(_Residual, [(16, 8, 8)], batch=2, name="residual")
    table = torch_kernels(graph, Execution())
    kinds = table.column("kind").astype(int)
    of_maps = {KERNELS[kind] for kind in kinds[table.column("is_map") > 0]}
    assert of_maps == {"convolution", "batch norm", "element-wise", "reduction"}


def test_compiled_kernels_move_less() -> None:
    for make, shape in ((_Residual, (16, 8, 8)), (_Mlp, (20, 64)), (_Gated, (32,))):
        graph = torch_graph(make, [shape], batch=2, name="net")
        eager, compiled = (
            torch_kernels(graph, Execution("amp-fp16", compiled=one)) for one in (False, True)
        )
        moved = [(one.column("bytes") * one.column("count")).sum() for one in (eager, compiled)]
        assert moved[1] < moved[0]
        assert compiled.calls < eager.calls
        flop = [(one.column("flop") * one.column("count")).sum() for one in (eager, compiled)]
        assert flop[0] == pytest.approx(flop[1])


def test_groups_do_not_reach_across_products() -> None:
    graph = torch_graph(_Mlp, [(20, 64)], batch=2, name="net")
    groups = [[graph.kinds[node] for node in members] for members in fused_groups(graph)]
    assert groups == [["LayerNorm"], ["Gelu"], ["Add", "LayerNorm", "Mul", "Add"]]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("make", "shape"), [(_Residual, (16, 8, 8)), (_Mlp, (20, 64)), (_Gated, (32,))]
)
def test_inductor_fuses_the_same_groups(make, shape) -> None:
    from torch._inductor.utils import run_and_get_code

    module = make().eval()
    with torch.no_grad():
        _, codes = run_and_get_code(torch.compile(module), torch.zeros(2, *shape))
    kernels = set(re.findall(r"(cpp_fused_\w+) = ", "\n".join(codes)))
    # those that only bring a convolution's operands into another layout are its own
    fused = [name for name in kernels if not re.fullmatch(r"cpp_fused_convolution_\d+", name)]
    graph = torch_graph(module, [shape], batch=2, name="net")
    assert len(fused) == len(fused_groups(graph)), kernels
