"""Coarse kinds of operators, for tables that say where a model errs."""

from __future__ import annotations

#: The first of these that is a part of an operator's name is its kind: what costs the most time.
_HEAVY = (
    "depthwise_conv2d", "group_conv2d", "winograd_conv2d", "conv2d_transpose", "conv3d_transpose",
    "conv3d", "conv2d", "conv1d", "batch_matmul", "dense",
)  # fmt: skip
_POOLS = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")


def operator_kind(operator: str) -> str:
    """Returns the kind of an operator such as `conv2d+add+relu`: here `conv2d`.

    Convolutions and matrix products have kinds of their own; then `pool`, `softmax`, `reduction`
    and `elementwise` for everything else. An empty name is `unknown`.
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
