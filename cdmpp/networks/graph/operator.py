"""Operators of a torch network: kind, arguments and floating-point operations.

Both front ends (`torch.fx` and `torch.export`) convert calls to `OperatorCall`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdmpp.networks.account import (
    Account,
    Product,
    attention_account,
    convolution_account,
    recurrent_account,
)
from cdmpp.networks.graph.torch_names import VIEWS

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorInfo:
    """Shape and element size of a tensor without content.

    Attributes:
        shape: shape of the tensor.
        itemsize: bytes per element.
        stored: number of elements in memory, if the tensor is expanded; None = all.
        strides: strides in elements; None = unknown.
    """

    shape: Shape
    itemsize: int = 4
    stored: int | None = None
    strides: Shape | None = field(default=None, compare=False)

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.count * self.itemsize

    @property
    def stored_size(self) -> int:
        """Bytes in memory."""
        return (self.count if self.stored is None else self.stored) * self.itemsize


def tensor_infos(value: Any) -> list[TensorInfo]:
    """Returns the tensors in a value: a tensor, real or fake, or a tuple, list or dictionary of
    tensors; empty for any other value.
    """
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [info for item in value for info in tensor_infos(item)]
    if hasattr(value, "shape") and hasattr(value, "itemsize"):
        shape = tuple(int(side) for side in value.shape)
        strides = _strides(value)
        return [TensorInfo(shape, value.itemsize, _stored(strides, shape), strides)]
    return []


def _strides(tensor: Any) -> Shape | None:
    try:
        return tuple(int(stride) for stride in tensor.stride())
    except (AttributeError, RuntimeError):  # a sparse tensor, or no torch tensor
        return None


def _stored(strides: Shape | None, shape: Shape) -> int | None:
    """Returns the number of elements in memory of an expanded tensor; None if not expanded."""
    if strides is None or 0 not in strides:
        return None
    return math.prod(side for side, stride in zip(shape, strides, strict=True) if stride)


@dataclass(frozen=True)
class OperatorCall:
    """One operator call.

    Attributes:
        name: canonical name as in `torch.nn.functional`, e.g. `conv2d`, `relu`, `add`.
        inputs: activations that the operator reads.
        weights: parameters and buffers that the operator reads.
        outputs: output tensors.
        options: option of `torch.nn.functional` (`stride`, `padding`, ...) -> value.
        account: account of the dispatched aten operators; None = not recorded (`needs_record`).
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    weights: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    options: dict[str, Any] = field(default_factory=dict)
    account: Account | None = None


@dataclass(frozen=True)
class Described:
    """Description of an operator for the models.

    Attributes:
        kind: a published kind, or the operator's own name.
        arguments: column of `ARGUMENTS` -> value; missing columns are 0.
        flops: floating-point operations; a multiply-add is two.
        account: account of its work.
    """

    kind: str
    arguments: dict[str, float]
    flops: float
    account: Account = field(default_factory=Account)


def describe(operator: OperatorCall) -> Described:
    """Returns kind, arguments, operations and account of an operator.

    An operator outside the tables has its own name as kind. Its operations are those of the
    recorded account, or one per output element if the account has none.
    """
    known = _KNOWN.get(operator.name)
    if known in (_product, None) and _is_linear(operator):
        found = _linear(operator)
    elif known is not None:
        found = known(operator)
    else:
        account = operator.account or Account()
        flops = _PER_ELEMENT.get(operator.name, 1.0) * _output_count(operator)
        found = Described(kind_name(operator.name), {}, account.flop or flops, account)
    account = replace(found.account, least_bytes=_least_bytes(operator, found))
    return replace(found, account=account)


def needs_record(name: str) -> bool:
    """Returns whether the account of an operator must be recorded from dispatched operators."""
    is_known = name in _KNOWN or name in _PER_ELEMENT or name in VIEWS
    return name in _RECORDED or not is_known


def _least_bytes(operator: OperatorCall, described: Described) -> float:
    """Returns a lower bound of the bytes that an operator reads and writes."""
    if described.account.form == "view" or described.kind == "Flatten":
        return 0.0
    read = float(sum(info.stored_size for info in operator.inputs))
    outputs = float(sum(info.stored_size for info in operator.outputs))
    weights = float(sum(info.stored_size for info in operator.weights))
    stride = max(described.arguments.get(f"{part}_stride", 1.0) for part in ("conv", "pool"))
    window = max(described.arguments.get(f"{part}_kernel_size", 0.0) for part in ("conv", "pool"))
    if operator.options.get("is_causal") and len(operator.inputs) > 1:
        query, *others = operator.inputs  # keys beyond the number of queries are hidden from all
        hidden = max(0.0, 1.0 - query.shape[-2] / max(others[0].shape[-2], 1))
        read -= hidden * sum(info.stored_size for info in others)
    if operator.name in _SELECTS:
        return min(read + weights, outputs) + outputs
    return read * (_SKIPPED_SHARE if 0 < window < stride else 1.0) + weights + outputs


def parts_of(operator: OperatorCall) -> list[OperatorCall]:
    """Returns the operators that a module runs in sequence, usually only itself.

    `nn.MultiheadAttention` on one sequence is a projection, the attention and a projection.
    """
    if operator.name != "multi_head_attention" or "heads" not in operator.options:
        return [operator]
    batch, tokens, width = _sequence(operator, 0)
    heads = int(operator.options["heads"])
    size = operator.inputs[0].itemsize
    if len(operator.inputs) > 1 or len(operator.weights) not in (2, 4):
        return [operator]
    is_biased = len(operator.weights) == 4
    into, out_of = [operator.weights[0]], [operator.weights[-1 - is_biased]]
    if is_biased:
        into.append(operator.weights[1])
        out_of.append(operator.weights[-1])
    head = TensorInfo((batch, heads, tokens, width // heads), size)
    sequence = TensorInfo((tokens, batch, width), size)
    wide = TensorInfo((tokens, batch, 3 * width), size)
    flat = TensorInfo((tokens * batch, width), size)
    return [
        OperatorCall("linear", (sequence,), tuple(into), (wide,)),
        OperatorCall("scaled_dot_product_attention", (head, head, head), (), (head,)),
        OperatorCall("linear", (flat,), tuple(out_of), (flat,)),
    ]


def kind_name(name: str) -> str:
    """Returns the kind of an operator outside the tables: `layer_norm` -> `LayerNorm`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_") if part) or "Unnamed"


def layout(info: TensorInfo | None, *, channels_last: bool = True) -> tuple[int, int, int]:
    """Returns channels, width and height of an activation.

    Args:
        info: a tensor whose first axis is the batch; None = no tensor (all 0).
        channels_last: whether the channels of a tensor with three axes are the last axis (tokens),
            else the second.
    """
    if info is None or not info.shape:
        return 0, 0, 0
    shape = info.shape
    if len(shape) == 1:
        return 1, 1, 1
    if len(shape) == 2:
        return shape[1], 1, 1
    if len(shape) == 3:
        return (shape[2], 1, shape[1]) if channels_last else (shape[1], shape[2], 1)
    return shape[1], shape[-1], math.prod(shape[2:-1])


#: Operators for which the channels of a tensor with three axes are the second axis.
CHANNELS_SECOND = frozenset(
    {"conv1d", "conv_transpose1d", "max_pool1d", "avg_pool1d", "adaptive_avg_pool1d",
     "adaptive_max_pool1d", "instance_norm", "batch_norm"}
)  # fmt: skip


def mean_side(value: Any) -> float:
    """Returns one number for an option given per axis: the geometric mean, or the mean if a value
    is 0; 0 for None and text.
    """
    if value is None:
        return 0.0
    if isinstance(value, str):  # padding="same" or "valid"
        return 0.0
    sides = [float(side) for side in value] if isinstance(value, Sequence) else [float(value)]
    if not sides:
        return 0.0
    if all(side == sides[0] for side in sides):
        return sides[0]
    if min(sides) <= 0:
        return sum(sides) / len(sides)
    return math.prod(sides) ** (1 / len(sides))


def _output_count(operator: OperatorCall) -> int:
    return sum(info.count for info in operator.outputs)


def _input_count(operator: OperatorCall) -> int:
    return sum(info.count for info in operator.inputs)


def _convolution(operator: OperatorCall) -> Described:
    weight = operator.weights[0] if operator.weights else operator.inputs[1]
    kernel = weight.shape[2:]
    has_bias = len(operator.weights) > 1
    out = operator.outputs[0].count
    per_output = weight.shape[1] * math.prod(kernel)  # the weight holds input channels / groups
    padding = operator.options.get("padding", 0)
    if padding == "same":
        padding = [side // 2 for side in kernel]
    arguments = {
        "conv_kernel_size": mean_side(kernel),
        "conv_stride": mean_side(operator.options.get("stride", 1) or 1),
        "conv_padding": mean_side(padding),
        "conv_dilation": mean_side(operator.options.get("dilation", 1) or 1),
        "conv_groups": float(operator.options.get("groups", 1)),
        "conv_bias": float(has_bias),
    }
    account = _convolution_account(operator, weight, is_transposed=False)
    return Described("Conv", arguments, out * (2.0 * per_output + has_bias), account)


def _transposed(operator: OperatorCall) -> Described:
    weight = operator.weights[0] if operator.weights else operator.inputs[1]
    per_input = weight.shape[1] * math.prod(weight.shape[2:])
    has_bias = len(operator.weights) > 1
    flops = 2.0 * per_input * operator.inputs[0].count + has_bias * operator.outputs[0].count
    account = _convolution_account(operator, weight, is_transposed=True)
    return Described("ConvTranspose", {}, flops, account)


def _convolution_account(
    operator: OperatorCall, weight: TensorInfo, *, is_transposed: bool
) -> Account:
    options = operator.options
    return convolution_account(
        operator.inputs[0].shape, weight.shape, operator.outputs[0].count,
        groups=int(options.get("groups", 1) or 1), stride=mean_side(options.get("stride", 1) or 1),
        is_transposed=is_transposed,
    )  # fmt: skip


def _is_linear(operator: OperatorCall) -> bool:
    """Returns whether an operator of any name (einsum, tensordot, inner) is one product of an
    activation and a matrix of weights.
    """
    account = operator.account
    if account is None or len(operator.inputs) != 1 or len(operator.weights) != 1:
        return False
    weight = operator.weights[0]
    if len(weight.shape) != 2 or len(account.products) != 1 or account.other_flop:
        return False
    one = account.products[0]
    return one.batch * one.times == 1 and weight.count in (one.k * one.n, one.k * one.m)


def _linear(operator: OperatorCall) -> Described:
    """`linear`, or a product with a matrix of weights."""
    out = operator.outputs[0]
    columns = out.shape[-1] if out.shape else 1
    products = operator.account.products if operator.account else ()
    if operator.name != "linear" and _is_linear(operator):  # its axes may be in any order
        columns = operator.weights[0].count // max(products[0].k, 1)
    depth = products[0].k if len(products) == 1 else operator.inputs[0].shape[-1]
    if not products:
        products = (Product(1, out.count // max(columns, 1), columns, depth),)
    has_bias = len(operator.weights) > 1
    arguments = {
        "linear_in_features": float(depth),
        "linear_out_features": float(columns),
        "linear_bias": float(has_bias),
    }
    flops = out.count * (2.0 * depth + has_bias)
    return Described("Gemm", arguments, flops, Account(tuple(products)))


def _product(operator: OperatorCall) -> Described:
    """A product of two activations or an einsum, by its recorded account."""
    account = operator.account or Account(is_covered=False)
    return Described("MatMul", {}, account.flop or float(_output_count(operator)), account)


def _pool(kind: str) -> Callable[[OperatorCall], Described]:
    def describe_pool(operator: OperatorCall) -> Described:
        options = operator.options
        kernel = options.get("kernel_size", 1)
        stride = options.get("stride")
        arguments = {
            "pool_kernel_size": mean_side(kernel),
            "pool_stride": mean_side(kernel if stride in (None, [], ()) else stride),
            "pool_padding": mean_side(options.get("padding", 0)),
            "pool_ceil_mode": float(bool(options.get("ceil_mode", False))),
        }
        rank = int(operator.name[-2]) if operator.name[-2:-1].isdigit() else 2
        window = math.prod(kernel) if isinstance(kernel, Sequence) else int(kernel) ** rank
        return Described(kind, arguments, float(operator.outputs[0].count * window))

    return describe_pool


def _adaptive_pool(kind: str) -> Callable[[OperatorCall], Described]:
    def describe_pool(operator: OperatorCall) -> Described:
        before, after = operator.inputs[0].shape, operator.outputs[0].shape
        flops = float(_input_count(operator))
        rank = int(operator.name[-2])
        if all(side == 1 for side in after[-rank:]) and kind == "AveragePool":
            return Described("GlobalAveragePool", {}, flops)
        sides = [
            max(1, wide // max(1, thin))
            for wide, thin in zip(before[-rank:], after[-rank:], strict=True)
        ]
        arguments = {"pool_kernel_size": mean_side(sides), "pool_stride": mean_side(sides)}
        return Described(kind, arguments, flops)

    return describe_pool


def _global_mean(operator: OperatorCall) -> Described:
    return Described("GlobalAveragePool", {}, float(_input_count(operator)))


def _attention(operator: OperatorCall) -> Described:
    """Scores, softmax and weighted sum of `scaled_dot_product_attention`."""
    query = operator.inputs[0].shape
    key = operator.inputs[min(1, len(operator.inputs) - 1)].shape  # may be the query's tensor
    scores = math.prod(query[:-1]) * key[-2]
    flops = 4.0 * scores * query[-1] + 5.0 * scores
    is_causal = bool(operator.options.get("is_causal", False))
    account = attention_account(query, key, operator.outputs[0].shape[-1], is_causal=is_causal)
    return Described("ScaledDotProductAttention", {}, flops, account)


def _multi_head(operator: OperatorCall) -> Described:
    """`nn.MultiheadAttention`: four projections and the attention."""
    batch, tokens, width = _sequence(operator, 0)
    _, key_tokens, _ = _sequence(operator, min(1, len(operator.inputs) - 1))
    projections = 2.0 * batch * width * width * (2 * tokens + 2 * key_tokens)
    heads = int(operator.options.get("heads", 1))
    scores = batch * tokens * key_tokens
    flops = projections + 4.0 * scores * width + 5.0 * scores * heads
    return Described("MultiHeadAttention", {}, flops, operator.account or Account())


def _sequence(operator: OperatorCall, place: int) -> tuple[int, int, int]:
    shape = operator.inputs[place].shape
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if operator.options.get("batch_first", False):
        return shape[0], shape[1], shape[2]
    return shape[1], shape[0], shape[2]


def _recurrent(operator: OperatorCall) -> Described:
    """Recurrent layers, which use every weight once per token."""
    tokens = operator.inputs[0].count // operator.inputs[0].shape[-1]
    flops = 2.0 * tokens * sum(weight.count for weight in operator.weights)
    batch, steps, _ = _sequence(operator, 0)
    matrices = [weight.shape for weight in operator.weights if len(weight.shape) == 2]
    account = recurrent_account(steps, batch, matrices)
    return Described(kind_name(operator.name), {}, flops, account)


def _fixed(kind: str, per_output: float) -> Callable[[OperatorCall], Described]:
    def describe_fixed(operator: OperatorCall) -> Described:
        return Described(kind, {}, per_output * _output_count(operator))

    return describe_fixed


def _addmm(operator: OperatorCall) -> Described:
    # (bias, input, weight): the bias is a weight, or an activation with the output's shape
    if len(operator.inputs) == 1:
        return _linear(operator)
    return _product(operator)


#: Products of activations.
_PRODUCTS = ("matmul", "bmm", "baddbmm", "mm", "dot", "mv", "einsum")
#: Known operators whose sizes need a record: an operand may occur twice or be the weight.
_RECORDED = frozenset({*_PRODUCTS, "addmm", "linear", "multi_head_attention"})
#: Operators that read at most as many bytes of their inputs as they write.
_SELECTS = frozenset(
    {"embedding", "embedding_bag", "gather", "index_select", "index", "take", "take_along_dim",
     "grid_sample", "interpolate", "upsample", "searchsorted", "bucketize", "one_hot"}
)  # fmt: skip
#: Minimum share of the input that a window narrower than its stride reads.
_SKIPPED_SHARE = 0.25
#: Operations per output element of operators outside `_KNOWN`.
_PER_ELEMENT = {
    "softmax": 5.0, "log_softmax": 5.0, "layer_norm": 8.0, "group_norm": 8.0,
    "instance_norm": 8.0, "rms_norm": 5.0, "local_response_norm": 8.0, "normalize": 4.0,
    "gelu": 8.0, "silu": 5.0, "mish": 8.0, "sigmoid": 4.0, "tanh": 6.0, "elu": 4.0, "celu": 4.0,
    "selu": 4.0, "softplus": 4.0, "hardswish": 4.0, "hardsigmoid": 3.0, "relu6": 2.0,
    "hardtanh": 2.0, "leaky_relu": 2.0, "prelu": 2.0, "exp": 4.0, "log": 4.0, "erf": 6.0,
    "embedding": 0.0, "pad": 0.0, "copy": 0.0, "clone": 0.0, "pixel_shuffle": 0.0,
    "pixel_unshuffle": 0.0, "channel_shuffle": 0.0, "stack": 0.0, "repeat": 0.0, "roll": 0.0,
    "gather": 0.0, "index_select": 0.0,
}  # fmt: skip

_KNOWN: dict[str, Callable[[OperatorCall], Described]] = {
    **{f"conv{rank}d": _convolution for rank in (1, 2, 3)},
    "convolution": _convolution,
    **{f"conv_transpose{rank}d": _transposed for rank in (1, 2, 3)},
    "relu": _fixed("Relu", 1.0),
    "batch_norm": _fixed("BatchNormalization", 2.0),
    "cat": _fixed("Concat", 0.0),
    "add": _fixed("Add", 1.0),
    "flatten": _fixed("Flatten", 0.0),
    "linear": _linear,
    "addmm": _addmm,
    **dict.fromkeys(_PRODUCTS, _product),
    **{f"max_pool{rank}d": _pool("MaxPool") for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": _pool("AveragePool") for rank in (1, 2, 3)},
    **{f"adaptive_avg_pool{rank}d": _adaptive_pool("AveragePool") for rank in (1, 2, 3)},
    **{f"adaptive_max_pool{rank}d": _adaptive_pool("MaxPool") for rank in (1, 2, 3)},
    "global_mean": _global_mean,
    "scaled_dot_product_attention": _attention,
    "multi_head_attention": _multi_head,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
}
