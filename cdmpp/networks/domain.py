"""Training domain of a model (devices, sizes, operators) and out-of-distribution reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cdmpp.networks.dataset.encode import FAMILIES, TOTAL_COLUMNS, EncodedGraph
from cdmpp.networks.dataset.samples import NetworkSamples

#: Totals with a recorded range -> their name in messages.
_RANGES = {
    "log_flops": "operations",
    "log_bytes": "bytes moved",
    "log_weights": "bytes of weights",
    "log_operators": "operators",
    "log_infer_memory": "bytes alive",
}
#: Tolerated log ratio of a total below the smallest or above the largest in training.
_MARGIN = math.log(1.25)
#: Minimum share of the bytes moved from which an unseen operator family is reported.
_NEW_SHARE = 0.01


@dataclass(frozen=True)
class Domain:
    """Domain of the training part.

    Attributes:
        devices: labels of the devices.
        ranges: total -> (smallest, largest) log(1 + x).
        families: operator families.
    """

    devices: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]
    families: tuple[str, ...]

    @classmethod
    def of(cls, train: NetworkSamples) -> Domain:
        """Returns the domain of samples."""
        graphs = [train.graphs[number] for number in np.unique(train.graph).tolist()]
        totals = np.stack([graph.totals for graph in graphs])
        columns = {name: totals[:, TOTAL_COLUMNS.index(name)] for name in _RANGES}
        seen = np.unique(np.concatenate([graph.family for graph in graphs]))
        return cls(
            devices=tuple(spec.name for spec in train.devices),
            ranges={name: (float(c.min()), float(c.max())) for name, c in columns.items()},
            families=tuple(FAMILIES[number] for number in seen.tolist()),
        )

    def reasons(self, graph: EncodedGraph, device: str) -> tuple[str, ...]:
        """Returns the reasons why a prediction is out of distribution; empty if it is not."""
        found = []
        if device not in self.devices:
            found.append(
                f"no training data on {device} (only on {', '.join(self.devices)}); times follow "
                "its rooflines"
            )
        for name, (least, most) in self.ranges.items():
            value = float(graph.totals[TOTAL_COLUMNS.index(name)])
            if value < least - _MARGIN or value > most + _MARGIN:
                side, end = ("fewer", least) if value < least else ("more", most)
                found.append(
                    f"{side} {_RANGES[name]} ({math.expm1(value):.3g}) than all measured "
                    f"networks ({math.expm1(end):.3g})"
                )
        unseen = self.unseen(graph)
        if unseen:
            found.append(f"unseen operators: {', '.join(sorted(unseen))}")
        return tuple(found)

    def few_operators(self, graph: EncodedGraph) -> int:
        """Returns a network's number of operators if it is below the training range, else 0."""
        value = float(graph.totals[TOTAL_COLUMNS.index("log_operators")])
        has_fewer = value < self.ranges["log_operators"][0] - _MARGIN
        return max(1, round(math.expm1(value))) if has_fewer else 0

    def unseen(self, graph: EncodedGraph) -> dict[str, float]:
        """Returns kind -> share of the bytes moved, for operators of unseen families with a share
        of at least `_NEW_SHARE`.
        """
        traffic = graph.graph.column("bytes")
        whole = max(float(traffic.sum()), 1.0)
        found: dict[str, float] = {}
        for number in np.unique(graph.family).tolist():
            is_own = graph.family == number
            share = float(traffic[is_own].sum()) / whole
            if FAMILIES[number] in self.families or share < _NEW_SHARE:
                continue
            for node in np.flatnonzero(is_own).tolist():
                kind = graph.graph.kinds[node]
                found[kind] = found.get(kind, 0.0) + float(traffic[node]) / whole
        return found
