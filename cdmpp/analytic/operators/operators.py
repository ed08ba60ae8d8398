"""Framework operators: operations and bytes by kind and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cdmpp.analytic.rows import Rows
from cdmpp.arrays import BoolArray, FloatArray, TextArray
from cdmpp.errors import UsageError

#: Matrix products: (batch, m, k) x (batch, k, n); a `linear` has one weight matrix and a bias.
MATMUL_KINDS: Final = ("bmm", "linear")
#: Element-wise operators on two tensors; a name that ends in `u` takes a tensor and a scalar.
BINARY_KINDS: Final = ("add", "mul", "div", "pow")
UNARY_KINDS: Final = ("addu", "mulu", "divu", "powu", "relu", "tanh", "gelu")
ELEMENTWISE_KINDS: Final = (*BINARY_KINDS, *UNARY_KINDS)
#: Every kind of operator; softmax and layer norm (`ln`) work along the columns.
OPERATOR_KINDS: Final = (*MATMUL_KINDS, "softmax", "ln", *ELEMENTWISE_KINDS)

#: Bytes of one element.
DTYPE_BYTES: Final[Mapping[str, int]] = {"float32": 4}

# Operations per element by the formula; a special function counts as one.
_FLOP_PER_ELEMENT: Final[Mapping[str, float]] = {"softmax": 4.0, "ln": 7.0}


@dataclass(frozen=True)
class Operators(Rows):
    """N operators; a size that a kind does not use is 1.

    Attributes:
        kind: text [N], one of `OPERATOR_KINDS`.
        batch: float64 [N], number of products of a `bmm`; leading dimension of a `linear`.
        m: float64 [N], rows of the left matrix.
        n: float64 [N], columns of the right matrix.
        k: float64 [N], length of the reduction.
        rows: float64 [N], rows of a softmax, layer norm or element-wise operator.
        cols: float64 [N], columns of such an operator.
        bytes: float64 [N], distinct bytes that are read and written.
    """

    kind: TextArray
    batch: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray
    rows: FloatArray
    cols: FloatArray
    bytes: FloatArray

    @property
    def flop(self) -> FloatArray:
        """float64 [N], floating-point operations; a multiply-add counts as two."""
        products = 2.0 * self.batch * self.m * self.n * self.k
        each = np.array([_FLOP_PER_ELEMENT.get(str(kind), 1.0) for kind in self.kind])
        return np.where(is_matmul(self.kind), products, each * self.rows * self.cols)


def is_matmul(kind: TextArray) -> BoolArray:
    """Returns bool [N], whether a kind is a matrix product."""
    return np.isin(kind, MATMUL_KINDS)


def make_operators(
    kind: Sequence[str] | TextArray,
    shape: Mapping[str, Sequence[float] | FloatArray],
    *,
    dtype: str = "float32",
    moved_elements: FloatArray | None = None,
) -> Operators:
    """Returns operators of one family (matrix products, or row-wise and element-wise operators).

    Args:
        shape: `batch` (default 1), `m`, `n`, `k`, or `rows`, `cols`; [N] each.
        moved_elements: float64 [N], elements read and written, if broadcasting reduces them; None =
            every tensor of the kind in full.

    Raises:
        UsageError: unknown kind or data type, missing or superfluous size, or a size below 1.
    """
    kinds = np.asarray(kind, dtype=np.str_)
    for name in sorted(set(kinds.tolist()) - set(OPERATOR_KINDS)):
        raise UsageError(f"unknown operator {name!r}; expected one of {', '.join(OPERATOR_KINDS)}")
    if dtype not in DTYPE_BYTES:
        raise UsageError(f"unsupported type {dtype!r}; expected one of {', '.join(DTYPE_BYTES)}")
    products = is_matmul(kinds)
    if products.any() and not products.all():
        raise UsageError("matrix products and other operators cannot be in one table")
    wanted = ("m", "n", "k") if products.any() else ("rows", "cols")
    allowed = {*wanted, "batch"} if products.any() else set(wanted)
    missing = [name for name in wanted if name not in shape]
    surplus = sorted(set(shape) - allowed)
    if missing or surplus:
        raise UsageError(
            f"the shape has {', '.join(sorted(shape)) or 'no sizes'}, expected {', '.join(wanted)}"
            + (" (and batch)" if products.any() else "")
        )
    one = np.ones(len(kinds))
    size = {
        name: np.asarray(shape.get(name, one), np.float64)
        for name in ("batch", "m", "n", "k", "rows", "cols")
    }
    for name, values in size.items():
        if values.shape != kinds.shape or not np.all(values >= 1):
            raise UsageError(f"{name}: expected one size of at least 1 for each operator")
    elements = _elements(kinds, size) if moved_elements is None else moved_elements
    return Operators(kind=kinds, **size, bytes=elements * float(DTYPE_BYTES[dtype]))


def _elements(kind: TextArray, size: Mapping[str, FloatArray]) -> FloatArray:
    batch, m, n, k = (size[name] for name in ("batch", "m", "n", "k"))
    is_linear = kind == "linear"
    right = np.where(is_linear, 1.0, batch) * k * n + np.where(is_linear, n, 0.0)
    products = batch * m * k + right + batch * m * n
    tensors = np.where(np.isin(kind, BINARY_KINDS), 3.0, 2.0)
    return np.asarray(
        np.where(is_matmul(kind), products, tensors * size["rows"] * size["cols"]), np.float64
    )
