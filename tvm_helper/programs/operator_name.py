"""The operator name of a module that is in TVM's hands, in the words of the datasets."""

from __future__ import annotations

import re
from typing import Any

from tvm_helper.compat import s_tir

#: First match on a block's name names it; the words are those of
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


def operator_of(module: Any) -> str:
    """Returns the names of a module's blocks joined by `+`, such as `conv2d+add+relu`.

    Paddings are left out and stages of one operator count as one; `copy` when nothing else is left.

    Args:
        module: an `IRModule` with one function `main` that is not scheduled.
    """
    schedule = s_tir.Schedule(module, debug_mask="none", error_render_level="none")
    names: list[str] = []
    for handle in schedule.get_child_blocks(schedule.get_sblock("root")):
        block = schedule.get(handle)
        name = _block_name(block)
        if name and not (names and names[-1] == name):
            names.append(name)
    # topi names the sum of a transposed convolution after nothing, only its turned kernel tells.
    joined = "+".join(names).replace("kernel_transform+elementwise", "conv2d_transpose")
    return joined or "copy"


def _block_name(block: Any) -> str:
    name = str(block.name_hint).lower()
    if _LEFT_OUT.search(name):
        return ""
    for pattern, word in _PATTERNS:
        if pattern.search(name):
            is_batched = word == "dense" and _has_batched_operands(block)
            return "batch_matmul" if is_batched else word
    name = re.sub(r"_?\d+$", "", re.sub(r"^t_", "", name))
    return "elementwise" if name == "compute" else name


def _has_batched_operands(block: Any) -> bool:
    """Whether a matrix product multiplies a different right side in each batch."""
    return len(block.reads) > 1 and len(block.reads[-1].region) > 2
