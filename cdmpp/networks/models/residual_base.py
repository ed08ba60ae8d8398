"""Base of the `residual` model: fitted rooflines, fitted analytic memory, median utilisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cdmpp.arrays import FloatArray
from cdmpp.networks.dataset.encode import FAMILIES, TOTAL_COLUMNS
from cdmpp.networks.dataset.samples import (
    DEVICE_COLUMNS,
    TARGETS,
    TIMES,
    UTILISATIONS,
    NetworkSamples,
)
from cdmpp.networks.models.batch import GraphTensors, Standard
from cdmpp.networks.models.prices import OperatorPrices, fit_memory_prices, memory_bytes

#: Number of first columns of `network_rows` that are inputs of every operator.
CONTEXT_COLUMNS = len(TOTAL_COLUMNS) + len(DEVICE_COLUMNS)


@dataclass(frozen=True)
class Base:
    """Predictions without a learned correction.

    Attributes:
        operators: prices of operators.
        memory: float64 [2, columns], prices of memory.
        shift: float64 [6], median log of measured over priced values; for utilisation the median
            log.
        spread: float64 [6], standard deviation of these logs; 1 without measurements.
    """

    operators: OperatorPrices
    memory: FloatArray
    shift: FloatArray
    spread: FloatArray

    @classmethod
    def fit(cls, train: NetworkSamples) -> Base:
        """Returns the base fitted to the training part."""
        zeros, ones = np.zeros(len(TARGETS)), np.ones(len(TARGETS))
        raw = cls(OperatorPrices.fit(train), fit_memory_prices(train), zeros, ones)
        left = np.log(train.targets) - raw.logs(train)
        known = np.isfinite(left).any(axis=0)
        filled = np.where(known, left, 0.0)
        spread = np.where(known, np.maximum(np.nanstd(filled, axis=0), 1e-4), 1.0)
        return cls(raw.operators, raw.memory, np.nanmedian(filled, axis=0), spread)

    def logs(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6], log targets."""
        seconds = self.operators.operator_seconds(samples)
        times = np.log([rows.sum(axis=0) for rows in seconds]).reshape(-1, len(TIMES))
        memory = np.log(memory_bytes(self.memory, samples))
        shares = np.zeros((len(samples), len(UTILISATIONS)))
        return np.asarray(np.concatenate([times, memory, shares], 1) + self.shift)

    def operator_seconds(self, samples: NetworkSamples) -> list[FloatArray]:
        """Returns [N] float64 [nodes, 2], seconds of operators that add up to `logs`."""
        factor = np.exp(self.shift[list(TIMES)])
        return [rows * factor for rows in self.operators.operator_seconds(samples)]

    def tree_rows(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, features] for boosted trees: published features, totals, device,
        base, each family's share of the base time, numbers of different convolutions, and packing
        buffers.
        """
        seconds = self.operators.operator_seconds(samples)
        shares = [
            np.bincount(graph.family, rows[:, 0] / rows[:, 0].sum(), minlength=len(FAMILIES))
            for graph, rows in zip(samples.encoded, seconds, strict=True)
        ]
        published = np.stack([graph.network for graph in samples.encoded])
        own = network_rows(samples)
        counts = np.stack(
            [[*graph.generated, *np.log1p(graph.packed_bytes)] for graph in samples.encoded]
        )
        logs = self.logs(samples)[:, :4]
        return np.concatenate([published, own, logs, np.stack(shares), counts], 1)


@dataclass(frozen=True)
class Scaling:
    """Standardisation of operators and totals, fitted on the training part."""

    nodes: Standard
    network: Standard

    @classmethod
    def fit(cls, train: NetworkSamples) -> Scaling:
        """Returns the statistics; the operators of a graph count once, whatever its devices."""
        graphs = [train.graphs[number] for number in np.unique(train.graph).tolist()]
        return cls(
            Standard.fit(np.concatenate([graph.operators for graph in graphs])),
            Standard.fit(network_rows(train)),
        )

    def tensors(
        self, samples: NetworkSamples, base: Base, dtype: torch.dtype
    ) -> list[GraphTensors]:
        """Returns the tensors of each sample; samples of a graph share its tensors."""
        made: dict[int, tuple[Tensor, Tensor]] = {}
        network = torch.tensor(self.network.apply(network_rows(samples)), dtype=dtype)
        seconds = base.operator_seconds(samples)
        result = []
        for row, number in enumerate(samples.graph.tolist()):
            graph = samples.graphs[number]
            if number not in made:
                made[number] = (
                    torch.tensor(self.nodes.apply(graph.operators), dtype=dtype),
                    torch.tensor(graph.graph.edges, dtype=torch.int64),
                )
            nodes, links = made[number]
            result.append(
                GraphTensors(
                    nodes=nodes,
                    edges=nodes.new_zeros(len(links), 0),
                    network=network[row],
                    links=links,
                    base=torch.tensor(seconds[row], dtype=dtype),
                    measured=torch.tensor(samples.operators[row], dtype=dtype),
                )
            )
        return result


def network_rows(samples: NetworkSamples) -> FloatArray:
    """Returns float64 [N, columns]: `TOTAL_COLUMNS`, the device, the remaining totals."""
    totals = np.stack([graph.totals for graph in samples.encoded])
    first = len(TOTAL_COLUMNS)
    return np.concatenate([totals[:, :first], samples.device_columns(), totals[:, first:]], 1)
