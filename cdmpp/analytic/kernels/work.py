"""Operations and bytes of an operator, from its name and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cdmpp.analytic.kernels.call import Call

Shape = Sequence[int]
WorkKind = Literal["gemm", "conv", "embedding", "elementwise", "softmax", "layer_norm"]

#: Bytes per element, by torch's name of the type.
DTYPE_BYTES = {
    "float": 4, "tf32": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int8": 1, "uint8": 1,
    "signed char": 1, "unsigned char": 1, "long int": 8, "long": 8, "int": 4, "bool": 1,
}  # fmt: skip
_INDEX_BYTES = 8
_CONVOLUTIONS = frozenset({
    "conv2d", "convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution",
})  # fmt: skip
#: Matrix products -> (index of the left matrix, whether the right matrix is transposed).
_PRODUCTS = {
    "gemm": (0, False), "mm": (0, False), "bmm": (0, False), "matmul": (0, False),
    "addmm": (1, False), "baddbmm": (1, False), "_addmm_activation": (1, False),
    "linear": (0, True),
}  # fmt: skip
_BACKWARD_PRODUCTS = frozenset({"AddmmBackward0", "MmBackward0", "BmmBackward0"})
_BINARY = {"add": "add", "sub": "add", "mul": "mul", "div": "div", "pow": "pow"}
_UNARY = {"relu": "relu", "tanh": "tanh", "gelu": "gelu"}


@dataclass(frozen=True)
class Work:
    """Minimum work of one call.

    Attributes:
        kind: family of the operator.
        name: kind in the operator model (`linear`, `bmm`, `add`, ...), else the family.
        flop: floating-point operations; a multiply-add counts as two.
        moved_bytes: bytes of the main operands and the result, each once.
        dtype: torch's name of the type.
        sizes: shape by name, in the layout of the family's model.
    """

    kind: WorkKind
    name: str
    flop: float
    moved_bytes: float
    dtype: str
    sizes: tuple[tuple[str, int], ...]


def work_of(call: Call | None) -> Work | None:
    """Returns the work of a call; None if the operator or the shape is unknown."""
    if call is None or not call.shapes:
        return None
    try:
        name = call.name.removeprefix("aten::")
        if name in _PRODUCTS:
            return _product(call, name)
        if name in _CONVOLUTIONS:
            return _convolution(call)
        if call.name in ("aten::embedding", "aten::embedding_bag", "aten::_embedding_bag"):
            return _embedding(call)
        if call.name in ("aten::softmax", "aten::_softmax"):
            return _softmax(call)
        if call.name in ("aten::layer_norm", "aten::native_layer_norm"):
            return _layer_norm(call)
        return _elementwise(call)
    except (IndexError, ValueError, ZeroDivisionError):
        return None  # an empty tensor, or shapes that the operator cannot have


def product_sizes(name: str, shapes: Sequence[Shape]) -> tuple[int, int, int, int] | None:
    """Returns (batch, m, n, k) of a matrix product; None for other operators and invalid shapes.

    A batch of matrices times one matrix counts as one product, as torch computes it.

    Args:
        name: operator without namespace.
        shapes: shapes of the inputs.
    """
    if name not in _PRODUCTS:
        return None
    left_at, is_transposed = _PRODUCTS[name]
    if len(shapes) < left_at + 2:
        return None
    left, right = shapes[left_at], shapes[left_at + 1]
    if len(left) < (1 if is_transposed else 2) or len(right) < 2:
        return None
    k, n = (right[-1], right[-2]) if is_transposed else (right[-2], right[-1])
    if left[-1] != k:
        return None
    if len(right) == 2:
        return 1, math.prod(left[:-1]), n, k
    batch = math.prod(right[:-2])
    return (batch, left[-2], n, k) if math.prod(left[:-2]) == batch else None


def operator_flop(name: str, shapes: Sequence[Shape]) -> float | None:
    """Returns the floating-point operations of a torch operator; None if unknown.

    A multiply-add counts as two; an operator that is not a product counts one per element of its
    largest tensor.

    Args:
        name: operator without namespace.
        shapes: shapes of the tensor inputs.
    """
    sizes = product_sizes(name, shapes)
    if sizes is not None:
        return 2.0 * math.prod(sizes)
    if name in _PRODUCTS or name in _BACKWARD_PRODUCTS or "conv" in name.lower():
        return None
    return float(max((math.prod(shape) for shape in shapes), default=0)) or None


def _product(call: Call, name: str) -> Work | None:
    sizes = product_sizes(name, call.shapes)
    if sizes is None or not math.prod(sizes):
        return None
    batch, m, n, k = sizes
    moved = float(batch * (m * k + n * k + m * n))
    return _work(
        "gemm", "bmm" if batch > 1 else "linear", 2.0 * math.prod(sizes), moved, call,
        _PRODUCTS[name][0], batch=batch, m=m, n=n, k=k,
    )  # fmt: skip


def _convolution(call: Call) -> Work | None:
    data, weight = call.shapes[0], call.shapes[1]
    if len(data) != 4 or len(weight) != 4 or (call.setting("transposed") or (0,))[0]:
        return None
    stride, padding, dilation = (
        _pair(call.setting(name), default)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    groups = (call.setting("groups") or (1,))[0]
    (batch, cin, height, width), (cout, group_cin, rows, cols) = data, weight
    if group_cin * groups != cin:
        return None
    out_height = (height + 2 * padding[0] - dilation[0] * (rows - 1) - 1) // stride[0] + 1
    out_width = (width + 2 * padding[1] - dilation[1] * (cols - 1) - 1) // stride[1] + 1
    outputs = batch * cout * out_height * out_width
    if min(outputs, out_height) < 1:
        return None
    moved = float(math.prod(data) + math.prod(weight) + outputs)
    return _work(
        "conv", "conv", 2.0 * outputs * group_cin * rows * cols, moved, call, 0,
        batch=batch, in_channels=cin, in_height=height, in_width=width, out_channels=cout,
        kernel_height=rows, kernel=cols, stride=stride[0], stride_width=stride[1],
        padding=padding[0], padding_width=padding[1], dilation=max(dilation), groups=groups,
    )  # fmt: skip


def _embedding(call: Call) -> Work | None:
    (rows, width), indices = call.shapes[0], math.prod(call.shapes[1])
    bags = indices
    if call.name != "aten::embedding":
        # Bags are defined by offsets, or by the rows of a matrix of indices.
        offsets = call.shapes[2] if len(call.shapes) > 2 else ()
        (ends,) = call.setting("include_last_offset") or (0,)
        bags = call.shapes[1][0] if len(call.shapes[1]) == 2 else math.prod(offsets or (0,)) - ends
    if not indices or not bags:
        return None
    lookups = max(round(indices / bags), 1)
    flop = float((indices - bags) * width)
    moved = float(indices * width + bags * width)
    found = _work(
        "embedding", "embedding", flop, moved, call, 0, batch=bags, rows=rows, tables=1,
        lookups=lookups, width=width,
    )  # fmt: skip
    return Work(
        found.kind, found.name, found.flop, found.moved_bytes + indices * _INDEX_BYTES,
        found.dtype, found.sizes,
    )  # fmt: skip


def _softmax(call: Call) -> Work | None:
    shape = call.shapes[0]
    dim = call.setting("dim")
    if not shape or dim is None or dim[0] not in (-1, len(shape) - 1):
        return None
    count = math.prod(shape)
    return _work(
        "softmax", "softmax", 4.0 * count, 2.0 * count, call, 0, rows=count // shape[-1],
        cols=shape[-1],
    )  # fmt: skip


def _layer_norm(call: Call) -> Work | None:
    shape, weight = call.shapes[0], call.shapes[2]
    count, cols = math.prod(shape), math.prod(weight)
    if not weight or count % cols:
        return None
    return _work(
        "layer_norm", "ln", 7.0 * count, 2.0 * count, call, 0, rows=count // cols, cols=cols
    )


def _elementwise(call: Call) -> Work | None:
    name = call.name.removeprefix("aten::").removesuffix("_")
    if not call.name.startswith("aten::") or not call.shapes[0]:
        return None
    shape = call.shapes[0]
    if name in _UNARY:
        count, model = math.prod(shape), _UNARY[name]
        moved = 2.0 * count
    elif name in _BINARY:
        other = call.shapes[1] if len(call.shapes) > 1 else ()
        inputs = math.prod(shape) + (math.prod(other) if other else 0)
        shape = np.broadcast_shapes(tuple(shape), tuple(other))
        count, model = math.prod(shape), _BINARY[name] + ("" if other else "u")
        moved = float(count + inputs)
    else:
        return None
    cols = shape[-1]
    return _work(
        "elementwise", model, float(count), moved, call, 0, rows=max(count // cols, 1), cols=cols
    )


def _work(
    kind: WorkKind, name: str, flop: float, elements: float, call: Call, place: int, **sizes: int
) -> Work:
    if any(size < 0 for size in sizes.values()) or elements <= 0:
        raise ValueError("a size below 1")
    dtype = call.dtypes[place] if place < len(call.dtypes) else "float"
    return Work(kind, name, flop, elements * DTYPE_BYTES.get(dtype, 4), dtype, tuple(sizes.items()))


def _pair(values: tuple[int, ...] | None, default: int) -> tuple[int, int]:
    if not values:
        return default, default
    return (values[0], values[1]) if len(values) > 1 else (values[0], values[0])
