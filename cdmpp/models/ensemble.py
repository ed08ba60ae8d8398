"""The transformer and gradient-boosted trees, averaged in log space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.config import from_dict, to_dict
from cdmpp.datasets.samples import Samples
from cdmpp.metrics import Judged, spearman_by_task
from cdmpp.models._guard import state_value
from cdmpp.models._labels import least_mape_factor
from cdmpp.models.base import CostModel
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.models.options import EnsembleOptions
from cdmpp.models.transformer import TransformerCostModel

FloatArray = NDArray[np.float64]

#: What a rank correlation lost counts beside an error of the same size, when the share is chosen.
_ORDER_WEIGHT = 0.5
#: Shares of the trees that are tried on the validation part.
_TREE_SHARES = tuple(n / 20 for n in range(13))


class EnsembleCostModel(CostModel):
    """log latency = (1 - share) x transformer + share x trees.

    The two err differently: the mean ranks the programs of a task better than either. The share is
    chosen on the validation part (error and order within tasks), with one factor on the result.
    Trees do not extrapolate to hardware, so a device with few tasks in training
    (`EnsembleOptions.least_tasks`) is left to the transformer.

    Attributes:
        transformer: its part, which can also be used and tuned alone.
        tree_share: weight of the trees on devices with enough tasks.
        history: that of the transformer's training.
    """

    kind: ClassVar[str] = "ensemble"

    def __init__(self, options: EnsembleOptions | None = None) -> None:
        self._options = options or EnsembleOptions()
        self.transformer = TransformerCostModel(self._options.transformer)
        self._trees = GbdtCostModel(self._options.trees)
        self._tree_devices: frozenset[str] = frozenset()
        self.tree_share = 0.0
        self._factor = 1.0

    @property
    def history(self) -> list[dict[str, Any]]:
        """One entry an epoch of the transformer's latest training."""
        return self.transformer.history

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Trains both parts, then chooses the share; without validation samples it is 0.3."""
        self._trees.fit(train, validation, seed=seed)
        self.transformer.fit(train, validation, seed=seed, run_dir=run_dir, on_progress=on_progress)
        self._tree_devices = _devices_with_tasks(train, self._options.least_tasks)
        self._factor = 1.0
        if not len(validation):
            self.tree_share = self._options.default_share
            return
        by_network = np.log(self.transformer.predict(validation))
        by_trees = np.log(self._trees.predict(validation))
        has_trees = self._has_trees(validation)
        candidates = []
        for share in _TREE_SHARES:
            predicted_s = np.exp(_mixed(by_network, by_trees, share, has_trees))
            factor = least_mape_factor(predicted_s, validation.latency_s)
            candidates.append((_badness(validation, factor * predicted_s), share, factor))
        _, self.tree_share, self._factor = min(candidates)

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds."""
        log_latency = np.log(self.transformer.predict(samples))
        has_trees = self._has_trees(samples)
        if self.tree_share > 0 and np.any(has_trees):
            by_trees = np.log(self._trees.predict(samples))
            log_latency = _mixed(log_latency, by_trees, self.tree_share, has_trees)
        return np.asarray(self._factor * np.exp(log_latency))

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the weights and the trees and returns the state."""
        transformer = self.transformer.save(directory)
        return {
            "feature_schema": transformer["feature_schema"],
            "options": to_dict(self._options),
            "transformer": transformer,
            "trees": self._trees.save(directory),
            "tree_share": self.tree_share,
            "tree_devices": sorted(self._tree_devices),
            "factor": self._factor,
        }

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> EnsembleCostModel:
        """Rebuilds the model.

        Raises:
            DataError: a file is missing or does not fit the state.
        """
        model = cls(from_dict(EnsembleOptions, state_value(state, "options")))
        model.transformer = TransformerCostModel.load(directory, state_value(state, "transformer"))
        model._trees = GbdtCostModel.load(directory, state_value(state, "trees"))
        model.tree_share = float(state_value(state, "tree_share"))
        model._tree_devices = frozenset(state_value(state, "tree_devices"))
        model._factor = float(state_value(state, "factor"))
        return model

    def _has_trees(self, samples: Samples) -> NDArray[np.bool_]:
        known = np.array([spec.name in self._tree_devices for spec in samples.devices], bool)
        return np.asarray(known[samples.device], bool)


def _badness(samples: Samples, predicted_s: FloatArray) -> float:
    """Returns MAPE + (1 - Spearman within tasks) / 2: what the share of the trees is chosen by."""
    error = np.abs(predicted_s / samples.latency_s - 1.0).mean()
    judged = Judged(
        measured_s=samples.latency_s,
        predicted_s=predicted_s,
        task=samples.task_id,
        device=samples.device,
        task_weight=np.ones(len(samples.programs.tasks)),
    )
    return float(error) + _ORDER_WEIGHT * (1.0 - (spearman_by_task(judged) or 0.0))


def _mixed(
    by_network: FloatArray, by_trees: FloatArray, share: float, has_trees: NDArray[np.bool_]
) -> FloatArray:
    return by_network + np.where(has_trees, share, 0.0) * (by_trees - by_network)


def _devices_with_tasks(samples: Samples, least: int) -> frozenset[str]:
    """Returns the labels with at least that many tasks."""
    found = set()
    for index, spec in enumerate(samples.devices):
        if len(np.unique(samples.task_id[samples.device == index])) >= least:
            found.add(spec.name)
    return frozenset(found)
