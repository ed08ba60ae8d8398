"""Peak memory of a network on a GPU in a given execution."""

from __future__ import annotations

import math

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.networks.graph.execution import Execution
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.live_memory import tensor_peak
from cdmpp.networks.kernels.element_types import FLOAT32, LOWER_PRECISION, element_types

_FLOAT_BYTES = 4
#: Bytes per attention score: in 16 bits, and its softmax in float32 and in 16 bits.
_SCORE_BYTES = 8
#: Number of elements that a kernel with 32-bit indices can address.
_INDEXED = 2**31


def gpu_peak_bytes(
    graph: NetworkGraph, execution: Execution, *, fused_attention: bool = True
) -> float:
    """Returns the peak bytes of weights, their casts and all tensors that are alive together.

    Autocast keeps a 16-bit copy of every weight of a product or convolution, and casts an input
    while the operator runs. Workspaces of libraries and the allocator's fragmentation are not
    included.

    Args:
        fused_attention: whether attention is one kernel, as since torch 2.0.
    """
    types = element_types(graph, execution)
    column = graph.column
    makes = column("output_size") * types.makes / _FLOAT_BYTES
    weights = column("weight_size") * types.weights / _FLOAT_BYTES
    casts = np.zeros(len(graph.kinds))
    copies = 0.0
    if execution.is_autocast:
        is_low = np.array([kind in LOWER_PRECISION for kind in graph.kinds])
        is_wide = np.array([kind in FLOAT32 for kind in graph.kinds])
        copies = float((weights * is_low).sum()) / 2
        for source, target in graph.edges.tolist():
            width = int(types.makes[source])
            wanted = int(types.computes[target])
            if (is_low[target] or is_wide[target]) and width != wanted:
                casts[target] += column("output_size")[source] * wanted / _FLOAT_BYTES
    if not fused_attention:
        casts += _attention_scores(graph) * _SCORE_BYTES
    return copies + tensor_peak(
        graph, execution.mode, sizes=makes, weights=weights, scratch=casts,
        element=types.inputs,
    )  # fmt: skip


def largest_indexed_batch(graph: NetworkGraph, execution: Execution) -> float:
    """Returns the largest batch size that a compiled network supports regardless of memory;
    infinite without a limit.

    Compiled torch 2.9 limits inputs of depthwise convolutions to fewer than 2^31 elements; torch
    2.4 and eager torch have no such limit. timm's benchmark reduced the batch size in 261 cases
    above the limit, and none of its 2,578 compiled runs exceeds it.
    """
    if not execution.compiled:
        return math.inf
    column = graph.column
    groups = column("conv_groups")
    is_depthwise = np.array([kind == "Conv" for kind in graph.kinds]) & (groups > 1)
    is_depthwise &= groups >= column("input_channels")
    elements = float((column("input_size") * is_depthwise).max(initial=0.0)) / _FLOAT_BYTES
    return graph.batch * (_INDEXED - 1) // elements if elements else math.inf


def _attention_scores(graph: NetworkGraph) -> FloatArray:
    """Returns float64 [nodes], number of scores that unfused attention writes; else 0."""
    is_attention = np.array([kind == "ScaledDotProductAttention" for kind in graph.kinds])
    outputs = graph.column("output_size") / _FLOAT_BYTES
    width = np.maximum(graph.column("output_w"), 1.0)
    return np.where(is_attention, graph.flops / (4 * width + 5), 0.0) * (outputs > 0)
