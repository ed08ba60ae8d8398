"""Operator name of a tensor program from the names of its blocks, in the datasets' vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: The first pattern that matches a block's name gives its operator name, one of
#: `cdmpp.datasets.tenset.operator_kinds`.
_PATTERNS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"winograd", "winograd_conv2d"),
        (r"conv(\d)d_?transpose|transpose_?conv(\d)d", "conv2d_transpose"),
        (r"depthwise_?conv2d", "depthwise_conv2d"),
        (r"group_conv2d", "group_conv2d"),
        (r"conv3d", "conv3d"),
        (r"conv2d", "conv2d"),
        (r"conv1d", "conv1d"),
        (r"batch_?matmul", "batch_matmul"),
        (r"matmul|dense|gemm", "dense"),
        (r"softmax", "softmax"),
        (r"adaptive_pool_max", "adaptive_max_pool"),
        (r"adaptive_pool", "adaptive_avg_pool"),
        (r"pool_max", "max_pool"),
        (r"pool", "avg_pool"),
        (r"red_max|_max_red|reduce_max", "reduce_max"),
        (r"_red$|reduce|rxplaceholder_red", "reduce_sum"),
    )
)
_LEFT_OUT = re.compile(r"^(data_)?pad|_pad$|^kernel_dilated$|^data_dil")
#: Blocks of a Winograd convolution other than the one with `winograd` in its name.
_WINOGRAD_STAGES = frozenset(
    ("a", "b", "g", "input_tile", "data_pack", "kernel_pack", "bgemm", "inverse")
)


def operator_of_blocks(blocks: Sequence[tuple[str, int]]) -> str:
    """Returns the names of a program's blocks joined by `+`, such as `conv2d+add+relu`.

    Paddings are left out, and stages of one operator count as one. The name is `copy` if nothing
    is left.

    Args:
        blocks: (name, number of axes of the last operand) of the unscheduled program's blocks, in
            order; 0 axes with fewer than two operands.
    """
    is_winograd = any("winograd" in name.lower() for name, _ in blocks)
    names: list[str] = []
    for block, operand_axes in blocks:
        if is_winograd and block.lower() in _WINOGRAD_STAGES:
            continue
        name = _block_name(block.lower(), operand_axes)
        if name and not (names and names[-1] == name):
            names.append(name)
    # topi's sum of a transposed convolution has no name of its own; its flipped kernel has.
    joined = "+".join(names).replace("kernel_transform+elementwise", "conv2d_transpose")
    return joined or "copy"


def _block_name(name: str, operand_axes: int) -> str:
    if _LEFT_OUT.search(name):
        return ""
    for pattern, word in _PATTERNS:
        if pattern.search(name):
            # A matrix product with a batched second operand.
            return "batch_matmul" if word == "dense" and operand_axes > 2 else word
    name = re.sub(r"_?\d+$", "", re.sub(r"^t_", "", name))
    return "elementwise" if name == "compute" else name
