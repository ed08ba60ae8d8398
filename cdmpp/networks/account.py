"""The account of an operator's work: its matrix products, its steps, and what cannot be saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Shape = Sequence[int]
#: How an operator computes its products; `view` computes and moves nothing.
Form = Literal["plain", "attention", "convolution", "recurrent", "view"]

#: The fastest algorithms of 3x3 convolutions in use save three of four products (Winograd), with a
#: stride of 1. Beyond this window Fourier transforms may save more, of all algorithms but one
#: product an output, input channel and output channel.
_CONVOLUTION_SHARE, _WINOGRAD_WINDOW = 0.25, 49


@dataclass(frozen=True)
class Product:
    """Matrix products [m, k] x [k, n]: `batch` at once, `times` one after the other."""

    batch: int
    m: int
    n: int
    k: int
    times: int = 1

    @property
    def flop(self) -> float:
        """Operations; a multiply-add is two."""
        return 2.0 * self.times * self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class Account:
    """What an operator must do.

    Attributes:
        products: its matrix products.
        other_flop: operations of what is no product and has a formula of its own (transforms,
            decompositions); element-wise operations are not in it.
        form: how the products are computed.
        steps: kernels that wait for each other: one a token of a recurrent layer.
        least_share: of the products' operations, what no algorithm in use saves.
        least_bytes: tensors that it reads and writes, each once; None = those of its row.
        is_covered: whether all of its work is known.
        passes: how often it goes over its tensors, about; 1 = once. Sorts, searches and scans go
            over them several times, or wait for one element after the other.
        transforms: kernels of a GPU, one after the other, that each go over its tensors; what is
            between them stays in a CPU's caches. 0 = no Fourier transform.
    """

    products: tuple[Product, ...] = ()
    other_flop: float = 0.0
    form: Form = "plain"
    steps: int = 1
    least_share: float = 1.0
    least_bytes: float | None = None
    is_covered: bool = True
    passes: float = 1.0
    transforms: int = 0

    @property
    def product_flop(self) -> float:
        """Operations of the products."""
        return sum(product.flop for product in self.products)

    @property
    def flop(self) -> float:
        """Operations of the products and of what has a formula of its own."""
        return self.product_flop + self.other_flop


def attention_account(query: Shape, key: Shape, value_width: int, *, is_causal: bool) -> Account:
    """Returns the account of scores and weighted sum; kernels skip what a causal mask hides."""
    batch, m, n = math.prod(query[:-2]), query[-2], key[-2]
    shown = sum(min(row + 1, n) for row in range(m)) if is_causal else m * n
    products = Product(batch, m, n, query[-1]), Product(batch, m, value_width, n)
    share = shown / max(m * n, 1)
    return Account(products, form="attention", least_share=share)


def convolution_account(
    data: Shape, weight: Shape, outputs: int, *, groups: int, stride: float, is_transposed: bool
) -> Account:
    """Returns the account of a convolution as the product that it amounts to.

    Args:
        data, weight: shapes; the weight's is [out, in / groups, ...], or [in, out / groups, ...] of
            a transposed one.
        outputs: elements of the result.
        stride: the mean over the axes.
    """
    window = math.prod(weight[2:])
    if is_transposed:
        places = math.prod(data) // max(weight[0], 1)
        product = Product(groups, places, weight[1] * window, weight[0] // groups)
    else:
        places = outputs // max(weight[0], 1)
        product = Product(groups, places, weight[0] // groups, weight[1] * window)
    share = 1.0
    if window > 1 and stride == 1:
        share = _CONVOLUTION_SHARE if window <= _WINOGRAD_WINDOW else 1.0 / window
    return Account((product,), form="convolution", least_share=share)


def recurrent_account(tokens: int, batch: int, weights: Sequence[Shape]) -> Account:
    """Returns the account of recurrent layers: inputs of all tokens at once, then one product a
    token that needs the one before.

    Args:
        weights: shapes of the matrices, layer by layer: of the input, of the state, and of its
            projection, if any.
    """
    products = []
    is_input = True
    for rows, columns in weights:
        if rows != weights[0][0]:  # a projection of the state
            products.append(Product(1, batch, rows, columns, tokens))
            continue
        sizes = (batch * tokens, 1) if is_input else (batch, tokens)
        products.append(Product(1, sizes[0], rows, columns, sizes[1]))
        is_input = not is_input
    return Account(tuple(products), form="recurrent", steps=tokens)
