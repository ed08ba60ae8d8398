"""The account of work of operators, beside torch's own count of operations and by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.networks.account import Account, Product
from cdmpp.networks.gpu_operators import network_sums
from cdmpp.networks.graph.torch_graph import torch_graph
from cdmpp.networks.least_time import uncovered

BATCH = 3


class Calls(nn.Module):
    """A module that calls a function with one of its own, and its inputs."""

    def __init__(self, part: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.part, self.call = part, call

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(self.part, *inputs)


def account_of(
    call: Callable[..., Any], *shapes: tuple[int, ...], part: Callable[[], nn.Module] = nn.Identity,
    method: Literal["fx", "export"] = "fx",
) -> Account:  # fmt: skip
    """Returns the account of a network of one operator that does something."""
    graph = torch_graph(
        lambda: Calls(part(), call), list(shapes), batch=BATCH, name="n", method=method
    )
    (found,) = [one for one in graph.accounts if one.products or one.other_flop]
    assert found.is_covered
    return found


ATTENTION = functional.scaled_dot_product_attention
LINEAR = partial(nn.Linear, 7, 5)
HEADS = partial(nn.MultiheadAttention, 8, 2, batch_first=True)
#: Name -> call, module and shapes of inputs; one operator each, which torch counts too.
COUNTED: dict[str, tuple[Callable[..., Any], Callable[[], nn.Module], tuple[Any, ...]]] = {
    "linear": (lambda m, x: m(x), lambda: nn.Linear(7, 5), ((4, 7),)),
    "functional linear": (lambda m, x: functional.linear(x, m.weight), LINEAR, ((4, 7),)),
    "weight on the left": (lambda m, x: m.weight @ x, lambda: nn.Linear(4, 9), ((4, 7),)),
    "mm": (lambda m, x, y: torch.mm(x, y.t()), nn.Identity, ((7,), (7,))),
    "one tensor twice": (lambda m, x: torch.mm(x, x.t()), nn.Identity, ((7,),)),
    "bmm": (lambda m, x, y: torch.bmm(x, y), nn.Identity, ((4, 7), (7, 5))),
    "baddbmm": (lambda m, x, y, z: torch.baddbmm(z, x, y), nn.Identity, ((4, 7), (7, 5), (4, 5))),
    "addmm": (lambda m, x, y: torch.addmm(x[:, :3], x, y.t()), nn.Identity, ((7,), (7,))),
    "matmul of four axes": (lambda m, x, y: x @ y, nn.Identity, ((2, 4, 7), (2, 7, 5))),
    "matmul that broadcasts": (lambda m, x, y: x @ y[:, None], nn.Identity, ((2, 4, 7), (7, 5))),
    "einsum": (lambda m, x: torch.einsum("bik,bjk->bij", x, x), nn.Identity, ((4, 7),)),
    "tensordot": (lambda m, x: torch.tensordot(x, m.weight, ([2], [1])), LINEAR, ((4, 7),)),
    "multi_dot": (lambda m, x: torch.linalg.multi_dot([x[0], x[1], x[2]]), nn.Identity, ((7, 7),)),
    "inner": (lambda m, x: torch.inner(x, x[0]), nn.Identity, ((4, 7),)),
    "matrix_power": (lambda m, x: torch.linalg.matrix_power(x, 3), nn.Identity, ((7, 7),)),
    "LSTMCell": (lambda m, x: m(x)[0], lambda: nn.LSTMCell(7, 5), ((7,),)),
    "GRUCell": (lambda m, x: m(x), lambda: nn.GRUCell(7, 5), ((7,),)),
    "RNNCell": (lambda m, x: m(x), lambda: nn.RNNCell(7, 5), ((7,),)),
    "conv1d": (lambda m, x: m(x), lambda: nn.Conv1d(4, 6, 3), ((4, 9),)),
    "conv2d": (lambda m, x: m(x), lambda: nn.Conv2d(4, 6, (3, 1), 2, groups=2), ((4, 9, 9),)),
    "conv3d": (lambda m, x: m(x), lambda: nn.Conv3d(4, 6, 3, padding=1), ((4, 5, 5, 5),)),
    "depthwise": (lambda m, x: m(x), lambda: nn.Conv2d(4, 4, 3, groups=4), ((4, 9, 9),)),
    "transposed": (lambda m, x: m(x), lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1), ((4, 5, 5),)),
    "grouped": (lambda m, x: m(x), lambda: nn.ConvTranspose1d(4, 6, 3, groups=2), ((4, 5),)),
    "attention": (lambda m, x: ATTENTION(x, x, x), nn.Identity, ((2, 6, 4),)),
    "cross attention": (lambda m, x, y: m(x, y, y)[0], HEADS, ((6, 8), (5, 8))),
}  # fmt: skip


@pytest.mark.parametrize("method", ["fx", "export"])
@pytest.mark.parametrize("name", COUNTED)
def test_products_are_those_that_torch_counts(name: str, method: Literal["fx", "export"]) -> None:
    call, part, shapes = COUNTED[name]
    if (name, method) == ("cross attention", "export"):
        pytest.skip("several operators there")
    found = account_of(call, *shapes, part=part, method=method)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        module = Calls(part(), call).eval()
        module(*(torch.zeros(BATCH, *shape) for shape in shapes))
    assert found.product_flop == counter.get_total_flops()


@pytest.mark.parametrize(
    ("call", "shapes", "expected"),
    [
        (lambda m, x: torch.cdist(x, x), ((64, 32),), BATCH * 3 * 64 * 64 * 32),
        (lambda m, x: torch.cdist(x, x, p=1.0), ((64, 32),), BATCH * 3 * 64 * 64 * 32),
        (lambda m, x: torch.fft.fft(x + 0j), ((64,),), BATCH * 5 * 64 * 6),
        (lambda m, x: torch.fft.rfft2(x), ((8, 8),), BATCH * 2.5 * 64 * 6),
        (lambda m, x: torch.linalg.cholesky(x), ((6, 6),), BATCH * 6**3 / 3),
        (lambda m, x: torch.linalg.inv(x), ((6, 6),), BATCH * 2 * 6**3),
        (lambda m, x: torch.linalg.qr(x)[1], ((8, 6),), BATCH * (4 * 8 * 36 - 4 * 6**3 / 3)),
        (lambda m, x: torch.linalg.solve(x, x), ((6, 6),), BATCH * (2 / 3 + 2) * 6**3),
    ],
)
def test_formulas_by_hand(call, shapes, expected) -> None:
    assert account_of(call, *shapes).flop == pytest.approx(expected)


def test_bilinear_by_hand() -> None:
    found = account_of(lambda m, x: m(x, x), (32,), part=lambda: nn.Bilinear(32, 32, 16))
    assert found.products == (Product(1, BATCH, 16, 32 * 32),)


@pytest.mark.parametrize("method", ["fx", "export"])
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_take_a_step_a_token(
    kind: Any, gates: int, method: Literal["fx", "export"]
) -> None:
    found = account_of(
        lambda m, x: m(x)[0], (10, 8), method=method,
        part=lambda: kind(8, 16, num_layers=2, batch_first=True, bidirectional=True),
    )  # fmt: skip
    assert found.steps == 10
    assert found.products[:2] == (
        Product(1, BATCH * 10, gates * 16, 8), Product(1, BATCH, gates * 16, 16, times=10),
    )  # fmt: skip
    assert len(found.products) == 8


def test_a_causal_mask_may_save_what_it_hides() -> None:
    causal = account_of(
        lambda m, x: functional.scaled_dot_product_attention(x, x, x, is_causal=True), (2, 100, 4)
    )
    assert causal.least_share == pytest.approx(0.505)


def test_a_causal_mask_hides_the_keys_behind_the_queries() -> None:
    found = account_of(
        lambda m, q, k: functional.scaled_dot_product_attention(q, k, k, is_causal=True),
        (2, 10, 4), (2, 100, 4),
    )  # fmt: skip
    assert found.least_bytes == BATCH * 4 * 2 * 4 * (10 + 10 + 10)


def test_only_what_cannot_be_saved_is_a_least() -> None:
    def share(**options: Any) -> float:
        return account_of(
            lambda m, x: m(x), (4, 33, 33), part=lambda: nn.Conv2d(4, 6, **options)
        ).least_share

    assert share(kernel_size=1) == 1.0
    assert share(kernel_size=3) == pytest.approx((8 / 18) ** 2), "Winograd"
    assert share(kernel_size=5) == 1 / 5**2, "Fourier"
    assert share(kernel_size=3, stride=2) == 1.0
    assert share(kernel_size=31) == 1 / 31**2, "Fourier"


def test_bytes_that_need_not_move() -> None:
    def least(call: Callable[..., Any], *shapes: tuple[int, ...]) -> float | None:
        return torch_graph(
            Calls(nn.Identity(), call), list(shapes), batch=2, name="n"
        ).accounts[0].least_bytes  # fmt: skip

    assert least(lambda m, x, y: x + y.expand(2, 100), (100,), (1,)) == 4 * (200 + 2 + 200)
    index = torch.zeros(1, dtype=torch.int64)
    assert least(lambda m, x: torch.index_select(x, 1, index), (100,)) == 4 * (2 + 2)
    assert least(lambda m, x: torch.view_as_real(x + 0j), (100,)) == 4 * (200 + 400)


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: x @ m.weight.t(), lambda m, x: torch.einsum("bi,oi->bo", x, m.weight),
        lambda m, x: torch.tensordot(x, m.weight, ([1], [1])),
        lambda m, x: torch.inner(x, m.weight),
    ],
)  # fmt: skip
def test_a_product_with_weights_is_a_linear_layer_under_any_name(call: Callable[..., Any]) -> None:
    plain, other = (
        torch_graph(Calls(nn.Linear(7, 5, bias=False), one), [(7,)], batch=4, name="n")
        for one in (lambda m, x: m(x), call)
    )
    assert plain.kinds == other.kinds == ("Gemm",)
    for name in ("linear_in_features", "linear_out_features", "bytes"):
        assert plain.column(name).tolist() == other.column(name).tolist()
    assert plain.flops.tolist() == other.flops.tolist()


@pytest.mark.parametrize("method", ["fx", "export"])
def test_what_has_no_account_is_named(method: Literal["fx", "export"]) -> None:
    graph = torch_graph(
        Calls(nn.Identity(), lambda m, x: torch.linalg.matrix_exp(torch.relu(x))), [(8, 8)],
        batch=1, name="n", method=method,
    )  # fmt: skip
    found = uncovered(graph)
    assert "LinalgMatrixExp (50 % of the bytes)" in found.text
    assert "Relu" not in found.text
    assert (found.times, found.most_times) == (1.0, 20.0)


def test_the_order_of_operators_does_not_matter() -> None:
    power = torch.linalg.matrix_exp
    first, second = (
        uncovered(torch_graph(Calls(nn.Identity(), call), [(8, 8)], batch=1, name="n"))
        for call in (lambda m, x: power(x.cumsum(1)), lambda m, x: power(x).cumsum(1))
    )
    assert first.most_times == second.most_times == 20 * first.times


def test_a_size_that_depends_on_the_data_is_refused() -> None:
    network = Calls(nn.Identity(), lambda m, x: x[x > 0] * 2)
    with pytest.raises(DataError, match="n: the size of what index makes depends on the data"):
        torch_graph(network, [(8,)], batch=2, name="n")


def test_simple_operators_are_covered() -> None:
    def everything(m: nn.Module, x: Tensor) -> Tensor:
        y = x.softmax(1).clamp(0, 1)
        y = functional.pad(y, (1, 1)).tril().masked_fill(y.new_ones(1).bool(), 0.0).roll(1)
        y = functional.normalize(functional.glu(torch.stack([y, y], -1))).logsumexp(-1).sum(1)
        y = torch.where(y > 0, y, y.exp()).erf_().add_(1).flatten().repeat(2)
        return y.gather(0, y.argmax(0, keepdim=True)).flip(0).std() + y.var()

    graph = torch_graph(Calls(nn.Identity(), everything), [(6, 6)], batch=2, name="n")
    assert uncovered(graph).text == ""


@pytest.mark.parametrize(
    ("call", "passes"),
    [
        (lambda x: x.sort(1)[0], 10), (lambda x: x.argsort(dim=0), 2), (lambda x: x.topk(16)[0], 4),
        (lambda x: x.cumsum(1), 2), (lambda x: torch.searchsorted(x[:, :64].contiguous(), x), 6),
        (lambda x: x.median(1)[0], 10), (lambda x: x.kthvalue(2)[0], 10),
    ],
)  # fmt: skip
def test_sorts_and_searches_go_over_their_tensors_again(
    call: Callable[[Tensor], Tensor], passes: float
) -> None:
    graph = torch_graph(Calls(nn.Identity(), lambda m, x: call(x)), [(1024,)], batch=4, name="n")
    assert max(one.passes for one in graph.accounts) == passes
    found = uncovered(graph)
    assert found.times > 1.5
    assert found.most_times > 20 * found.times - 20


@pytest.mark.parametrize(
    ("call", "kernels"),
    [
        (lambda x: torch.fft.rfft(x), 1), (lambda x: torch.fft.rfft2(x), 2),
        (lambda x: torch.fft.irfft2(x), 2), (lambda x: torch.fft.rfft(x.reshape(-1, 1 << 13)), 2),
    ],
)  # fmt: skip
def test_a_gpu_transforms_along_one_axis_at_a_time(
    call: Callable[[Tensor], Tensor], kernels: int
) -> None:
    graph = torch_graph(
        Calls(nn.Identity(), lambda m, x: call(x)), [(512, 1024)], batch=8, name="n"
    )
    assert sum(one.transforms for one in graph.accounts) == kernels
    once = replace(graph, accounts=tuple(replace(one, transforms=0) for one in graph.accounts))
    whole, least = (network_sums(one, get_device("a100")).total() for one in (graph, once))
    assert np.array(whole) == pytest.approx(kernels * np.array(least))
    assert not uncovered(graph).text
