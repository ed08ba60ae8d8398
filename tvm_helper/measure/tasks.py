"""Tasks by name: `conv2d:ci=64,co=128,h=28,w=28` is an operator kind and its shape."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from cdmpp.devices.device_file import nearest
from cdmpp.errors import UsageError, last_line
from tvm_helper.compat import te, topi

Sizes = Mapping[str, int]


def _conv_activation(y: Any, s: Sizes) -> tuple[list[Any], Any]:
    """Returns (further arguments, result): bias and ReLU where they are asked for."""
    if not s["relu"]:
        return [], y
    channels = y.shape[1]
    bias = te.placeholder((channels, *([1] * (len(y.shape) - 2))), name="bias")
    return [bias], topi.nn.relu(topi.add(y, bias))


def _conv1d(s: Sizes) -> list[Any]:
    x = te.placeholder((s["n"], s["ci"], s["w"]), name="data")
    w = te.placeholder((s["co"], s["ci"], s["k"]), name="kernel")
    y = topi.nn.conv1d_ncw(x, w, s["s"], s["p"], s["d"])
    more, y = _conv_activation(y, s)
    return [x, w, *more, y]


def _conv2d(s: Sizes) -> list[Any]:
    x = te.placeholder((s["n"], s["ci"], s["h"], s["w"]), name="data")
    w = te.placeholder((s["co"], s["ci"], s["k"], s["k"]), name="kernel")
    y = topi.nn.conv2d_nchw(x, w, s["s"], s["p"], s["d"])
    more, y = _conv_activation(y, s)
    return [x, w, *more, y]


def _group_conv2d(s: Sizes) -> list[Any]:
    x = te.placeholder((s["n"], s["ci"], s["h"], s["w"]), name="data")
    w = te.placeholder((s["co"], s["ci"] // s["g"], s["k"], s["k"]), name="kernel")
    y = topi.nn.group_conv2d_nchw(x, w, s["s"], s["p"], s["d"], s["g"])
    more, y = _conv_activation(y, s)
    return [x, w, *more, y]


def _depthwise_conv2d(s: Sizes) -> list[Any]:
    x = te.placeholder((s["n"], s["c"], s["h"], s["w"]), name="data")
    w = te.placeholder((s["c"], 1, s["k"], s["k"]), name="kernel")
    y = topi.nn.depthwise_conv2d_nchw(x, w, s["s"], s["p"], s["d"])
    more, y = _conv_activation(y, s)
    return [x, w, *more, y]


def _conv2d_transpose(s: Sizes) -> list[Any]:
    x = te.placeholder((s["n"], s["ci"], s["h"], s["w"]), name="data")
    w = te.placeholder((s["ci"], s["co"], s["k"], s["k"]), name="kernel")
    strides, padding = (s["s"], s["s"]), (s["p"], s["p"], s["p"], s["p"])
    y = topi.nn.conv2d_transpose_nchw(x, w, strides, padding, "float32", (0, 0))
    more, y = _conv_activation(y, s)
    return [x, w, *more, y]


def _conv3d(s: Sizes) -> list[Any]:
    x = te.placeholder((s["n"], s["ci"], s["t"], s["h"], s["w"]), name="data")
    w = te.placeholder((s["co"], s["ci"], s["k"], s["k"], s["k"]), name="kernel")
    y = topi.nn.conv3d_ncdhw(x, w, s["s"], s["p"], s["d"], 1)
    more, y = _conv_activation(y, s)
    return [x, w, *more, y]


def _dense(s: Sizes) -> list[Any]:
    a = te.placeholder((s["m"], s["k"]), name="data")
    b = te.placeholder((s["n"], s["k"]), name="weight")
    y = topi.nn.dense(a, b)
    if not s["relu"]:
        return [a, b, y]
    bias = te.placeholder((s["n"],), name="bias")
    return [a, b, bias, topi.nn.relu(topi.add(y, bias))]


def _matmul(s: Sizes) -> list[Any]:
    a = te.placeholder((s["m"], s["k"]), name="A")
    b = te.placeholder((s["k"], s["n"]), name="B")
    return [a, b, topi.nn.matmul(a, b)]


def _batch_matmul(s: Sizes) -> list[Any]:
    a = te.placeholder((s["b"], s["m"], s["k"]), name="x")
    b = te.placeholder((s["b"], s["n"], s["k"]), name="y")
    return [a, b, topi.nn.batch_matmul(a, b)]


def _softmax(s: Sizes) -> list[Any]:
    x = te.placeholder((s["m"], s["n"]), name="data")
    return [x, topi.nn.softmax(x)]


def _layer_norm(s: Sizes) -> list[Any]:
    x = te.placeholder((s["m"], s["n"]), name="data")
    gamma, beta = (te.placeholder((s["n"],), name=name) for name in ("gamma", "beta"))
    return [x, gamma, beta, topi.nn.layer_norm(x, gamma, beta, [1])]


def _pool2d(kind: str) -> Callable[[Sizes], list[Any]]:
    def pool(s: Sizes) -> list[Any]:
        x = te.placeholder((s["n"], s["c"], s["h"], s["w"]), name="data")
        p = s["p"]
        y = topi.nn.pool2d(x, (s["k"], s["k"]), (s["s"], s["s"]), (1, 1), (p, p, p, p), kind)
        return [x, y]

    return pool


def _global_avg_pool2d(s: Sizes) -> list[Any]:
    x = te.placeholder((s["n"], s["c"], s["h"], s["w"]), name="data")
    return [x, topi.nn.adaptive_pool(x, (1, 1), "avg")]


def _reduce(operator: str) -> Callable[[Sizes], list[Any]]:
    def reduce(s: Sizes) -> list[Any]:
        x = te.placeholder((s["m"], s["n"]), name="data")
        return [x, getattr(topi, operator)(x, axis=1)]

    return reduce


def _elementwise(operator: str) -> Callable[[Sizes], list[Any]]:
    def unary(s: Sizes) -> list[Any]:
        x = te.placeholder((s["m"], s["n"]), name="data")
        return [x, getattr(topi, operator)(x)]

    return unary


def _relu(s: Sizes) -> list[Any]:
    x = te.placeholder((s["m"], s["n"]), name="data")
    return [x, topi.nn.relu(x)]


def _add(s: Sizes) -> list[Any]:
    a = te.placeholder((s["m"], s["n"]), name="a")
    b = te.placeholder((s["m"], s["n"]), name="b")
    return [a, b, topi.add(a, b)]


def _transpose(s: Sizes) -> list[Any]:
    x = te.placeholder((s["b"], s["m"], s["n"]), name="data")
    return [x, topi.transpose(x, (0, 2, 1))]


_IMAGE = {"n": 1, "ci": 64, "h": 28, "w": 28, "co": 64, "k": 3, "s": 1, "p": 1, "d": 1, "relu": 0}
_DEPTHWISE = {"n": 1, "c": 64, "h": 28, "w": 28, "k": 3, "s": 1, "p": 1, "d": 1, "relu": 0}
_POOL = {"n": 1, "c": 64, "h": 56, "w": 56, "k": 3, "s": 2, "p": 1}
_MATRIX = {"m": 512, "n": 512}

#: Operator kind -> (what makes its tensors, sizes with their defaults).
_OPERATORS: Mapping[str, tuple[Callable[[Sizes], list[Any]], Sizes]] = types.MappingProxyType({
    "conv1d": (_conv1d, {"n": 1, "ci": 64, "w": 256, "co": 64, "k": 3, "s": 1, "p": 1, "d": 1,
                         "relu": 0}),
    "conv2d": (_conv2d, _IMAGE),
    "group_conv2d": (_group_conv2d, {**_IMAGE, "g": 4}),
    "depthwise_conv2d": (_depthwise_conv2d, _DEPTHWISE),
    "conv2d_transpose": (_conv2d_transpose, {"n": 1, "ci": 64, "h": 14, "w": 14, "co": 32, "k": 4,
                                             "s": 2, "p": 1, "relu": 0}),
    "conv3d": (_conv3d, {"n": 1, "ci": 16, "t": 8, "h": 28, "w": 28, "co": 16, "k": 3, "s": 1,
                         "p": 1, "d": 1, "relu": 0}),
    "dense": (_dense, {"m": 128, "n": 256, "k": 256, "relu": 0}),
    "matmul": (_matmul, {"m": 256, "n": 256, "k": 256}),
    "batch_matmul": (_batch_matmul, {"b": 12, "m": 128, "n": 128, "k": 64}),
    "softmax": (_softmax, _MATRIX),
    "layer_norm": (_layer_norm, _MATRIX),
    "max_pool2d": (_pool2d("max"), _POOL),
    "avg_pool2d": (_pool2d("avg"), _POOL),
    "global_avg_pool2d": (_global_avg_pool2d, {"n": 1, "c": 512, "h": 7, "w": 7}),
    "reduce_sum": (_reduce("sum"), _MATRIX),
    "reduce_max": (_reduce("max"), _MATRIX),
    "add": (_add, _MATRIX),
    "relu": (_relu, _MATRIX),
    "tanh": (_elementwise("tanh"), _MATRIX),
    "sigmoid": (_elementwise("sigmoid"), _MATRIX),
    "erf": (_elementwise("erf"), _MATRIX),
    "transpose": (_transpose, {"b": 12, "m": 128, "n": 64}),
})  # fmt: skip


#: Operator names that the names of topi's blocks do not tell.
OPERATOR_OF_KIND: Mapping[str, str] = types.MappingProxyType({"reduce_max": "reduce_max"})


def task_names() -> dict[str, str]:
    """Returns operator kind -> its sizes and their defaults as they are written after the colon."""
    return {
        kind: ",".join(f"{name}={value}" for name, value in sizes.items())
        for kind, (_, sizes) in sorted(_OPERATORS.items())
    }


def parse_task(text: str) -> tuple[str, dict[str, int]]:
    """Returns (operator kind, every size) of a task's name such as `dense:m=64,n=512`.

    Raises:
        UsageError: an unknown kind or size, or a size that is no number.
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in _OPERATORS:
        raise UsageError(
            f"unknown task {text!r}{nearest(kind, _OPERATORS)}; expected KIND:SIZE=N,... with one "
            f"of {', '.join(sorted(_OPERATORS))}, or a Python file (.py)"
        )
    sizes = dict(_OPERATORS[kind][1])
    for part in filter(None, (part.strip() for part in rest.split(","))):
        name, _, value = part.partition("=")
        if name not in sizes or not value.isdecimal():
            raise UsageError(
                f"task {text!r}: cannot use {part!r}; expected sizes of {kind}: "
                f"{task_names()[kind]}"
            )
        sizes[name] = int(value)
    return kind, sizes


def named_function(text: str) -> tuple[str, Any]:
    """Returns (full name, unscheduled `PrimFunc`) of a task's name.

    Raises:
        UsageError: see `parse_task`, or sizes of which the operator cannot be made.
    """
    kind, sizes = parse_task(text)
    name = f"{kind}:{','.join(f'{size}={value}' for size, value in sizes.items())}"
    try:
        return name, te.create_prim_func(_OPERATORS[kind][0](sizes))
    except Exception as error:  # TVM raises whatever its checks do
        raise UsageError(
            f"task {name}: cannot be made of these sizes ({last_line(error)}); choose others"
        ) from None
