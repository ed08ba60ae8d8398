"""What a model has seen: devices, sizes and operators. Outside of that it is a guess."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cdmpp.networks.dataset.encode import FAMILIES, TOTAL_COLUMNS, EncodedGraph
from cdmpp.networks.dataset.samples import NetworkSamples

#: Totals whose range is kept, with the words for them.
_RANGES = {
    "log_flops": "operations",
    "log_bytes": "bytes moved",
    "log_weights": "bytes of weights",
    "log_operators": "operators",
    "log_infer_memory": "bytes alive",
}
#: A total may be so much smaller or larger than the smallest and the largest seen.
_MARGIN = math.log(1.25)
#: An operator family that was never seen matters from this share of the bytes moved on.
_NEW_SHARE = 0.01


@dataclass(frozen=True)
class Domain:
    """What the training part covers.

    Attributes:
        devices: labels.
        ranges: total -> least and largest log(1 + x).
        families: operator families that occur.
    """

    devices: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]
    families: tuple[str, ...]

    @classmethod
    def of(cls, train: NetworkSamples) -> Domain:
        """Returns what these samples cover."""
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
        """Returns why a prediction is a guess, as short texts; empty = it is not."""
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
        """Returns how many operators a network has where all that were seen have more, else 0."""
        value = float(graph.totals[TOTAL_COLUMNS.index("log_operators")])
        has_fewer = value < self.ranges["log_operators"][0] - _MARGIN
        return max(1, round(math.expm1(value))) if has_fewer else 0

    def unseen(self, graph: EncodedGraph) -> dict[str, float]:
        """Returns the kinds of operators that were never seen and matter, with their shares of the
        bytes moved.
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
