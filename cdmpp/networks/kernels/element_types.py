"""Element types of a network's tensors on GPUs under torch's autocast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.networks.graph.execution import Execution
from cdmpp.networks.graph.graph import NetworkGraph

#: Kinds of operators that autocast runs in 16 bits (`AT_FORALL_LOWER_PRECISION_FP` of torch's
#: `ATen/autocast_mode.h`).
LOWER_PRECISION = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "Mm", "Bmm", "Addmm", "Baddbmm", "Einsum",
     "ScaledDotProductAttention", "MultiHeadAttention", "Prelu", "Lstm", "Gru", "Rnn"}
)  # fmt: skip
#: Kinds of operators that autocast runs in float32 (`AT_FORALL_FP32` and variants with a dtype).
FLOAT32 = frozenset(
    {"Acos", "Asin", "Cosh", "Erfinv", "Exp", "Expm1", "Log", "Log10", "Log2", "Log1p",
     "Reciprocal", "Rsqrt", "Sinh", "Tan", "Pow", "Softplus", "LayerNorm", "RmsNorm", "GroupNorm",
     "CosineSimilarity", "CrossEntropy", "NllLoss", "MseLoss", "L1Loss", "Dist", "Cdist",
     "Logsumexp", "Interpolate", "Upsample", "Prod", "Softmax", "LogSoftmax", "Cumprod", "Cumsum",
     "LinalgVectorNorm", "LinalgMatrixNorm", "Sum", "Norm", "Normalize"}
)  # fmt: skip
_HALF, _SINGLE = 2, 4
#: Operators whose float32 weights do not widen the output: cuDNN has a mixed batch norm.
_KEEPS_TYPE = frozenset({"BatchNormalization"})


@dataclass(frozen=True, eq=False)
class ElementTypes:
    """Bytes per element of a network's tensors.

    Attributes:
        computes: [nodes] of an operator's inputs, after casts.
        makes: [nodes] of an operator's output.
        inputs: of the network's inputs.
        weights: of the weights in memory.
    """

    computes: NDArray[np.int64]
    makes: NDArray[np.int64]
    inputs: int
    weights: int


def element_types(graph: NetworkGraph, execution: Execution) -> ElementTypes:
    """Returns the element types of a network in an execution.

    Under autocast, products and convolutions are in 16 bits, sums and norms in float32, and other
    operators in the widest type of their inputs, weights included. The network's own input is
    ignored for an operator that also reads another operator's output.
    """
    count = len(graph.kinds)
    if not execution.is_autocast:
        width = _HALF if execution.is_half else _SINGLE
        return ElementTypes(np.full(count, width), np.full(count, width), width, width)
    sources = graph.sources()
    has_weights = (graph.column("weight_size") > 0).tolist()
    makes: list[int] = []
    for node, kind in enumerate(graph.kinds):
        if kind in LOWER_PRECISION:
            makes.append(_HALF)
        elif kind in FLOAT32:
            makes.append(_SINGLE)
        else:
            read = [makes[source] for source in sources[node]] or [_SINGLE]
            if has_weights[node] and kind not in _KEEPS_TYPE:
                read.append(_SINGLE)
            makes.append(max(read))
    array = np.array(makes, np.int64)
    return ElementTypes(array.copy(), array, _SINGLE, _SINGLE)
