"""Operator graphs of torch modules: both ways give the same, and the numbers are known ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cdmpp.errors import DataError, UsageError
from cdmpp.networks.graph.graph import KINDS
from cdmpp.networks.graph.torch_graph import example_inputs, torch_graph


class _Residual(nn.Module):
    """Two convolutions around a shortcut, every way to write an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, (3, 5), stride=2, padding=(1, 2), bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding="same", groups=4)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        y = functional.relu(self.second(x), inplace=True)
        y += x
        y = torch.cat([self.pool(y), functional.avg_pool2d(y, 2)], dim=1)
        left, right = y.chunk(2, dim=1)
        y = torch.cat([functional.relu6(left * self.scale), right.sigmoid()], 1)
        if y.shape[1] != 16 or y.dim() != 4 or len(y) != y.size(0):
            raise ValueError("shapes are not numbers")
        y = functional.adaptive_avg_pool2d(y, 1).view(y.size(0), -1)
        y = functional.dropout(y, training=self.training)
        return cast(Tensor, self.head(y))


class _Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.position = nn.Parameter(torch.zeros(1, 64, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[:, : tokens.shape[1]]
        q = x.unflatten(-1, (4, 4)).transpose(1, 2)
        x = x + functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)
        return cast(Tensor, self.head(self.encoder(x).mean(dim=1)))


class _Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


CASES = [(_Residual, (3, 32, 32)), (_Tokens, (12,))]


@pytest.mark.parametrize(("factory", "shape"), CASES)
def test_both_ways_agree(factory: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    traced = torch_graph(factory, [shape], batch=2, name="net")
    exported = torch_graph(factory, [shape], batch=2, name="net", method="export")
    assert traced.kinds == exported.kinds
    assert traced.edges.tolist() == exported.edges.tolist()
    assert traced.graph_id == exported.graph_id


@pytest.mark.parametrize(("factory", "shape"), CASES)
@pytest.mark.parametrize("method", ["fx", "export"])
def test_a_module_is_left_as_it_was(
    factory: Callable[[], nn.Module], shape: tuple[int, ...], method: str
) -> None:
    module = factory()
    module.train()
    if isinstance(module, _Residual):
        module.norm.eval()
    flags = [part.training for part in module.modules()]
    names = [name for part in module.modules() for name in sorted(part.__dict__)]
    state = {name: value.clone() for name, value in module.state_dict().items()}
    graph = torch_graph(module, [shape], batch=2, name="net", method=method)  # type: ignore[arg-type]
    assert graph.graph_id == torch_graph(factory, [shape], batch=2, name="net").graph_id
    assert [part.training for part in module.modules()] == flags
    assert [name for part in module.modules() for name in sorted(part.__dict__)] == names
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())


class _Means(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x.mean((2, 3)), x.mean((2, 3), keepdim=True), x.mean(-1), x.mean(2, keepdim=True)]


def test_only_means_of_whole_images_are_global() -> None:
    kinds = torch_graph(_Means, [(3, 32, 32)], batch=2, name="net").kinds
    assert kinds == ("GlobalAveragePool", "GlobalAveragePool", "Mean", "Mean")


def test_operators_of_a_convolutional_network() -> None:
    graph = torch_graph(_Residual, [(3, 32, 32)], batch=2, name="net")
    assert graph.kinds == (
        "Conv", "BatchNormalization", "Relu", "Conv", "Relu", "Add", "MaxPool", "AveragePool",
        "Concat", "Mul", "Relu6", "Sigmoid", "Concat", "GlobalAveragePool", "Flatten", "Gemm",
    )  # fmt: skip
    assert {"Mul", "Relu6", "Sigmoid"} == set(graph.kinds) - set(KINDS)
    edges = [(graph.kinds[a], graph.kinds[b]) for a, b in graph.edges.tolist()]
    assert edges.count(("Relu", "Add")) == 2
    first, second = graph.arguments[0].tolist(), graph.arguments[3].tolist()
    assert first[:6] == pytest.approx([15**0.5, 2, 2**0.5, 1, 1, 0])
    assert second[:6] == [3, 1, 1, 1, 4, 1]
    assert graph.flops[0] == 2 * (2 * 8 * 16 * 16) * 3 * 15
    assert graph.flops[3] == (2 * 8 * 16 * 16) * (2 * 2 * 9 + 1)
    assert graph.column("weight_size")[:2].tolist() == [8 * 3 * 15 * 4, 4 * 8 * 4]
    assert graph.column("pool_ceil_mode")[6] == 1
    assert graph.column("output_h")[:1] == 16
    assert graph.column("linear_in_features")[-1] == 16
    row = dict(zip(("bytes", "input_size_with_weight"), graph.memory[0, [0, 3]], strict=True))
    assert row["input_size_with_weight"] == 2 * 3 * 32 * 32 * 4 + 8 * 3 * 15 * 4
    assert row["bytes"] == row["input_size_with_weight"] + 2 * 8 * 16 * 16 * 4


def test_lookups_read_the_rows_that_they_look_up() -> None:
    """4 x 5 indices of 8 bytes, rows of 16 floats; a bag sums the rows of each input."""
    for layer, results in ((nn.Embedding(1000, 16), 20), (nn.EmbeddingBag(1000, 16), 4)):
        graph = torch_graph(layer, [(5,)], batch=4, name="net", dtypes=[torch.int64])
        size = dict(zip(("bytes", "weight_size"), graph.memory[0, [0, 1]], strict=True))
        assert size["weight_size"] == 1000 * 16 * 4
        offsets = size["bytes"] - (20 * 8 + 20 * 16 * 4 + results * 16 * 4)
        assert 0 <= offsets <= 4 * 8, layer


def test_operators_of_a_transformer() -> None:
    graph = torch_graph(_Tokens, [(12,)], batch=2, name="net")
    layer = ("Gemm", "ScaledDotProductAttention", "Gemm", "Add", "LayerNorm", "Gemm", "Gelu",
             "Gemm", "Add", "LayerNorm")  # fmt: skip
    start = ("Embedding", "Add", "ScaledDotProductAttention", "Add")
    assert graph.kinds == (*start, *layer, *layer, "Mean", "Gemm")
    tokens, width = 2 * 12, 16
    products = 2 * (tokens * width * (2 * 4 * width + 4) + tokens * (4 * width * 32 + width + 32))
    gemm = [flops for kind, flops in zip(graph.kinds, graph.flops, strict=True) if kind == "Gemm"]
    assert sum(gemm) == products + 2 * 3 * (2 * width + 1)


def test_known_networks() -> None:
    """Operations and weights of AlexNet's convolutions as everybody counts them."""
    module = nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, 1, 2),
        nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(192, 384, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, 1, 1), nn.ReLU(), nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(),
        nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(9216, 4096),
        nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip
    graph = torch_graph(module, [(3, 224, 224)], batch=1, name="alexnet")
    weights = graph.column("weight_size").sum() / 4
    assert weights == 61_100_840
    multiply_adds = sum(
        flops / 2
        for kind, flops in zip(graph.kinds, graph.flops.tolist(), strict=True)
        if kind in ("Conv", "Gemm")
    )
    assert multiply_adds == pytest.approx(714.2e6, rel=2e-3)


def test_everything_scales_with_the_batch() -> None:
    one, eight = (
        torch_graph(_Residual, [(3, 32, 32)], batch=batch, name="net") for batch in (1, 8)
    )
    assert (eight.flops == 8 * one.flops).all()
    assert (eight.column("output_size") == 8 * one.column("output_size")).all()
    assert (eight.column("weight_size") == one.column("weight_size")).all()
    assert (eight.arguments == one.arguments).all()


def test_a_factory_that_reads_values() -> None:
    def factory() -> nn.Module:
        widths = [int(width.item()) for width in torch.linspace(4, 8, 3)]
        return nn.Sequential(nn.Linear(4, widths[1]), nn.Tanh())

    graph = torch_graph(factory, [(4,)], batch=1, name="net")
    assert graph.column("output_channels").tolist() == [6, 6]


def test_a_module_of_ones_own_without_torchs_names() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, torch.special.bessel_j0(x)).cumsum(1)

    assert torch_graph(Odd(), [(4,)], batch=2, name="odd").kinds == ("SpecialBesselJ0", "Cumsum")


def test_recurrent_layers_count_every_token() -> None:
    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 16, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.lstm(x)[0]
            return out

    graph = torch_graph(Speech, [(10, 8)], batch=3, name="speech")
    assert graph.kinds == ("Lstm",)
    assert graph.flops[0] == 2 * 30 * (4 * 16 * 8 + 4 * 16 * 16 + 2 * 4 * 16)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_long_recurrent_layers_are_not_followed_token_by_token(
    layer: Callable[..., nn.Module],
) -> None:
    """Half a million tokens would take torch an hour."""

    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer(8, 16, 2, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor, state: Tensor) -> list[Tensor]:
            hidden = (state, state) if layer is nn.LSTM else state
            out, last = self.layer(x, hidden)
            assert out.shape == (4, 500_000, 32)
            assert (last[0] if layer is nn.LSTM else last).shape == (4, 4, 16)
            return [out.relu()]

    graph = torch_graph(Speech, [(500_000, 8), (4, 16)], batch=4, name="speech")
    assert graph.kinds[1:] == ("Relu",)


@pytest.mark.parametrize("method", ["fx", "export"])
def test_what_cannot_be_followed(method: str) -> None:
    with pytest.raises(DataError, match=r"net: torch\.export cannot trace the module"):
        torch_graph(_Branching(), [(4,)], batch=2, name="net", method=method)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["fx", "export"])
def test_wrong_shapes(method: str) -> None:
    with pytest.raises(DataError, match=r"net: .*check the input shapes"):
        torch_graph(_Residual, [(4, 32, 32)], batch=2, name="net", method=method)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"net: torch\.export cannot trace"):
        torch_graph(_Residual, [(3, 32, 32)] * 2, batch=2, name="net", method=method)  # type: ignore[arg-type]
    for norm in (nn.BatchNorm2d(16), nn.BatchNorm1d(8), nn.LayerNorm(16), nn.GroupNorm(2, 16)):
        with pytest.raises(DataError, match=r"net: .*check the input shapes"):
            torch_graph(nn.Sequential(norm), [(8, 6, 6)], batch=2, name="net", method=method)  # type: ignore[arg-type]


class _CallsCompiled(nn.Module):
    """Calls a function that torch.compile has wrapped: torch.fx refuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return _doubled(self.layer(x))


@torch.compile(backend="eager")
def _doubled(x: Tensor) -> Tensor:
    return (x + x).relu()


def test_what_fx_cannot_follow_is_followed_by_export(caplog) -> None:
    graph = torch_graph(_CallsCompiled, [(4,)], batch=2, name="net")
    assert graph.kinds == ("Gemm", "Add", "Relu")
    assert "net: traced with torch.export, because torch.fx cannot trace it (" in caplog.text


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


def test_a_compiled_module_is_the_one_inside_and_says_so() -> None:
    graph = torch_graph(
        lambda: torch.compile(_layers(), backend="eager"), [(8,)], batch=2, name="net"
    )
    plain = torch_graph(_layers, [(8,)], batch=2, name="net")
    assert graph.graph_id == plain.graph_id
    assert graph.is_compiled
    assert not plain.is_compiled
    module, _ = example_inputs(torch.compile(_layers(), backend="eager"), [(8,)], 2, "net")
    assert type(module) is nn.Sequential


@pytest.mark.filterwarnings("ignore")  # torch means to drop some of these
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.jit.script(_layers()), "is scripted"),
        (lambda: torch.jit.trace(_layers(), torch.zeros(1, 8)), "is scripted"),
        (lambda: nn.Sequential(torch.jit.script(_layers()), nn.ReLU()), "has a scripted part"),
        (
            lambda: torch.ao.quantization.quantize_dynamic(_layers(), {nn.Linear}),
            "quantised modules are not supported",
        ),
    ],
)
def test_what_is_no_code_any_more_is_refused(make, said) -> None:
    for follow in (
        lambda: torch_graph(make, [(8,)], batch=1, name="net"),
        lambda: example_inputs(make, [(8,)], 1, "net"),
    ):
        with pytest.raises(DataError, match=rf"net: .*{said}.*[Gg]ive the "):
            follow()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_modules_have_the_graph_of_float32_and_stay_as_they_are(dtype) -> None:
    module = _layers().to(dtype)
    graph = torch_graph(module, [(8,)], batch=2, name="net")
    assert graph.weights == str(dtype).removeprefix("torch.")
    assert graph.graph_id == torch_graph(_layers, [(8,)], batch=2, name="net").graph_id
    assert {one.dtype for one in module.parameters()} == {dtype}
    assert {one.device.type for one in module.parameters()} == {"cpu"}
    of_factory = torch_graph(
        lambda: _layers().to(dtype), [(8,)], batch=2, name="net", dtypes=[dtype]
    )
    assert of_factory.weights == graph.weights


def test_weights_of_several_types_or_of_64_bits_are_refused() -> None:
    def mixed() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).half())

    for make in (mixed, lambda: _layers().double()):
        with pytest.raises(DataError, match="expected one type of float32, float16, bfloat16"):
            torch_graph(make, [(8,)], batch=1, name="net")


def test_only_float32_is_compiled_by_tvm() -> None:
    with pytest.raises(
        DataError, match="are float16, expected float32 for networks compiled by TVM"
    ):
        example_inputs(lambda: _layers().half(), [(8,)], 1, "net")
    with pytest.raises(DataError, match="are float16, expected float32"):
        example_inputs(nn.ReLU, [(8,)], 1, "net", [torch.float16])


def test_bad_arguments() -> None:
    def broken() -> nn.Module:
        raise OSError("no weights here")

    with pytest.raises(UsageError, match="method 'jit', expected one of fx, export"):
        torch_graph(_Residual, [(3, 8, 8)], batch=1, name="net", method="jit")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="batch 0"):
        torch_graph(_Residual, [(3, 8, 8)], batch=0, name="net")
    with pytest.raises(UsageError, match="no input shape"):
        torch_graph(_Residual, [], batch=1, name="net")
    with pytest.raises(UsageError, match="str, expected a torch module"):
        torch_graph("resnet", [(3, 8, 8)], batch=1, name="net")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="the factory returned int"):
        torch_graph(lambda: 3, [(3, 8, 8)], batch=1, name="net")  # type: ignore[arg-type,return-value]
    with pytest.raises(DataError, match=r"the factory failed \(no weights here"):
        torch_graph(broken, [(3, 8, 8)], batch=1, name="net")
    with pytest.raises(DataError, match="has no operator"):
        torch_graph(nn.Identity(), [(3,)], batch=1, name="net")
    with pytest.raises(UsageError, match="2 types for 1 input shapes"):
        torch_graph(_Residual, [(3, 8, 8)], batch=1, name="net", dtypes=[torch.float32] * 2)


def test_importing_the_package_loads_no_torch() -> None:
    code = (
        "import sys, cdmpp.networks.graph.torch_graph, cdmpp.networks.dataset.features, "
        "cdmpp.networks.graph.live_memory, cdmpp.networks.graph.torch_export; "
        "assert not {'torch', 'networkx', 'pyarrow'} & set(sys.modules); "
        "import cdmpp.networks.dataset.published, cdmpp.networks.dataset.statistics; "
        "assert not {'torch', 'networkx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
