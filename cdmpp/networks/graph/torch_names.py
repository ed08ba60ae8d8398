"""Canonical names (see `operator`) of torch's modules, functions and aten operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Calls that make no operator: no work and no memory in inference.
VIEWS = frozenset(
    {"view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze", "expand",
     "expand_as", "view_as", "reshape_as", "chunk", "split", "split_with_sizes", "tensor_split",
     "getitem", "getattr", "detach", "t", "contiguous", "unflatten", "swapaxes", "swapdims",
     "movedim", "moveaxis", "unbind", "narrow", "select", "slice", "to", "float", "type",
     "type_as", "alias", "lift_fresh", "unsafe_view", "unsafe_split", "unsafe_chunk", "identity",
     "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
     "feature_dropout", "native_dropout", "broadcast_to", "diagonal", "requires_grad",
     "as_strided", "to_copy"}
)  # fmt: skip

_MODULES = {
    "BatchNorm1d": "batch_norm", "BatchNorm2d": "batch_norm", "BatchNorm3d": "batch_norm",
    "SyncBatchNorm": "batch_norm", "InstanceNorm1d": "instance_norm",
    "InstanceNorm2d": "instance_norm", "InstanceNorm3d": "instance_norm",
    "MultiheadAttention": "multi_head_attention", "NonDynamicallyQuantizableLinear": "linear",
    "ReLU": "relu", "ReLU6": "relu6", "LeakyReLU": "leaky_relu", "PReLU": "prelu",
    "RReLU": "rrelu", "GELU": "gelu", "SiLU": "silu", "ELU": "elu", "CELU": "celu",
    "SELU": "selu", "GLU": "glu", "LSTM": "lstm", "GRU": "gru", "RNN": "rnn", "RMSNorm": "rms_norm",
}  # fmt: skip
_FUNCTIONS = {
    "iadd": "add", "concat": "cat", "concatenate": "cat", "truediv": "div", "itruediv": "div",
    "isub": "sub", "imul": "mul", "multiply": "mul", "divide": "div", "subtract": "sub",
    "multi_head_attention_forward": "multi_head_attention", "max_pool1d_with_indices": "max_pool1d",
    "max_pool2d_with_indices": "max_pool2d", "max_pool3d_with_indices": "max_pool3d",
    "native_layer_norm": "layer_norm", "native_batch_norm": "batch_norm",
    "native_group_norm": "group_norm", "cudnn_batch_norm": "batch_norm",
    "native_batch_norm_legit_no_training": "batch_norm", "special_expit": "sigmoid",
    "safe_softmax": "softmax", "rnn_tanh": "rnn", "rnn_relu": "rnn",
}  # fmt: skip
#: Names of positional arguments; only those that `operator` reads matter.
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_MAX_POOL = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
_AVERAGE_POOL = ("input", "kernel_size", "stride", "padding", "ceil_mode")
_TRANSPOSED = (
    "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation",
)  # fmt: skip
_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_RECURRENT = (
    "input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional",
    "batch_first",
)  # fmt: skip
_TENSORS = frozenset(
    {"input", "weight", "bias", "query", "key", "value", "attn_mask", "hx", "params"}
)
_SIGNATURES: dict[str, tuple[str, ...]] = {
    **{f"conv{rank}d": _CONVOLUTION for rank in (1, 2, 3)},
    **{f"max_pool{rank}d": _MAX_POOL for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": _AVERAGE_POOL for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _TRANSPOSED for rank in (1, 2, 3)},
    "einsum": ("equation",),
    "scaled_dot_product_attention": _ATTENTION,
    **dict.fromkeys(("lstm", "gru", "rnn"), _RECURRENT),
}
#: Attributes of modules that `operator` reads.
_OPTIONS = ("kernel_size", "stride", "padding", "dilation", "groups", "ceil_mode", "batch_first")


def module_name(class_name: str) -> str:
    """Returns the canonical name of a leaf module's class: `LayerNorm` -> `layer_norm`."""
    known = _MODULES.get(class_name)
    if known is not None:
        return known
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower()


def function_name(target: Any, args: Sequence[Any] = ()) -> str:
    """Returns the canonical name of a function, a method (text) or an aten operator.

    Args:
        target: the function, method or operator.
        args: its positional arguments, which distinguish `relu6` from other `hardtanh`.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    name = name.split(".")[0]  # aten's overloads: `add.Tensor`
    name = name.strip("_")
    if name == "hardtanh" and tuple(args[1:3]) == (0, 6):
        return "relu6"
    return _FUNCTIONS.get(name, name)


def module_options(module: Any) -> dict[str, Any]:
    """Returns the options of a leaf module."""
    values = module.__dict__
    options = {name: values[name] for name in _OPTIONS if name in values}
    if "num_heads" in values:
        options["heads"] = values["num_heads"]
    return options


def call_options(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a function call."""
    signature = _SIGNATURES.get(name)
    if signature is None:
        return {}
    given = {**dict(zip(signature, args, strict=False)), **kwargs}
    return {key: value for key, value in given.items() if key not in _TENSORS}


def refine(
    name: str, before: Sequence[tuple[int, ...]], after: Sequence[tuple[int, ...]], weights: int
) -> str | None:
    """Returns the operator's name for a call; None if the call is a view.

    Args:
        name: canonical name of the call.
        before: shapes of its input activations.
        after: shapes of its outputs.
        weights: number of weights that it reads.
    """
    first = before[0] if before else ()
    last = after[0] if after else ()
    if name in ("flatten", "view", "reshape", "squeeze"):
        is_flatten = len(first) > 2 and len(last) == 2 and first[0] == last[0]
        return "flatten" if is_flatten else None
    if name in VIEWS:
        return None
    if name == "mean" and len(first) == 4 and last in (first[:2], (*first[:2], 1, 1)):
        return "global_mean"
    if name in ("matmul", "mm", "bmm") and weights == 1 and len(before) == 1:
        return "linear"
    return name
