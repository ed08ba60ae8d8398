"""Named tasks: `conv2d:ci=64,co=128,h=28,w=28` is an operator kind with its sizes."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from cdmpp.errors import UsageError, last_line
from cdmpp.text import nearest
from tvm_helper.compat import te, topi

Sizes = Mapping[str, Any]
#: Data type of a task's tensors (`dtype=int8`) -> data type of its sums.
DTYPES: Mapping[str, str] = types.MappingProxyType({
    "float32": "float32", "float64": "float64", "float16": "float16", "bfloat16": "bfloat16",
    "int8": "int32", "int16": "int32", "int32": "int32",
})  # fmt: skip
_DTYPE = "float32"


def _tensor(s: Sizes, name: str, axes: str, dtype: str | None = None) -> Any:
    """Returns an argument; each word of `axes` is a number or the name of a size."""
    shape = [int(axis) if axis.isdecimal() else s[axis] for axis in axes.split()]
    return te.placeholder(shape, dtype=dtype or s["dtype"], name=name)


def _sums(s: Sizes) -> str:
    return DTYPES[s["dtype"]]


def _activated(x: Any, w: Any, y: Any, s: Sizes) -> list[Any]:
    """Returns arguments and result of a convolution, with bias and ReLU if `relu` is set."""
    if not s["relu"]:
        return [x, w, y]
    channels = y.shape[1]
    bias = te.placeholder((channels, *([1] * (len(y.shape) - 2))), y.dtype, name="bias")
    return [x, w, bias, topi.nn.relu(topi.add(y, bias))]


def _conv1d(s: Sizes) -> list[Any]:
    x, w = _tensor(s, "data", "n ci w"), _tensor(s, "kernel", "co ci k")
    y = topi.nn.conv1d_ncw(x, w, s["s"], s["p"], s["d"], _sums(s))
    return _activated(x, w, y, s)


def _conv2d(s: Sizes) -> list[Any]:
    x, w = _tensor(s, "data", "n ci h w"), _tensor(s, "kernel", "co ci k k")
    y = topi.nn.conv2d_nchw(x, w, s["s"], s["p"], s["d"], out_dtype=_sums(s))
    return _activated(x, w, y, s)


def _group_conv2d(s: Sizes) -> list[Any]:
    x = _tensor(s, "data", "n ci h w")
    w = _tensor(s, "kernel", f"co {s['ci'] // s['g']} k k")
    y = topi.nn.group_conv2d_nchw(x, w, s["s"], s["p"], s["d"], s["g"], out_dtype=_sums(s))
    return _activated(x, w, y, s)


def _depthwise_conv2d(s: Sizes) -> list[Any]:
    x, w = _tensor(s, "data", "n c h w"), _tensor(s, "kernel", "c 1 k k")
    y = topi.nn.depthwise_conv2d_nchw(x, w, s["s"], s["p"], s["d"], _sums(s))
    return _activated(x, w, y, s)


def _conv2d_transpose(s: Sizes) -> list[Any]:
    x, w = _tensor(s, "data", "n ci h w"), _tensor(s, "kernel", "ci co k k")
    strides, padding = (s["s"], s["s"]), (s["p"], s["p"], s["p"], s["p"])
    y = topi.nn.conv2d_transpose_nchw(x, w, strides, padding, _sums(s), (0, 0))
    return _activated(x, w, y, s)


def _conv3d(s: Sizes) -> list[Any]:
    x, w = _tensor(s, "data", "n ci t h w"), _tensor(s, "kernel", "co ci k k k")
    y = topi.nn.conv3d_ncdhw(x, w, s["s"], s["p"], s["d"], 1)
    return _activated(x, w, y, s)


def _dense(s: Sizes) -> list[Any]:
    a, b = _tensor(s, "data", "m k"), _tensor(s, "weight", "n k")
    y = topi.nn.dense(a, b, out_dtype=_sums(s))
    if not s["relu"]:
        return [a, b, y]
    bias = _tensor(s, "bias", "n", y.dtype)
    return [a, b, bias, topi.nn.relu(topi.add(y, bias))]


def _matmul(s: Sizes) -> list[Any]:
    a, b = _tensor(s, "A", "m k"), _tensor(s, "B", "k n")
    k = te.reduce_axis((0, s["k"]), name="k")
    if s["dtype"] == _sums(s):
        return [a, b, topi.nn.matmul(a, b)]
    wide = [lambda i, j, one=one: one[i, j].astype(_sums(s)) for one in (a, b)]
    return [a, b, te.compute((s["m"], s["n"]), lambda i, j: te.sum(
        wide[0](i, k) * wide[1](k, j), axis=k), name="T_matmul")]  # fmt: skip


def _batch_matmul(s: Sizes) -> list[Any]:
    a, b = _tensor(s, "x", "b m k"), _tensor(s, "y", "b n k")
    return [a, b, topi.nn.batch_matmul(a, b, out_dtype=_sums(s))]


def _matvec(s: Sizes) -> list[Any]:
    a, x = _tensor(s, "A", "m k"), _tensor(s, "x", "k")
    k = te.reduce_axis((0, s["k"]), name="k")
    wide = _sums(s)
    return [a, x, te.compute(
        (s["m"],), lambda i: te.sum(a[i, k].astype(wide) * x[k].astype(wide), axis=k), name="matvec"
    )]  # fmt: skip


def _attention(s: Sizes) -> list[Any]:
    q, k, v = (_tensor(s, *one) for one in (("q", "b m d"), ("k", "b n d"), ("v", "b n d")))
    scores = topi.divide(topi.nn.batch_matmul(q, k), te.const(s["d"] ** 0.5, s["dtype"]))
    return [q, k, v, topi.nn.batch_matmul(topi.nn.softmax(scores), v, transpose_b=False)]


def _softmax(s: Sizes) -> list[Any]:
    x = _tensor(s, "data", "m n")
    return [x, topi.nn.softmax(x)]


def _layer_norm(s: Sizes) -> list[Any]:
    x = _tensor(s, "data", "m n")
    gamma, beta = (_tensor(s, name, "n") for name in ("gamma", "beta"))
    return [x, gamma, beta, topi.nn.layer_norm(x, gamma, beta, [1])]


def _rms_norm(s: Sizes) -> list[Any]:
    x, weight = _tensor(s, "data", "m n"), _tensor(s, "weight", "n")
    return [x, weight, topi.nn.rms_norm(x, weight, [1])]


def _pool2d(kind: str) -> Callable[[Sizes], list[Any]]:
    def pool(s: Sizes) -> list[Any]:
        x = _tensor(s, "data", "n c h w")
        p = s["p"]
        y = topi.nn.pool2d(x, (s["k"], s["k"]), (s["s"], s["s"]), (1, 1), (p, p, p, p), kind)
        return [x, y]

    return pool


def _global_avg_pool2d(s: Sizes) -> list[Any]:
    x = _tensor(s, "data", "n c h w")
    return [x, topi.nn.adaptive_pool(x, (1, 1), "avg")]


def _reduce(operator: str, axis: int | None = 1) -> Callable[[Sizes], list[Any]]:
    def reduce(s: Sizes) -> list[Any]:
        x = _tensor(s, "data", "m n")
        return [x, getattr(topi, operator)(x, axis=axis)]

    return reduce


def _cumsum(s: Sizes) -> list[Any]:
    x = _tensor(s, "data", "m n")
    return [x, topi.cumsum(x, axis=1)]


def _elementwise(operator: str) -> Callable[[Sizes], list[Any]]:
    def unary(s: Sizes) -> list[Any]:
        x = _tensor(s, "data", "m n")
        return [x, getattr(topi, operator)(x)]

    return unary


def _relu(s: Sizes) -> list[Any]:
    x = _tensor(s, "data", "m n")
    return [x, topi.nn.relu(x)]


def _add(s: Sizes) -> list[Any]:
    a, b = _tensor(s, "a", "m n"), _tensor(s, "b", "m n")
    return [a, b, topi.add(a, b)]


def _axpy(s: Sizes) -> list[Any]:
    x, y = _tensor(s, "x", "n"), _tensor(s, "y", "n")
    two = te.const(2, s["dtype"])
    return [x, y, te.compute((s["n"],), lambda i: two * x[i] + y[i], name="axpy")]


def _chain(s: Sizes) -> list[Any]:
    """Returns a chain of element-wise operators; every third one is unary."""
    a, b = _tensor(s, "a", "m n"), _tensor(s, "b", "m n")
    functions = (topi.tanh, topi.exp, topi.sigmoid) if "float" in s["dtype"] else (topi.abs,)
    y = a
    for step in range(s["steps"]):
        binary = topi.multiply(y, b) if step % 3 == 0 else topi.add(y, a)
        y = functions[step // 3 % len(functions)](y) if step % 3 == 2 else binary
    return [a, b, y]


def _transpose(s: Sizes) -> list[Any]:
    x = _tensor(s, "data", "b m n")
    return [x, topi.transpose(x, (0, 2, 1))]


def _gather(s: Sizes) -> list[Any]:
    table, rows = _tensor(s, "table", "rows n"), _tensor(s, "indices", "m", "int32")
    shape = (s["m"], s["n"])
    return [table, rows, te.compute(shape, lambda i, j: table[rows[i], j], name="T_take")]


def _pad(s: Sizes) -> list[Any]:
    x = _tensor(s, "data", "n c h w")
    return [x, topi.nn.pad(x, (0, 0, s["p"], s["p"]))]


def _concatenate(s: Sizes) -> list[Any]:
    a, b = _tensor(s, "a", "m n"), _tensor(s, "b", "m n")
    return [a, b, topi.concatenate((a, b), axis=1)]


_IMAGE = {"n": 1, "ci": 64, "h": 28, "w": 28, "co": 64, "k": 3, "s": 1, "p": 1, "d": 1, "relu": 0}
_DEPTHWISE = {"n": 1, "c": 64, "h": 28, "w": 28, "k": 3, "s": 1, "p": 1, "d": 1, "relu": 0}
_POOL = {"n": 1, "c": 64, "h": 56, "w": 56, "k": 3, "s": 2, "p": 1}
_MATRIX = {"m": 512, "n": 512}

#: Operator kind -> (function that makes its tensors, sizes with their defaults).
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
    "column_sum": (_reduce("sum", 0), _MATRIX),
    "whole_sum": (_reduce("sum", None), _MATRIX),
    "argmax": (_reduce("argmax"), _MATRIX),
    "cumsum": (_cumsum, _MATRIX),
    "rms_norm": (_rms_norm, _MATRIX),
    "matvec": (_matvec, {"m": 1024, "k": 1024}),
    "attention": (_attention, {"b": 12, "m": 128, "n": 128, "d": 64}),
    "axpy": (_axpy, {"n": 1 << 20}),
    "chain": (_chain, {**_MATRIX, "steps": 6}),
    "gather": (_gather, {"rows": 30000, "n": 256, "m": 512}),
    "pad": (_pad, {"n": 1, "c": 64, "h": 56, "w": 56, "p": 1}),
    "concatenate": (_concatenate, _MATRIX),
    "add": (_add, _MATRIX),
    "relu": (_relu, _MATRIX),
    "tanh": (_elementwise("tanh"), _MATRIX),
    "sigmoid": (_elementwise("sigmoid"), _MATRIX),
    "erf": (_elementwise("erf"), _MATRIX),
    "transpose": (_transpose, {"b": 12, "m": 128, "n": 64}),
})  # fmt: skip


#: Operator kind -> operator name, where topi's block names do not identify the operator.
OPERATOR_OF_KIND: Mapping[str, str] = types.MappingProxyType(
    {"reduce_max": "reduce_max", "cumsum": "cumsum", "argmax": "argmax"}
)


def task_names() -> dict[str, str]:
    """Returns operator kind -> its sizes with defaults, as written after the colon."""
    return {
        kind: ",".join(f"{name}={value}" for name, value in sizes.items())
        for kind, (_, sizes) in sorted(_OPERATORS.items())
    }


def parse_task(text: str) -> tuple[str, dict[str, Any]]:
    """Returns (operator kind, every size and `dtype`) of a task's name such as `dense:m=64,n=512`.

    Raises:
        UsageError: an unknown kind, size or type, or a size that is not a number.
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in _OPERATORS:
        raise UsageError(
            f"unknown task {text!r}{nearest(kind, _OPERATORS)}; expected KIND:SIZE=N,... with one "
            f"of {', '.join(sorted(_OPERATORS))}, or a Python file (.py)"
        )
    sizes: dict[str, Any] = {**_OPERATORS[kind][1], "dtype": _DTYPE}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        name, _, value = part.partition("=")
        is_right = value in DTYPES if name == "dtype" else name in sizes and value.isdecimal()
        if not is_right:
            raise UsageError(
                f"task {text!r}: cannot use {part!r}; expected sizes of {kind}: "
                f"{task_names()[kind]}, or dtype={'|'.join(DTYPES)}"
            )
        sizes[name] = value if name == "dtype" else int(value)
    return kind, sizes


def named_function(text: str) -> tuple[str, Any]:
    """Returns (full name, unscheduled `PrimFunc`) of a task's name.

    Raises:
        UsageError: see `parse_task`, or sizes that are invalid for the operator.
    """
    kind, sizes = parse_task(text)
    told = {name: value for name, value in sizes.items() if value != _DTYPE}
    name = f"{kind}:{','.join(f'{size}={value}' for size, value in told.items())}"
    try:
        tensors = _OPERATORS[kind][0](sizes)
        shapes = {one.name: [int(size) for size in one.shape] for one in tensors}
        reason = next((f"{one} would have the shape {shape}" for one, shape in shapes.items()
                       if min(shape, default=1) < 1), "")  # fmt: skip
        if not reason:
            return name, te.create_prim_func(tensors)
    except Exception as error:  # TVM raises many types
        reason = last_line(error)
    raise UsageError(f"task {name}: cannot be made of these sizes ({reason}); choose others")


def index_bounds(text: str) -> dict[int, int]:
    """Returns number of each index argument of a named task -> exclusive bound of its values."""
    kind, sizes = parse_task(text)
    return {1: sizes["rows"]} if kind == "gather" else {}
