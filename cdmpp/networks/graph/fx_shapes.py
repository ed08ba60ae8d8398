"""Fast output shapes of the most common calls; evaluating them in torch dominates tracing time."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cdmpp.networks.graph.execution import Layout

#: Modules whose output has the shape, type and strides of their only input.
_SAME = frozenset(
    {nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh,
     nn.LeakyReLU, nn.ELU, nn.Dropout, nn.Dropout2d, nn.Identity, nn.BatchNorm2d, nn.BatchNorm1d}
)  # fmt: skip
#: Modules whose output has the shape and type of their only input, and is contiguous.
_ROW_BY_ROW = frozenset({nn.LayerNorm, nn.GroupNorm})
#: Normalisations -> whether a module accepts an input; torch raises the error.
_ACCEPTS: dict[type[nn.Module], Callable[[Any, torch.Tensor], bool]] = {
    nn.BatchNorm1d: lambda norm, x: x.dim() in (2, 3) and x.shape[1] == norm.num_features,
    nn.BatchNorm2d: lambda norm, x: x.dim() == 4 and x.shape[1] == norm.num_features,
    nn.GroupNorm: lambda norm, x: x.dim() > 1 and x.shape[1] == norm.num_channels,
    nn.LayerNorm: lambda n, x: x.shape[-len(n.normalized_shape) :] == n.normalized_shape,
}
_POOLS = frozenset({nn.MaxPool2d, nn.AvgPool2d})
#: Functions of one tensor that keep its shape.
_SAME_FUNCTIONS = frozenset(
    {torch.relu, functional.relu, functional.relu6, functional.silu, functional.gelu,
     functional.hardswish, torch.sigmoid}
)  # fmt: skip
#: Element-wise functions of two operands.
_ELEMENTWISE = frozenset(
    {operator.add, operator.iadd, operator.mul, operator.imul, operator.sub, torch.add, torch.mul}
)


def module_shape(
    module: nn.Module, args: Sequence[Any], kwargs: Any, layout: Layout = "nchw"
) -> torch.Tensor | None:
    """Returns the output of a leaf module on the meta device; None if torch must evaluate it.

    Args:
        layout: memory format of the weights of convolutions.
    """
    if kwargs or len(args) != 1 or not isinstance(args[0], torch.Tensor):
        return None
    x = args[0]
    kind = type(module)
    if kind in _ACCEPTS and not _ACCEPTS[kind](module, x):
        return None
    if kind in _SAME:
        return torch.empty_like(x)
    if kind in _ROW_BY_ROW:
        return x.new_empty(x.shape)
    if kind is nn.Conv2d and isinstance(module, nn.Conv2d):
        return _convolution(module, x, layout)
    if kind in _POOLS:
        return _pool(module, x)
    if kind is nn.AdaptiveAvgPool2d and x.dim() == 4 and module.output_size in (1, (1, 1)):
        return x.new_empty((*x.shape[:2], 1, 1))
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        if x.dim() == 0 or x.shape[-1] != module.in_features:
            return None  # torch raises the error
        return x.new_empty((*x.shape[:-1], module.out_features))
    return None


def function_shape(target: Any, args: Sequence[Any], kwargs: Any) -> torch.Tensor | None:
    """Returns the output of a function on the meta device; None if torch must evaluate it."""
    if not args:
        return None
    x = args[0]
    if isinstance(x, torch.Tensor):
        if target in _SAME_FUNCTIONS:
            return torch.empty_like(x)
        if target in _ELEMENTWISE and len(args) == 2 and not kwargs:
            other = args[1]
            if isinstance(other, (int, float)) and x.is_floating_point():
                return torch.empty_like(x)
            if (
                isinstance(other, torch.Tensor)
                and other.shape == x.shape
                and other.dtype == x.dtype
            ):
                return torch.empty_like(x)
        return None
    return _joined(x, args[1:], kwargs) if target is torch.cat else None


def _convolution(module: nn.Conv2d, x: torch.Tensor, layout: Layout) -> torch.Tensor | None:
    if x.dim() != 4 or x.shape[1] != module.in_channels or isinstance(module.padding, str):
        return None
    sides = []
    for axis in range(2):
        reach = module.dilation[axis] * (module.kernel_size[axis] - 1)
        free = x.shape[2 + axis] + 2 * module.padding[axis] - reach - 1
        if free < 0:
            return None
        sides.append(free // module.stride[axis] + 1)
    shape = (x.shape[0], module.out_channels, *sides)
    return _image(x, shape, is_last=layout == "nhwc" or _is_channels_last(x))


def _is_channels_last(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _image(x: torch.Tensor, shape: tuple[int, ...], *, is_last: bool) -> torch.Tensor:
    """Returns an image of the type of `x` in channels_last or contiguous format."""
    wanted = torch.channels_last if is_last else torch.contiguous_format
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=wanted)


def _pool(module: Any, x: torch.Tensor) -> torch.Tensor | None:
    options = (module.kernel_size, module.stride, module.padding, getattr(module, "dilation", 1))
    is_plain = all(isinstance(option, int) for option in options)
    if x.dim() != 4 or not is_plain or options[3] != 1 or module.ceil_mode:
        return None
    if getattr(module, "return_indices", False):
        return None
    free = [side + 2 * module.padding - module.kernel_size for side in x.shape[2:]]
    if min(free) < 0 or 2 * module.padding > module.kernel_size:
        return None
    shape = (*x.shape[:2], *(side // module.stride + 1 for side in free))
    return _image(x, shape, is_last=_is_channels_last(x))


def _joined(tensors: Any, rest: Sequence[Any], kwargs: Any) -> torch.Tensor | None:
    """Returns the output of `torch.cat` along the channels."""
    axis = rest[0] if rest else kwargs.get("dim", 0)
    if axis != 1 or not isinstance(tensors, (list, tuple)):
        return None
    if any(not isinstance(tensor, torch.Tensor) or tensor.dim() != 4 for tensor in tensors):
        return None
    first: torch.Tensor = tensors[0]
    if len({(t.shape[0], t.shape[2:], t.dtype) for t in tensors}) != 1:
        return None
    if not all(tensor.is_contiguous() for tensor in tensors):
        return None  # torch chooses the memory format
    channels = sum(tensor.shape[1] for tensor in tensors)
    return first.new_empty((first.shape[0], channels, *first.shape[2:]))
