"""Baselines: a constant, rooflines, a linear model of operators, and trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.networks.dataset.samples import TARGETS, UTILISATIONS, NetworkSamples
from cdmpp.networks.models.base import Fitting, NetworkModel
from cdmpp.networks.models.boosters import Boosters
from cdmpp.networks.models.prices import OperatorPrices, fit_memory_prices, memory_bytes


@dataclass(frozen=True)
class Medians:
    """float64 [6], one number per target; NaN if it is not measured."""

    values: FloatArray


@dataclass(frozen=True)
class LinearPrices:
    """Medians of the targets, and the prices of operators and of memory."""

    medians: FloatArray
    operators: OperatorPrices
    memory: FloatArray


@dataclass(frozen=True)
class Nothing:
    """Empty parameters, for models that consist of trees only."""


class ConstantLine(NetworkModel):
    """Predicts the geometric median of the training part for every network."""

    kind: ClassVar[str] = "constant"
    found_class = Medians

    def _fit(self, train: NetworkSamples, validation: NetworkSamples, fitting: Fitting) -> None:
        self.found = Medians(medians(train.targets, self.columns))

    def _predict(self, samples: NetworkSamples) -> FloatArray:
        return np.tile(self.found.values, (len(samples), 1))


class RooflineFactor(NetworkModel):
    """Single-factor baseline: a factor times the sum of the rooflines, a factor times the analytic
    peak memory, and the median utilisation.
    """

    kind: ClassVar[str] = "roofline"
    found_class = Medians

    def _fit(self, train: NetworkSamples, validation: NetworkSamples, fitting: Fitting) -> None:
        self.found = Medians(medians(train.targets / self._analytic(train), self.columns))

    def _predict(self, samples: NetworkSamples) -> FloatArray:
        return np.asarray(self._analytic(samples) * self.found.values)

    @staticmethod
    def _analytic(samples: NetworkSamples) -> FloatArray:
        ones = np.ones((len(samples), len(UTILISATIONS)))
        return np.concatenate([samples.roofline_s(), samples.analytic_bytes(), ones], 1)


class OperatorLinear(NetworkModel):
    """Linear model of operators: each family has a price per call, operation and byte.

    Memory is linear in the analytic peak and other columns (`fit_memory_prices`). Utilisation is
    the median.
    """

    kind: ClassVar[str] = "operator-linear"
    found_class = LinearPrices

    def _fit(self, train: NetworkSamples, validation: NetworkSamples, fitting: Fitting) -> None:
        typical = medians(train.targets, self.columns)
        self.found = LinearPrices(typical, OperatorPrices.fit(train), fit_memory_prices(train))

    def _predict(self, samples: NetworkSamples) -> FloatArray:
        result = np.tile(self.found.medians, (len(samples), 1))
        seconds = self.found.operators.operator_seconds(samples)
        times = np.array([rows.sum(axis=0) for rows in seconds])
        linear = np.concatenate([times, memory_bytes(self.found.memory, samples)], 1)
        result[:, : linear.shape[1]] = linear
        return result


class GraphTrees(NetworkModel):
    """Gradient-boosted trees for the log of each target, on the graph and device features."""

    kind: ClassVar[str] = "trees"
    found_class = Nothing

    def _fit(self, train: NetworkSamples, validation: NetworkSamples, fitting: Fitting) -> None:
        self.found = Nothing()
        grown, watched = (
            (network_rows(part), np.log(part.targets)) for part in (train, validation)
        )
        self.boosters = Boosters.fit(grown, watched, TARGETS, self.tree_options, seed=fitting.seed)

    def _predict(self, samples: NetworkSamples) -> FloatArray:
        result = np.full((len(samples), len(TARGETS)), np.nan)
        rows = network_rows(samples)
        for name in self.boosters.by_name:
            result[:, TARGETS.index(name)] = np.exp(self.boosters.predict(name, rows))
        return result

    @staticmethod
    def _tree_names(state: dict[str, Any]) -> list[str]:
        return list(state["targets"])


def network_rows(samples: NetworkSamples) -> FloatArray:
    """Returns float64 [N, 21]: the graph features and the device's columns."""
    rows = np.stack([graph.network for graph in samples.encoded])
    return np.concatenate([rows, samples.device_columns()], 1)


def medians(values: FloatArray, known: list[int]) -> FloatArray:
    """Returns float64 [6], the geometric median of each known column, NaN for the others."""
    found = np.full(values.shape[1], np.nan)
    for column in known:
        found[column] = float(np.exp(np.nanmedian(np.log(values[:, column]))))
    return found
