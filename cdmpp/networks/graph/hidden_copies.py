"""Implicit copies in torch of tensors whose memory order does not suit an operator."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cdmpp.networks.graph.execution import Layout
from cdmpp.networks.graph.operator import OperatorCall, TensorInfo

_RESHAPES = frozenset({"reshape", "reshape_as", "flatten", "unflatten"})
#: Operators whose kernels need contiguous input.
_ROW_BY_ROW = frozenset(
    {"layer_norm", "group_norm", "instance_norm", "rms_norm", "softmax", "log_softmax"}
)
#: Operators that run in either memory format.
_EITHER = frozenset(
    {"batch_norm", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"}
)
_FOLDED = frozenset({"linear", "matmul"})


def copied_size(call: OperatorCall, layout: Layout) -> int:
    """Returns the bytes that torch copies before an operator, or instead of a view.

    Args:
        layout: memory format of the weights of convolutions.
    """
    first = next(iter(call.inputs), None)
    if first is None or first.strides is None:
        return 0
    if call.name in _RESHAPES:
        return 0 if _is_view(first, call.outputs[0].shape) else first.size
    if call.name == "contiguous":
        return 0 if _is_dense(first) else first.size
    if call.name in _ROW_BY_ROW:
        return 0 if _is_dense(first) else first.size
    if call.name == "conv2d" and len(first.shape) == 4:
        is_image = _is_pixel_by_pixel(first) or (layout == "nchw" and _is_dense(first))
        return 0 if is_image else first.size
    if call.name in _EITHER and len(first.shape) == 4:
        return 0 if _is_dense(first) or _is_pixel_by_pixel(first) else first.size
    if call.name in _FOLDED:
        return sum(_folded_size(one) for one in call.inputs)
    return 0


def projection_copies(call: OperatorCall) -> list[int]:
    """Returns the bytes that `nn.MultiheadAttention` copies around its first projection and around
    its attention, to bring queries, keys and values into one order.
    """
    size = call.inputs[0].size
    is_turned = call.options.get("batch_first", False) and len(call.inputs[0].shape) == 3
    return [(4 if is_turned else 3) * size, size]


def _folded_size(one: TensorInfo) -> int:
    """Returns the bytes to copy so that the outer axes of an operand can be merged."""
    if len(one.shape) < 3:
        return 0
    inner = 1 if len(one.shape) == 3 else 2
    outer = math.prod(one.shape[:-inner])
    return 0 if _is_view(one, (outer, *one.shape[-inner:])) else one.size


def _is_pixel_by_pixel(one: TensorInfo) -> bool:
    shape, strides = one.shape, one.strides or ()
    order = (0, 2, 3, 1)
    axes, steps = (tuple(values[axis] for axis in order) for values in (shape, strides))
    return _is_dense(TensorInfo(axes, strides=steps))


def _is_dense(one: TensorInfo) -> bool:
    """Returns whether a tensor is contiguous."""
    step = 1
    for side, stride in zip(reversed(one.shape), reversed(one.strides or ()), strict=True):
        if side != 1 and stride != step:
            return False
        step *= side
    return True


def _is_view(one: TensorInfo, shape: Sequence[int]) -> bool:
    """Returns whether a tensor can be viewed in another shape without a copy: each run of
    contiguous axes must hold whole axes of the shape.
    """
    if 0 in one.shape:
        return True
    axes = [
        (side, stride)
        for side, stride in zip(one.shape, one.strides or (), strict=True)
        if side != 1
    ]
    runs: list[int] = []
    for place, (side, stride) in enumerate(axes):
        before = axes[place - 1][1] if place else None
        if before == side * stride:
            runs[-1] *= side
        else:
            runs.append(side)
    wanted = [side for side in shape if side != 1]
    for run in runs:
        held = 1
        while held < run and wanted:
            held *= wanted.pop(0)
        if held != run:
            return False
    return not wanted
