"""Encoding of an operator graph as arrays: the published features and additional columns.

The encoding does not depend on the numbering of the operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.networks.dataset.canonical import canonical_order, renumbered
from cdmpp.networks.dataset.features import graph_features
from cdmpp.networks.graph.convolution_memory import convolution_kinds
from cdmpp.networks.graph.graph import KINDS, NetworkGraph
from cdmpp.networks.graph.live_memory import live_memory, packed_bytes

#: Version of the columns below; a saved model accepts only its own.
ENCODING_VERSION = 3
#: Families of operators outside `KINDS` -> words in an operator's name; the first match counts.
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "softmax": ("softmax",),
    "normalisation": ("norm",),
    "activation": ("elu", "silu", "swish", "mish", "sigmoid", "tanh", "act", "relu", "clamp"),
    "embedding": ("embedding",),
    "product": ("matmul", "bmm", "attention", "einsum", "mm"),
    "view": (
        "view", "reshape", "permute", "transpose", "flatten", "squeeze", "chunk", "split",
        "getitem", "expand", "identity", "size", "getattr", "contiguous",
    ),
    "elementwise": ("mul", "sub", "div", "add", "pow", "sqrt", "exp", "mean", "sum", "drop"),
}  # fmt: skip
_OTHER = "other"
#: Families in the order of their one-hot columns.
FAMILIES = (*KINDS, *_FAMILIES, _OTHER)
#: Number of channels in a block of vectorised kernels.
_BLOCK = 16.0
#: Additional columns of an operator, after the families.
OPERATOR_COLUMNS = (
    "log_flops", "log_bytes", "log_weights", "log_input", "log_output", "log_input_channels",
    "log_output_channels", "log_input_pixels", "log_output_pixels", "log_batch", "log_kernel",
    "log_stride", "log_dilation", "log_groups", "log_input_channels_a_group",
    "log_output_channels_a_group", "is_depthwise", "has_padding", "has_bias", "log_linear_inputs",
    "log_linear_outputs", "log_input_waste", "log_output_waste", "log_intensity",
    "is_native", "is_product",
)  # fmt: skip
#: Additional columns of a graph, before the counts and the shares of the families.
TOTAL_COLUMNS = (
    "log_batch", "log_operators", "log_flops", "log_bytes", "log_weights", "log_outputs",
    "log_largest_output", "log_largest_operator", "log_largest_weight", "log_infer_memory",
    "log_train_memory", "log_intensity", "log_packed_forward", "log_packed_backward",
    "log_packed_convolution",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class EncodedGraph:
    """One network at one batch size.

    Attributes:
        graph: the network with its operators in canonical order, the order of all arrays.
        order: int64 [nodes], the original number of each operator.
        nodes: float64 [nodes, 30], the published features (see `GraphFeatures`).
        edges: float64 [edges, 5], the published features.
        network: float64 [18], the published features.
        operators: float64 [nodes, families + `OPERATOR_COLUMNS`].
        totals: float64 [`TOTAL_COLUMNS` + 2 x families].
        family: int64 [nodes], index into `FAMILIES`.
        memory_bytes: float64 [2], analytic peak of inference and of training.
        generated: float64 [6], number of different convolutions of each of `ConvolutionKinds`. The
            library generates code for each, whose memory is in no tensor.
        packed_bytes: float64 [3], see `live_memory.packed_bytes`.
    """

    graph: NetworkGraph
    order: IntArray
    nodes: FloatArray
    edges: FloatArray
    network: FloatArray
    operators: FloatArray
    totals: FloatArray
    family: IntArray
    memory_bytes: FloatArray
    generated: FloatArray
    packed_bytes: FloatArray


def encode(graph: NetworkGraph) -> EncodedGraph:
    """Returns the arrays of a graph."""
    order = canonical_order(graph)
    canonical = renumbered(graph, order)
    features = graph_features(canonical)
    family = np.array([family_of(kind) for kind in canonical.kinds], np.int64)
    memory_bytes = np.array([live_memory(canonical, "infer"), live_memory(canonical, "train")])
    packed = packed_bytes(canonical)
    return EncodedGraph(
        graph=canonical,
        order=order,
        nodes=np.asarray(features.nodes, np.float64),
        edges=np.asarray(features.edges, np.float64),
        network=np.asarray(features.network, np.float64),
        operators=_operator_columns(canonical, family),
        totals=_total_columns(canonical, family, memory_bytes, packed),
        family=family,
        memory_bytes=memory_bytes,
        generated=_generated_counts(canonical),
        packed_bytes=packed,
    )


def family_of(kind: str) -> int:
    """Returns the index of an operator's family in `FAMILIES`."""
    if kind in KINDS:
        return KINDS.index(kind)
    name = kind.lower()
    for place, words in enumerate(_FAMILIES.values()):
        if any(word in name for word in words):
            return len(KINDS) + place
    return len(FAMILIES) - 1


def _operator_columns(graph: NetworkGraph, family: IntArray) -> FloatArray:
    column, kinds = graph.column, convolution_kinds(graph)
    groups = np.maximum(column("conv_groups"), 1.0)
    inputs, outputs = column("input_channels"), column("output_channels")
    own = [
        graph.flops, column("bytes"), column("weight_size"), column("input_size"),
        column("output_size"), inputs, outputs, column("input_w") * column("input_h"),
        column("output_w") * column("output_h"), column("batch_size"),
        column("conv_kernel_size") + column("pool_kernel_size"),
        column("conv_stride") + column("pool_stride"), column("conv_dilation"), groups,
        inputs / groups, outputs / groups,
    ]  # fmt: skip
    columns = {name: np.log1p(value) for name, value in zip(OPERATOR_COLUMNS, own, strict=False)}
    columns |= {
        "is_depthwise": ((groups > 1) & (groups == inputs)).astype(np.float64),
        "has_padding": (column("conv_padding") + column("pool_padding") > 0).astype(np.float64),
        "has_bias": (column("conv_bias") + column("linear_bias") > 0).astype(np.float64),
        "log_linear_inputs": np.log1p(column("linear_in_features")),
        "log_linear_outputs": np.log1p(column("linear_out_features")),
        "log_input_waste": _waste(inputs / groups),
        "log_output_waste": _waste(outputs / groups),
        "log_intensity": np.log1p(graph.flops / np.maximum(column("bytes"), 1.0)),
        "is_native": kinds.native.astype(np.float64),
        "is_product": kinds.product.astype(np.float64),
    }
    one_hot = np.eye(len(FAMILIES))[family]
    return np.concatenate([one_hot, np.stack([columns[n] for n in OPERATOR_COLUMNS], 1)], 1)


def _generated_counts(graph: NetworkGraph) -> FloatArray:
    """Returns float64 [6], see `EncodedGraph.generated`."""
    kinds = convolution_kinds(graph)
    rows = np.concatenate([graph.arguments, graph.memory], 1)
    by_kind = (
        kinds.native, kinds.depthwise, kinds.grouped, kinds.product, kinds.pointwise, kinds.plain,
    )  # fmt: skip
    return np.array(
        [len({row.tobytes() for row in rows[chosen]}) for chosen in by_kind], np.float64
    )


def _waste(channels: FloatArray) -> FloatArray:
    """Returns the log ratio of channels padded to whole blocks to the channels."""
    channels = np.maximum(channels, 1.0)
    return np.asarray(np.log(np.ceil(channels / _BLOCK) * _BLOCK / channels))


def _total_columns(
    graph: NetworkGraph, family: IntArray, memory_bytes: FloatArray, packed: FloatArray
) -> FloatArray:
    column = graph.column
    traffic, outputs, weights = column("bytes"), column("output_size"), column("weight_size")
    flops = graph.flops
    values = [
        graph.batch, len(flops), flops.sum(), traffic.sum(), weights.sum(), outputs.sum(),
        outputs.max(), traffic.max(), weights.max(), memory_bytes[0], memory_bytes[1],
        flops.sum() / max(float(traffic.sum()), 1.0), *packed,
    ]  # fmt: skip
    count = np.bincount(family, minlength=len(FAMILIES)).astype(np.float64)
    share = np.bincount(family, traffic, minlength=len(FAMILIES)) / max(float(traffic.sum()), 1.0)
    return np.concatenate([np.log1p(np.array(values, np.float64)), np.log1p(count), share])
