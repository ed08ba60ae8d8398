"""Coarse kinds of operators, for tables of errors by operator."""

from __future__ import annotations

#: The first of these that is a part of an operator's name is its kind; ordered by cost.
_HEAVY = (
    "depthwise_conv2d", "group_conv2d", "winograd_conv2d", "conv2d_transpose", "conv3d_transpose",
    "conv3d", "conv2d", "conv1d", "batch_matmul", "dense",
)  # fmt: skip
_POOLS = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")


def operator_kind(operator: str) -> str:
    """Returns the kind of an operator, e.g. `conv2d` for `conv2d+add+relu`.

    Convolutions and matrix products have their own kinds; other operators are `pool`, `softmax`,
    `reduction` or `elementwise`. An empty name is `unknown`.
    """
    parts = operator.split("+")
    if not operator:
        return "unknown"
    for kind in _HEAVY:
        if kind in parts:
            return kind
    if any(part in _POOLS for part in parts):
        return "pool"
    if "softmax" in parts:
        return "softmax"
    if any(part.startswith("reduce_") for part in parts):
        return "reduction"
    return "elementwise"
