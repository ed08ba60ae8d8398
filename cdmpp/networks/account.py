"""Account of an operator's work: matrix products, dependent steps and lower bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cdmpp.analytic.conv.algorithms import least_product_share

Shape = Sequence[int]
#: How an operator computes its products; a `view` has no work.
Form = Literal["plain", "attention", "convolution", "recurrent", "view"]


@dataclass(frozen=True)
class Product:
    """Matrix products [m, k] x [k, n]: `batch` in parallel, `times` in sequence."""

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
    """Work of an operator.

    Attributes:
        products: matrix products.
        other_flop: operations of other parts with their own formula (transforms, decompositions),
            without element-wise operations.
        form: how the products are computed.
        steps: number of dependent kernels: one per token of a recurrent layer.
        least_share: share of the products' operations that every algorithm in use performs.
        least_bytes: bytes of the tensors read and written, each once; None = the graph's `bytes`
            column.
        is_covered: whether all work of the operator is known.
        passes: approximate number of passes over its tensors. Sorts, searches and scans make
            several, or process one element after the other.
        transforms: number of GPU kernels of a Fourier transform, each a pass over the tensors; on a
            CPU the intermediate results stay in the caches. 0 = no Fourier transform.
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
        """Operations of the products and `other_flop`."""
        return self.product_flop + self.other_flop


def attention_account(query: Shape, key: Shape, value_width: int, *, is_causal: bool) -> Account:
    """Returns the account of attention's two products; kernels skip scores that a causal mask
    hides.
    """
    batch, m, n = math.prod(query[:-2]), query[-2], key[-2]
    shown = sum(min(row + 1, n) for row in range(m)) if is_causal else m * n
    products = Product(batch, m, n, query[-1]), Product(batch, m, value_width, n)
    share = shown / max(m * n, 1)
    return Account(products, form="attention", least_share=share)


def convolution_account(
    data: Shape, weight: Shape, outputs: int, *, groups: int, stride: float, is_transposed: bool
) -> Account:
    """Returns the account of a convolution as its equivalent matrix product.

    Args:
        data, weight: shapes; the weight is [out, in / groups, ...], or [in, out / groups, ...] if
            the convolution is transposed.
        outputs: number of elements of the result.
        stride: mean over the axes.
    """
    window = math.prod(weight[2:])
    if is_transposed:
        places = math.prod(data) // max(weight[0], 1)
        product = Product(groups, places, weight[1] * window, weight[0] // groups)
    else:
        places = outputs // max(weight[0], 1)
        product = Product(groups, places, weight[0] // groups, weight[1] * window)
    share = float(least_product_share(max(window, 1), stride))
    return Account((product,), form="convolution", least_share=share)


def recurrent_account(tokens: int, batch: int, weights: Sequence[Shape]) -> Account:
    """Returns the account of recurrent layers: one input product for all tokens, then a dependent
    product per token.

    Args:
        weights: shapes of the matrices of each layer: input, state and, if any, its projection.
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
