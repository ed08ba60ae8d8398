"""Linear models of the time of operators (fitted rooflines) and of the memory of a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.networks.dataset.encode import FAMILIES, EncodedGraph
from cdmpp.networks.dataset.samples import MEMORIES, TIMES, NetworkSamples

#: Number of terms per operator: the call, its operations, the bytes that it moves.
_CHARGES = 3
_CALL_S = 1e-6
#: Index of `ConvolutionKinds.product` in `EncodedGraph.generated`.
_PRODUCT = 3
#: Minimum time of an operator relative to its time at pooled prices, because a rare family can get
#: prices of 0.
_LEAST_SHARE = 0.1
_LEAST_S, _LEAST_BYTES = 1e-8, 1.0
#: Relative errors above this are weighted down, see `relative_prices`.
_TURN = 0.05
_ROUNDS = 8


@dataclass(frozen=True)
class OperatorPrices:
    """Prices per family of operators: per call, and as ratios to the two rooflines.

    `calls x 1 us x a + flops / peak x b + bytes / bandwidth x c`, in inference and in training.

    Attributes:
        prices: float64 [2, families, 3]: a, b and c, not negative.
        pooled: float64 [2, 3], prices of all families together.
    """

    prices: FloatArray
    pooled: FloatArray

    @classmethod
    def fit(cls, train: NetworkSamples) -> OperatorPrices:
        """Returns the prices with the smallest absolute relative errors of the networks' times. A
        family without operators has the pooled prices. All prices are 1 without measured times.
        """
        prices = np.ones((len(TIMES), len(FAMILIES), _CHARGES))
        pooled = np.ones((len(TIMES), _CHARGES))
        charges = np.stack([_family_charges(*row) for row in _rows(train)])
        is_there = charges[:, :, 0].sum(axis=0) > 0
        for mode, column in enumerate(TIMES):
            measured = train.targets[:, column]
            rows = np.flatnonzero(np.isfinite(measured))
            if len(rows) == 0:
                continue
            own = charges[rows]
            pooled[mode] = relative_prices(own.sum(axis=1), measured[rows])
            prices[mode] = pooled[mode]
            found = relative_prices(own[:, is_there].reshape(len(rows), -1), measured[rows])
            prices[mode, is_there] = found.reshape(-1, _CHARGES)
        return cls(prices, pooled)

    def operator_seconds(self, samples: NetworkSamples) -> list[FloatArray]:
        """Returns [N] float64 [nodes, 2], seconds of each operator in inference and in training."""
        result = []
        for graph, rates in _rows(samples):
            charges, family = _charges(graph, rates)
            own = np.einsum("nc,mnc->nm", charges, self.prices[:, family])
            least = _LEAST_SHARE * charges @ self.pooled.T
            result.append(np.maximum(np.maximum(own, least), _LEAST_S))
        return result


def fit_memory_prices(train: NetworkSamples) -> FloatArray:
    """Returns float64 [2, columns], non-negative prices of `_memory_columns` in inference and in
    training with the smallest absolute relative errors; the analytic peak without measurements.
    """
    width = len(_memory_columns(train.graphs[0], 0))
    prices = np.zeros((len(MEMORIES), width))
    prices[:, 1] = 1.0
    for mode, column in enumerate(MEMORIES):
        measured = train.targets[:, column]
        rows = np.flatnonzero(np.isfinite(measured))
        if len(rows):
            columns = np.stack([_memory_columns(graph, mode) for graph in train.encoded])
            prices[mode] = relative_prices(columns[rows], measured[rows])
    return prices


def memory_bytes(prices: FloatArray, samples: NetworkSamples) -> FloatArray:
    """Returns float64 [N, 2], bytes in inference and in training.

    Args:
        prices: result of `fit_memory_prices`.
    """
    modes = range(len(MEMORIES))
    rows = [
        [_memory_columns(graph, mode) @ prices[mode] for mode in modes] for graph in samples.encoded
    ]
    return np.maximum(np.array(rows).reshape(-1, len(MEMORIES)), _LEAST_BYTES)


def relative_prices(columns: FloatArray, measured: FloatArray) -> FloatArray:
    """Returns float64 [columns], non-negative prices with small errors relative to `measured`.

    Iteratively reweighted least squares, which approximates the smallest MAPE.

    Args:
        columns: float64 [rows, columns], amounts.
        measured: float64 [rows], positive.
    """
    from scipy.optimize import nnls

    matrix = columns / measured[:, None]
    size = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    matrix = matrix / size
    weight = np.ones(len(measured))
    prices = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        prices, _ = nnls(matrix * weight[:, None], weight, maxiter=100 * len(size))
        error = np.abs(matrix @ prices - 1.0)
        weight = 1.0 / np.sqrt(np.maximum(error, _TURN))
    return np.asarray(prices / size)


def _rows(samples: NetworkSamples) -> list[tuple[EncodedGraph, FloatArray]]:
    """Returns the graph of each sample with the peak and the bandwidth of its device."""
    rates = samples.rates()
    return list(zip(samples.encoded, rates[samples.device], strict=True))


def _charges(graph: EncodedGraph, rates: FloatArray) -> tuple[FloatArray, IntArray]:
    """Returns float64 [nodes, 3], seconds at prices of 1, and the families."""
    work = graph.graph.flops / rates[0]
    traffic = graph.graph.column("bytes") / rates[1]
    return np.stack([np.full(len(work), _CALL_S), work, traffic], 1), graph.family


def _family_charges(graph: EncodedGraph, rates: FloatArray) -> FloatArray:
    """Returns float64 [families, 3], sums over the operators of a family."""
    charges, family = _charges(graph, rates)
    total = np.zeros((len(FAMILIES), _CHARGES))
    np.add.at(total, family, charges)
    return total


def _memory_columns(graph: EncodedGraph, mode: int) -> FloatArray:
    """Returns the columns of the memory model: a constant, the analytic peak, weights, all outputs,
    the largest output, the largest operator, the number of operators, packing buffers of linear
    layers (forward, backward) and convolutions, whether linear layers pack,
    `EncodedGraph.generated`, whether any convolution is a matrix product, and which families occur
    (the first operator of a family enlarges the process).
    """
    column = graph.graph.column
    outputs, traffic = column("output_size"), column("bytes")
    forward, backward, convolution = graph.packed_bytes
    first = [
        1.0, graph.memory_bytes[mode], column("weight_size").sum(), outputs.sum(),
        outputs.max(), traffic.max(), len(outputs), forward,
        backward * mode, convolution, float(forward > 0),
    ]  # fmt: skip
    occurs = np.bincount(graph.family, minlength=len(FAMILIES)) > 0
    has_product = graph.generated[_PRODUCT] > 0
    return np.concatenate(
        [np.array(first, np.float64), graph.generated, [float(has_product)], occurs.astype(float)]
    )
