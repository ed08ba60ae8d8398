"""Operations of torch's operators, and the kernels that they launch, from names and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

Shape = Sequence[int]

#: Operators that only describe a tensor anew.
_VIEWS = frozenset({
    "t", "transpose", "view", "reshape", "expand", "as_strided", "permute", "detach", "detach_",
    "squeeze", "unsqueeze", "slice", "select", "narrow", "alias", "flatten", "unflatten", "split",
    "chunk", "resolve_conj", "resolve_neg", "TBackward0", "ViewBackward0", "empty", "empty_like",
    "empty_strided", "lift_fresh",
})  # fmt: skip
_PRODUCTS = frozenset({"mm", "bmm", "matmul", "linear", "addmm", "baddbmm"})
_BACKWARD_PRODUCTS = frozenset({"AddmmBackward0", "MmBackward0", "BmmBackward0"})


def is_view(name: str) -> bool:
    """Whether an operator computes nothing."""
    return name in _VIEWS


def product_sizes(name: str, shapes: Sequence[Shape]) -> tuple[int, int, int, int] | None:
    """Returns (batch, m, n, k) of a matrix product; None where it is none or does not fit.

    Args:
        name: without namespace.
        shapes: of the inputs that have one.
    """
    if name not in _PRODUCTS:
        return None
    operands = list(shapes)
    if name in ("addmm", "baddbmm"):
        operands = operands[1:]
    if len(operands) < 2 or len(operands[0]) < 1 or len(operands[1]) < 2:
        return None
    left, right = operands[0], operands[1]
    k = left[-1]
    if name == "linear":
        return (1, math.prod(left[:-1]), right[0], k) if right[-1] == k else None
    if right[-2] != k or len(left) < 2:
        return None
    return math.prod(left[:-2]), left[-2], right[-1], k


def torch_work(name: str, shapes: Sequence[Shape]) -> float | None:
    """Returns the floating-point operations of an operator; None where they are not known.

    Products and convolutions count a product and its sum as two; whatever else has tensors counts
    one an element of its largest one.
    """
    sizes = product_sizes(name, shapes)
    if sizes is not None:
        batch, m, n, k = sizes
        return 2.0 * batch * m * n * k
    if name in _PRODUCTS or name in _BACKWARD_PRODUCTS or "conv" in name.lower():
        return None
    return float(max((math.prod(shape) for shape in shapes), default=0)) or None
