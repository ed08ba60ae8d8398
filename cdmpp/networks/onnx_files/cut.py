"""Cuts operators that an importer does not support out of an ONNX model.

The outputs of a cut operator become inputs of the remaining network, and its inputs become outputs.
The known work of the operator is stored, so that it has a roofline.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cdmpp.errors import DataError
from cdmpp.networks.account import (
    Account,
    Product,
    attention_account,
    convolution_account,
    recurrent_account,
)
from cdmpp.networks.onnx_files.fold import shapes_of

Shape = Sequence[int]
#: Operators whose subgraphs are selected or repeated at run time.
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
#: Memory-bound operators whose output has the shape of the first input.
_LIKE_INPUT = frozenset({
    "BiasGelu", "FastGelu", "QuickGelu", "Gelu", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization", "LayerNormalization",
    "RMSNormalization", "RotaryEmbedding", "QLinearAdd", "QLinearMul", "QLinearSigmoid",
    "QLinearLeakyRelu", "QLinearSoftmax", "DynamicQuantizeLinear", "QuantizeLinear",
    "DequantizeLinear", "GroupNormalization", "InstanceNormalization", "LpNormalization",
    "MeanVarianceNormalization", "Swish", "Mish", "Celu", "HardSwish", "BiasAdd", "Bernoulli",
})  # fmt: skip
#: Memory-bound operators.
_MOVES = _LIKE_INPUT | {
    "Pad", "Resize", "Upsample", "GridSample", "Compress", "NonZero", "Unique", "TopK", "OneHot",
    "ReverseSequence", "TensorScatter", "QLinearConcat", "QLinearGlobalAveragePool",
    "QLinearAveragePool", "GlobalLpPool", "LpPool", "MaxUnpool", "Col2Im", "CenterCropPad",
}  # fmt: skip
_CONVOLUTIONS = ("QLinearConv", "ConvInteger", "FusedConv", "Conv", "NhwcConv")
_TRANSPOSED = ("ConvTranspose", "FusedConvTranspose")
_PRODUCTS = ("QLinearMatMul", "MatMulInteger", "FusedMatMul", "MatMul", "DynamicQuantizeMatMul",
             "MatMulIntegerToFloat")  # fmt: skip


@dataclass(frozen=True)
class CutOperator:
    """An operator that was cut out.

    Attributes:
        name: name of its node.
        kind: ONNX type.
        flop: number of operations (a multiply-add is two); None = unknown.
        bytes: bytes of its inputs and outputs, each counted once.
        steps: number of dependent steps (`LSTM`: the length of the sequence).
        dtype: type of the operations: `float32`, `float16`, `int8`, ...
        shapes: shapes of its inputs and outputs.
        least_flop: lower bound of the number of operations.
    """

    name: str
    kind: str
    flop: float | None
    bytes: float
    steps: int = 1
    dtype: str = "float32"
    shapes: tuple[str, ...] = ()
    least_flop: float = 0.0


def to_text(cut: Iterable[CutOperator]) -> str:
    """Returns operators as JSON."""
    return json.dumps([asdict(one) for one in cut])


def from_text(text: str) -> list[CutOperator]:
    """Returns the operators from a text of `to_text`."""
    return [CutOperator(**{**row, "shapes": tuple(row["shapes"])}) for row in json.loads(text)]


def cut_out(model: Any, is_lacking: Callable[[Any], bool], name: str) -> list[CutOperator]:
    """Cuts operators out of a model with known input sizes, in place.

    Args:
        is_lacking: returns whether to cut a node.
        name: name of the file in error messages.

    Raises:
        DataError: the shape of a result is unknown.
    """
    graph = model.graph
    found: list[CutOperator] = []
    shapes = shapes_of(model)
    weights = {one.name for one in graph.initializer}
    for node in [one for one in graph.node if is_lacking(one)]:
        if any(key and key not in shapes for key in node.output):
            _add_known_shape(graph, node, shapes)
            shapes = shapes_of(model)
        found.append(_cut(graph, node, shapes, weights, name))
    return found


def _cut(
    graph: Any, node: Any, shapes: Mapping[str, Any], weights: set[str], name: str
) -> CutOperator:
    from onnx import helper

    ends = [key for key in node.output if key]
    unknown = [key for key in ends if key not in shapes]
    if unknown:
        if node.op_type in CONTROL_FLOW:
            raise DataError(
                f"{name}: control flow ({node.op_type}) cannot be traced, and the shape of its "
                "result is unknown; export the network without it, e.g. for one branch"
            )
        raise DataError(
            f"{name}: TVM cannot import {node.op_type}, and the shape of its result "
            f"{unknown[0]!r} is unknown, so the rest cannot be predicted either; export the "
            "network with constant shapes or without this operator"
        )
    graph.node.remove(node)
    results = {one.name for one in graph.output}
    inputs = {one.name for one in graph.input}
    for key in node.input:  # as outputs, so that their producers stay even without other readers
        if key and key in shapes and key not in weights | results | inputs:
            graph.output.append(helper.make_tensor_value_info(key, *shapes[key]))
            results.add(key)
    for key in ends:
        graph.input.append(helper.make_tensor_value_info(key, *shapes[key]))
    return _with_work(node, shapes)


def _add_known_shape(graph: Any, node: Any, shapes: Mapping[str, Any]) -> None:
    """Adds the shape of a result of another domain's operator, which `onnx` cannot infer."""
    from onnx import helper

    first = shapes.get(node.input[0]) if node.input else None
    if first is None:
        return
    kind, shape = first
    if node.op_type == "FusedMatMul" and node.input[1] in shapes:
        attrs = {one.name: one.i for one in node.attribute}
        a, b = list(shape), list(shapes[node.input[1]][1])
        if attrs.get("transA"):
            a[-2:] = a[:-3:-1]
        if attrs.get("transB"):
            b[-2:] = b[:-3:-1]
        batch = a[:-2] if len(a) >= len(b) else b[:-2]
        shape = (*batch, a[-2], b[-1])
    elif node.op_type not in _LIKE_INPUT:
        return
    graph.value_info.append(helper.make_tensor_value_info(node.output[0], kind, shape))


def _with_work(node: Any, shapes: Mapping[str, Any]) -> CutOperator:
    """Returns an operator with its account of work."""
    from onnx import helper

    known = [(key, *shapes[key]) for key in (*node.input, *node.output) if key in shapes]
    moved = 0.0
    for _, kind, shape in known:
        moved += math.prod(shape) * helper.tensor_dtype_to_np_dtype(kind).itemsize
    sizes = {key: shape for key, _, shape in known}
    dtype = "float32"
    if node.input and node.input[0] in shapes:
        dtype = str(helper.tensor_dtype_to_np_dtype(shapes[node.input[0]][0]))
    ins = [sizes.get(key) for key in node.input]
    outs = [sizes[key] for key in node.output if key in sizes]
    try:
        account = _work(node, ins, outs)
    except (ArithmeticError, IndexError, TypeError, ValueError):  # inputs are missing or do not fit
        account = None
    flop, least = None, 0.0
    if account is not None:
        least = account.least_share * account.product_flop + account.other_flop
        flop = least if account.form == "attention" else account.flop
    return CutOperator(
        node.name or node.op_type, node.op_type, flop, moved,
        steps=account.steps if account else 1,
        dtype="int8" if dtype in ("int8", "uint8") else dtype,
        shapes=tuple("x".join(map(str, shape)) or "scalar" for _, _, shape in known),
        least_flop=least,
    )  # fmt: skip


def _work(node: Any, ins: Sequence[Any], outs: Sequence[Shape]) -> Account | None:
    """Returns the account of an operator; None if its work is unknown."""
    kind = node.op_type
    attributes = {one.name: one for one in node.attribute}
    if kind in ("LSTM", "GRU", "RNN"):  # x [T, B, I], W [D, G H, I], R [D, G H, H]
        length, batch = ins[0][:2]
        return recurrent_account(length, batch, [ins[1][1:], ins[2][1:]] * ins[1][0])
    if kind in (*_CONVOLUTIONS, *_TRANSPOSED):
        strides = attributes["strides"].ints if "strides" in attributes else [1]
        return convolution_account(
            ins[0], ins[3] if kind == "QLinearConv" else ins[1], math.prod(outs[0]),
            groups=attributes["group"].i if "group" in attributes else 1,
            stride=sum(strides) / len(strides), is_transposed=kind in _TRANSPOSED,
        )  # fmt: skip
    if kind in _PRODUCTS:  # a [.., m, k] (or [.., k, m]) times b gives [.., m, n]
        *batch, m, n = outs[0]
        return Account((Product(math.prod(batch), m, n, math.prod(ins[0][-2:]) // m),))
    if kind == "Attention":  # q [.., S, E], k [.., L, E], v [.., L, V]
        is_causal = "is_causal" in attributes and bool(attributes["is_causal"].i)
        return attention_account(ins[0], ins[1], outs[0][-1], is_causal=is_causal)
    return Account(other_flop=float(math.prod(outs[0]))) if kind in _MOVES else None
