"""Times of the other operators of a CNN in torch: max-pooling, layout change, gradients.

Differs from the paper, which measured TensorFlow. As there, the first five of 15 runs are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cdmpp.analytic.conv.shapes import SHAPE_NAMES, ConvShapes
from cdmpp.errors import DeviceError, UsageError

TorchOperator = Literal["maxpool", "maxpool_gradient", "conv_1x1", "data_layout", "conv_grad"]

RUNS = 15
DROPPED_RUNS = 5


@dataclass(frozen=True)
class OperatorTime:
    """One measured operator.

    Attributes:
        row: index of the layer.
        operator: name of the operator; `conv_grad` yields `conv_forward`, `conv_grad_input` and
            `conv_grad_filter`.
        time_ms: mean of the runs that are not dropped.
    """

    row: int
    operator: str
    time_ms: float


def time_operators(
    operator: TorchOperator, layers: ConvShapes, *, device: str = "cuda"
) -> Iterator[OperatorTime]:
    """Yields the times of an operator for every layer.

    Args:
        device: `cuda` (timed by events) or `cpu` (timed by the clock).

    Raises:
        UsageError: unknown operator, or a layer with another filter for `conv_1x1`.
        DeviceError: no GPU.
    """
    import torch

    if operator not in get_args(TorchOperator):
        raise UsageError(
            f"unknown operator {operator!r}; known: {', '.join(get_args(TorchOperator))}"
        )
    others = layers.kernel[layers.kernel != 1]
    if operator == "conv_1x1" and len(others):
        raise UsageError(
            f"conv_1x1: {len(others)} of the {len(layers)} layers have other filters, e.g. "
            f"{others[0]}x{others[0]}; expected layers with 1x1 filters only"
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("torch finds no NVIDIA GPU; collect on a machine with a GPU")
    for row in range(len(layers)):
        sizes = {name: int(getattr(layers, name)[row]) for name in SHAPE_NAMES}
        for name, call in _calls(operator, sizes, device).items():
            yield OperatorTime(row, name, _mean_ms(call, device))


def _calls(
    operator: TorchOperator, sizes: dict[str, int], device: str
) -> dict[str, Callable[[], Any]]:
    """Returns name -> function to time."""
    import torch
    from torch.nn import functional
    from torch.nn.grad import conv2d_input, conv2d_weight

    cin, kernel, stride, padding = (
        sizes[name] for name in ("in_channels", "kernel", "stride", "padding")
    )
    width, cout = sizes["in_width"], sizes["out_channels"]
    data = torch.randn(sizes["batch"], cin, width, width, device=device)
    if operator == "data_layout":
        return {operator: lambda: data.contiguous(memory_format=torch.channels_last)}
    if operator in ("maxpool", "maxpool_gradient"):
        if operator == "maxpool":
            return {operator: lambda: functional.max_pool2d(data, kernel, stride, padding)}
        data.requires_grad_()
        pooled = functional.max_pool2d(data, kernel, stride, padding)
        weight = torch.ones_like(pooled)
        return {operator: lambda: torch.autograd.grad(pooled, data, weight, retain_graph=True)}
    weights = torch.randn(cout, cin, kernel, kernel, device=device)

    def forward() -> Any:
        return functional.conv2d(data, weights, stride=stride, padding=padding)

    if operator == "conv_1x1":
        return {operator: forward}
    gradient = torch.randn_like(forward())
    return {
        "conv_forward": forward,
        "conv_grad_input": lambda: conv2d_input(  # type: ignore[no-untyped-call]
            list(data.shape), weights, gradient, stride=stride, padding=padding
        ),
        "conv_grad_filter": lambda: conv2d_weight(  # type: ignore[no-untyped-call]
            data, list(weights.shape), gradient, stride=stride, padding=padding
        ),
    }


def _mean_ms(call: Callable[[], Any], device: str) -> float:
    import torch

    times = []
    for _ in range(RUNS):
        if device == "cuda":
            start, stop = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            start.record()
            call()
            stop.record()
            stop.synchronize()
            times.append(float(start.elapsed_time(stop)))
        else:
            begin = time.perf_counter()
            call()
            times.append((time.perf_counter() - begin) * 1e3)
    counted = times[DROPPED_RUNS:]
    return sum(counted) / len(counted)
