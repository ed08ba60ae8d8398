"""Times of a network's operators on GPUs: within what is possible, whatever the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cdmpp.analytic.roofline.floor import least_kernel_s
from cdmpp.devices.registry import get_device
from cdmpp.networks.gpu_operators import network_sums, without_measurements
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.torch_graph import torch_graph
from cdmpp.networks.least_time import operator_floor_s
from tests.networks.generated_operators import Chain, generated

GPUS = ("h100", "a100", "t4", "v100", "l40s", "mi300x", "mi210")
SIDE = 1024


def graph_of(call: Callable[..., Any], *shapes: tuple[int, ...], batch: int = 1) -> NetworkGraph:
    return torch_graph(Chain([(call, len(shapes))]), list(shapes), batch=batch, name="net")


def ends_of(graph: NetworkGraph, device: str) -> tuple[float, float, float]:
    return network_sums(graph, get_device(device)).total()


def check(name: str, graph: NetworkGraph, devices: Iterable[str]) -> None:
    """Checks that bound <= low end <= prediction <= high end, and prediction <= 100 bounds unless
    the row says that such shapes were not measured.
    """
    said = without_measurements(graph, get_device("a100"))
    is_marked = "long sums" in said or "as matrix products" in said
    for device in devices:
        spec = get_device(device)
        bound_s = float(operator_floor_s(graph, spec).sum())
        seconds, low_s, high_s = ends_of(graph, device)
        what = f"{name} on {device}: {bound_s:.3g}, {low_s:.3g}, {seconds:.3g}, {high_s:.3g}"
        assert bound_s > 0, what
        assert bound_s <= 1.0000001 * low_s, what
        assert low_s < seconds < high_s, what
        if is_marked:
            assert without_measurements(graph, spec), what
            continue
        kernels = sum(1 + len(one.products) * one.steps for one in graph.accounts)
        assert seconds <= 100 * (bound_s + kernels * least_kernel_s(spec)), what


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.exhaustive) for at in range(40, 200, 40))]
)
def test_every_operator_is_within_its_bounds(first: int) -> None:
    for seed in range(first, first + 40):
        check(*generated(seed, 1), GPUS)


@pytest.mark.exhaustive
def test_every_network_is_within_its_bounds() -> None:
    for seed in range(1000, 1008):
        check(*generated(seed, 8), GPUS)


@pytest.mark.exhaustive
def test_a_few_thousand_operators_are_within_their_bounds() -> None:
    for seed in range(2000, 5000):
        check(*generated(seed, 1), GPUS)


FORMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "mm": (lambda x, y: torch.mm(x, y), ((SIDE,), (SIDE,)), SIDE),
    "matmul": (torch.matmul, ((SIDE,), (SIDE,)), SIDE),
    "addmm": (lambda x, y: torch.addmm(x, x, y), ((SIDE,), (SIDE,)), SIDE),
    "linear": (nn.Linear(SIDE, SIDE, device="meta"), ((SIDE,),), SIDE),
    "bmm": (torch.bmm, ((SIDE, SIDE), (SIDE, SIDE)), 1),
    "four axes": (torch.matmul, ((1, SIDE, SIDE), (1, SIDE, SIDE)), 1),
    "einsum": (lambda x, y: torch.einsum("ik,kj->ij", x, y), ((SIDE,), (SIDE,)), SIDE),
    "einsum of one tensor": (lambda x: torch.einsum("bik,bjk->bij", x, x), ((SIDE, SIDE),), 1),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=1), ((SIDE,), (SIDE,)), SIDE),
    "1x1 convolution": (nn.Conv1d(SIDE, SIDE, 1, device="meta"), ((SIDE, SIDE),), 1),
}  # fmt: skip


@pytest.mark.parametrize("device", GPUS)
def test_one_product_in_many_forms_takes_one_time(device: str) -> None:
    found = {
        name: ends_of(graph_of(call, *shapes, batch=batch), device)[0]
        for name, (call, shapes, batch) in FORMS.items()
    }
    assert max(found.values()) < 2 * min(found.values()), found


@pytest.mark.parametrize(
    ("device", "least_s", "most_s"),
    [("h100", 2.05e-3, 4e-3), ("a100", 7.05e-3, 12e-3), ("t4", 17e-3, 50e-3)],
)
def test_a_large_product_of_two_axes(device: str, least_s: float, most_s: float) -> None:
    seconds, low_s, _ = ends_of(graph_of(torch.mm, (4096,), (4096,), batch=4096), device)
    assert least_s <= low_s < seconds < most_s


def test_a_batch_of_products_takes_the_same_in_three_axes_and_in_four() -> None:
    four = graph_of(lambda x, y: x[None] @ y[None], (512, 64), (64, 512), batch=192)
    three = graph_of(torch.bmm, (512, 64), (64, 512), batch=192)
    for device in GPUS:
        assert ends_of(three, device) == ends_of(four, device)


def test_a_softmax_takes_the_same_in_two_to_four_axes() -> None:
    shapes: tuple[tuple[int, ...], ...] = ((196,), (16, 196), (8, 16, 196))
    graphs = [
        graph_of(lambda x: x.softmax(-1), shape, batch=batch)
        for shape, batch in zip(shapes, (1536, 96, 12), strict=True)
    ]
    for device in GPUS:
        assert len({ends_of(graph, device) for graph in graphs}) == 1


def test_attention_does_its_operations() -> None:
    """825 GFLOP: at peak, or as three TF32 products where the GPU has those."""
    graph = graph_of(lambda x: functional.scaled_dot_product_attention(x, x, x), (12, 16384, 64))
    for device, least_s in (("h100", 5e-3), ("a100", 15.8e-3), ("v100", 52e-3), ("t4", 100e-3)):
        seconds, low_s, high_s = ends_of(graph, device)
        assert least_s <= low_s < seconds < 10 * least_s
        assert high_s < 40 * least_s


def test_a_recurrent_layer_takes_a_step_a_token() -> None:
    layer = nn.LSTM(256, 256, batch_first=True, device="meta")
    graphs = [graph_of(layer, (tokens, 256)) for tokens in (64, 512)]
    for device in GPUS:
        short, long = (ends_of(graph, device) for graph in graphs)
        assert long[1] >= 511 * least_kernel_s(get_device(device))
        assert 6 < long[0] / short[0] < 10


def test_a_transposed_convolution_is_no_copy() -> None:
    graph = graph_of(nn.ConvTranspose2d(256, 256, 4, 2, 1, device="meta"), (256, 64, 64))
    for device, least_s in (("h100", 128e-6), ("a100", 440e-6)):
        seconds, low_s, _ = ends_of(graph, device)
        assert least_s <= low_s < seconds < 3 * least_s


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("nvidia", "amd"), [("a100", "mi210"), ("v100", "mi50")]
)  # float32 peaks within a fifth
def test_makers_of_like_gpus_are_within_a_factor_of_five(nvidia: str, amd: str) -> None:
    ratios = {}
    for seed in range(200, 300):
        name, graph = generated(seed, 1)
        ratios[name] = ends_of(graph, nvidia)[0] / ends_of(graph, amd)[0]
    assert max(ratios.values()) < 5, ratios
    assert min(ratios.values()) > 1 / 5, ratios


@pytest.mark.parametrize(
    ("batch", "m", "n", "k"), [(16, 1, 64, 4096), (16, 1, 1, 65536), (64, 469, 1, 292)]
)
def test_a_matrix_times_a_vector_reads_the_matrix(batch: int, m: int, n: int, k: int) -> None:
    """None was measured in a batch; the interval has both a kernel for it and one for products."""
    graph = graph_of(torch.bmm, (m, k), (k, n), batch=batch)
    for device in GPUS:
        spec = get_device(device)
        seconds, low_s, high_s = ends_of(graph, device)
        moved_s = 4 * batch * (m * k + k * n + m * n) / (spec.mem_bandwidth_bytes_per_s or 1)
        assert seconds < 5 * moved_s + 60e-6
        assert low_s < moved_s + least_kernel_s(spec)
        assert high_s > 1.5 * seconds
        said = without_measurements(graph, spec)
        assert "with vectors" in said or "no operator was measured" in said


def test_a_product_of_measured_sizes_is_not_marked() -> None:
    """An A100 took 211 us for it, 40 times what its operations take at peak (NeuSight's tables)."""
    graph = graph_of(torch.bmm, (48, 1012), (1012, 4), batch=70)
    assert 100e-6 < ends_of(graph, "a100")[0] < 400e-6
    assert not without_measurements(graph, get_device("a100"))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("tokens", "width", "batch"), [(512, 1024, 1), (128, 256, 16)])
def test_faster_gpus_are_faster_on_recurrent_layers(
    layer: Callable[..., nn.Module], tokens: int, width: int, batch: int
) -> None:
    graph = graph_of(layer(width, width, batch_first=True, device="meta"), (tokens, width),
                     batch=batch)  # fmt: skip
    found = [ends_of(graph, device) for device in ("h100", "a100", "t4")]
    assert sorted(found) == found
    for seconds, low_s, high_s in found[:2]:
        assert low_s < seconds < 40e-6 * tokens, "a few kernels a token"
        assert high_s < 100e-6 * tokens


def test_what_a_causal_mask_hides_takes_no_time() -> None:
    def call(is_causal: bool) -> NetworkGraph:
        return graph_of(
            lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=is_causal),
            (12, 4096, 64),
        )

    for device in GPUS:
        whole, half = (ends_of(call(is_causal), device) for is_causal in (False, True))
        assert half[0] == pytest.approx(whole[0] / 2, rel=0.01)
        assert half[2] == pytest.approx(whole[2])


def test_views_take_no_time() -> None:
    def shown(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x))

    graph = graph_of(lambda x: torch.relu(shown(x)), (64, 2))
    alone = graph_of(torch.relu, (64, 2))
    assert ends_of(graph, "h100") == ends_of(alone, "h100")
