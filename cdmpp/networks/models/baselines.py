"""What a learned model has to beat: a constant, rooflines, a linear model of operators, trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cdmpp.networks.dataset.samples import TARGETS, UTILISATIONS, NetworkSamples
from cdmpp.networks.models.base import FloatArray, NetworkModel, Progress, known_targets
from cdmpp.networks.models.boosters import Boosters
from cdmpp.networks.models.prices import MemoryPrices, OperatorPrices


class ConstantLine(NetworkModel):
    """The geometric median of the training part, whatever the network."""

    kind: ClassVar[str] = "constant"

    def fit(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        *,
        seed: int,
        on_progress: Progress | None = None,
    ) -> None:
        """Takes the medians."""
        self._values = medians(train.targets, known_targets(train, validation))

    def predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6]."""
        return np.tile(self._values, (len(samples), 1))

    def save(self, directory: Path) -> dict[str, Any]:
        """Returns the medians."""
        return {"values": plain(self._values)}

    def load(self, directory: Path, state: dict[str, Any]) -> None:
        """Takes the medians."""
        self._values = from_plain(state["values"])


class RooflineFactor(NetworkModel):
    """One factor times the sum of the rooflines, one times the analytic peak memory; utilisation is
    its median.
    """

    kind: ClassVar[str] = "roofline"

    def fit(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        *,
        seed: int,
        on_progress: Progress | None = None,
    ) -> None:
        """Takes the median ratios."""
        ratio = train.targets / self._analytic(train)
        self._values = medians(ratio, known_targets(train, validation))

    def predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6]."""
        return self._analytic(samples) * self._values

    def save(self, directory: Path) -> dict[str, Any]:
        """Returns the factors."""
        return {"values": plain(self._values)}

    def load(self, directory: Path, state: dict[str, Any]) -> None:
        """Takes the factors."""
        self._values = from_plain(state["values"])

    @staticmethod
    def _analytic(samples: NetworkSamples) -> FloatArray:
        ones = np.ones((len(samples), len(UTILISATIONS)))
        return np.concatenate([samples.roofline_s(), samples.analytic_bytes(), ones], 1)


class OperatorLinear(NetworkModel):
    """A linear model of the operators: each family has a price a call, an operation and a byte.

    Memory is linear in the analytic peak, the weights, all outputs, the largest output and the
    largest operator; utilisation is its median.
    """

    kind: ClassVar[str] = "operator-linear"

    def fit(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        *,
        seed: int,
        on_progress: Progress | None = None,
    ) -> None:
        """Fits the prices."""
        self._medians = medians(train.targets, known_targets(train, validation))
        self._operators = OperatorPrices.fit(train)
        self._memory = MemoryPrices.fit(train)

    def predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6]."""
        result = np.tile(self._medians, (len(samples), 1))
        if len(samples) == 0:
            return result
        seconds = self._operators.operator_seconds(samples)
        linear = np.concatenate(
            [np.array([rows.sum(axis=0) for rows in seconds]), self._memory.predict(samples)], 1
        )
        known = np.isfinite(self._medians[: linear.shape[1]])
        result[:, : linear.shape[1]] = np.where(known, linear, np.nan)
        return result

    def save(self, directory: Path) -> dict[str, Any]:
        """Returns the prices."""
        return {
            "medians": plain(self._medians),
            "operators": self._operators.to_json(),
            "memory": self._memory.to_json(),
        }

    def load(self, directory: Path, state: dict[str, Any]) -> None:
        """Takes the prices."""
        self._medians = from_plain(state["medians"])
        self._operators = OperatorPrices.from_json(state["operators"])
        self._memory = MemoryPrices.from_json(state["memory"])


class GraphTrees(NetworkModel):
    """Gradient-boosted trees on the 18 graph features, on the log of each target."""

    kind: ClassVar[str] = "trees"

    def fit(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        *,
        seed: int,
        on_progress: Progress | None = None,
    ) -> None:
        """Boosts each target until the validation part no longer gains."""
        known_targets(train, validation)
        self._boosters = Boosters.fit(
            (network_rows(train), np.log(train.targets)),
            (network_rows(validation), np.log(validation.targets)),
            TARGETS,
            self.options.trees,
            seed=seed,
        )

    def predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6]."""
        result = np.full((len(samples), len(TARGETS)), np.nan)
        if len(samples):
            rows = network_rows(samples)
            for name in self._boosters.by_name:
                result[:, TARGETS.index(name)] = np.exp(self._boosters.predict(name, rows))
        return result

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the trees of each target."""
        return {"targets": self._boosters.save(directory)}

    def load(self, directory: Path, state: dict[str, Any]) -> None:
        """Reads the trees."""
        threads = self.options.trees.threads
        self._boosters = Boosters.load(directory, state["targets"], threads=threads)


def network_rows(samples: NetworkSamples) -> FloatArray:
    """Returns float64 [N, 21]: the graph features and the device's columns."""
    rows = np.stack([graph.network for graph in samples.encoded])
    return np.concatenate([rows, samples.device_columns()], 1)


def medians(values: FloatArray, known: list[int]) -> FloatArray:
    """Returns float64 [6], the geometric median of each known column, NaN of the others."""
    found = np.full(values.shape[1], np.nan)
    for column in known:
        found[column] = float(np.exp(np.nanmedian(np.log(values[:, column]))))
    return found


def plain(values: FloatArray) -> list[float | None]:
    """Returns values for JSON: None for NaN."""
    return [None if np.isnan(value) else float(value) for value in values.tolist()]


def from_plain(values: list[float | None]) -> FloatArray:
    """Returns what `plain` was given."""
    return np.array([np.nan if value is None else value for value in values], np.float64)
