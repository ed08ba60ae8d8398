"""An ensemble of transformer, perceptron and gradient-boosted trees, averaged in log space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.config import from_dict, to_dict
from cdmpp.datasets.judge import judged
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.files.atomic import make_folder
from cdmpp.metrics import spearman_by_task
from cdmpp.models.base import CostModel
from cdmpp.models.baselines.segment_mlp import SegmentMlpCostModel
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.options import EnsembleOptions
from cdmpp.models.parts.checks import state_value
from cdmpp.models.parts.labels import least_log_error_factor, least_mape_factor
from cdmpp.models.transformer import TransformerCostModel

#: Weight of (1 - rank correlation) relative to the log error when shares are chosen.
_ORDER_WEIGHT = 0.5
#: Shares are multiples of 1 / _SHARE_STEPS.
_SHARE_STEPS = 10
_PERCEPTRON_FOLDER = "perceptron"
#: Lower bound on a part's prediction, so that the mean stays finite if a part diverges.
_LEAST_S = 1e-12
#: Minimum number of validation tasks for a device to get its own factor.
_LEAST_FACTOR_TASKS = 100


@dataclass(frozen=True)
class StandIn:
    """Replaces an unseen device for the perceptron and the trees.

    Attributes:
        device: the nearest device in their training data.
        factors: factors on the seconds of the perceptron and of the trees.
    """

    device: DeviceSpec
    factors: tuple[float, float]


class EnsembleCostModel(CostModel):
    """Weighted mean of the log latencies of a transformer, a perceptron and trees.

    The errors of the parts differ, so the mean ranks the programs of a task better than each part.
    The shares are averages of those of the options and those that minimise log error and rank loss
    within tasks on the validation part. A factor scales the result, the one of the lowest log error
    or of the lowest MAPE (`EnsembleOptions.least_mape_factor`); a device with enough validation
    tasks has its own. Trees do not extrapolate to hardware: on a device with few training tasks
    (`EnsembleOptions.least_tasks`) their share goes to the other parts.

    Attributes:
        transformer: the transformer, which can also be used and tuned alone.
        shares: weights of the transformer, the perceptron and the trees; sum 1.
        history: history of the transformer's training.
    """

    kind: ClassVar[str] = "ensemble"

    def __init__(self, options: EnsembleOptions | None = None) -> None:
        self._options = options or EnsembleOptions()
        self.transformer = TransformerCostModel(self._options.transformer)
        self._perceptron = SegmentMlpCostModel(self._options.perceptron)
        self._trees = GbdtCostModel(self._options.trees)
        self._tree_devices: frozenset[str] = frozenset()
        self.shares: tuple[float, ...] = tuple(self._options.default_shares)
        self._factor = 1.0
        self._factor_of: dict[str, float] = {}
        self._stand_ins: dict[str, StandIn] = {}

    @property
    def history(self) -> list[dict[str, Any]]:
        """One entry per epoch of the transformer's latest training."""
        return self.transformer.history

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Trains the parts, then chooses the shares; without validation samples, the defaults."""
        self._trees.fit(train, validation, seed=seed)
        self._perceptron.fit(train, validation, seed=seed)
        self.transformer.fit(train, validation, seed=seed, run_dir=run_dir, on_progress=on_progress)
        self._tree_devices = _devices_with_tasks(train, self._options.least_tasks)
        self.shares = tuple(self._options.default_shares)
        self._factor, self._factor_of = 1.0, {}
        self._stand_ins = {}
        if not len(validation):
            return
        parts = self.fenced(_logs(self.parts_s(validation)))
        has_trees = self._has_trees(validation)
        best = min(
            _possible_shares(),
            key=lambda shares: _badness(validation, _mixed(parts, shares, has_trees)),
        )
        # With few validation tasks the best shares are noisy; the average with the defaults is not.
        self.shares = tuple((a + b) / 2 for a, b in zip(best, self.shares, strict=True))
        predicted_s = np.exp(_mixed(parts, self.shares, has_trees))
        best_factor = (
            least_mape_factor if self._options.least_mape_factor else least_log_error_factor
        )
        self._factor = best_factor(predicted_s, validation.latency_s)
        labels = np.array([spec.name for spec in validation.devices])[validation.device]
        for label in _devices_with_tasks(validation, _LEAST_FACTOR_TASKS):
            own = labels == label
            self._factor_of[label] = best_factor(predicted_s[own], validation.latency_s[own])

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds."""
        return self.predict_with_disagreement(samples)[0]

    def predict_with_disagreement(self, samples: Samples) -> tuple[FloatArray, FloatArray]:
        """Returns seconds and the standard deviation of the parts' log seconds, float64 [N]."""
        parts = self.fenced(_logs(self.parts_s(samples)))
        mixed = _mixed(parts, self.shares, self._has_trees(self._stood_in(samples)[0]))
        adapted = dict.fromkeys(self._stand_ins, 1.0)
        factor_of = {**self._factor_of, **adapted}
        factor = np.array([factor_of.get(spec.name, self._factor) for spec in samples.devices])
        return factor[samples.device] * np.exp(mixed), parts.std(axis=0)

    def parts_s(self, samples: Samples) -> FloatArray:
        """Returns float64 [3, N], seconds predicted by transformer, perceptron and trees."""
        known, factors = self._stood_in(samples)
        models = ((self.transformer, samples), (self._perceptron, known), (self._trees, known))
        return factors * np.stack([model.predict(seen) for model, seen in models])

    def fenced(self, parts: FloatArray) -> FloatArray:
        """Clips each part's log seconds to the range of the other two +- `EnsembleOptions.fence`.

        A single part's outlier then cannot dominate the mean. A fence of 0 clips nothing.

        Args:
            parts: float64 [3, N], log seconds.
        """
        if self._options.fence == 0.0:
            return parts
        others = [np.delete(parts, part, axis=0) for part in range(len(parts))]
        low = np.stack([other.min(axis=0) for other in others]) - self._options.fence
        high = np.stack([other.max(axis=0) for other in others]) + self._options.fence
        return np.clip(parts, low, high)

    def adapted(
        self,
        transformer: TransformerCostModel,
        stand_ins: dict[str, StandIn],
        *,
        shares: Sequence[float],
    ) -> EnsembleCostModel:
        """Returns a model for new devices: a tuned transformer and the other parts unchanged.

        Args:
            transformer: the transformer tuned to the new devices.
            stand_ins: label of each new device -> its replacement for the other parts.
            shares: weights of transformer, perceptron and trees.
        """
        model = EnsembleCostModel(self._options)
        model.transformer = transformer
        model._perceptron, model._trees = self._perceptron, self._trees
        model._tree_devices = self._tree_devices
        model.shares, model._factor = tuple(shares), self._factor
        model._factor_of = self._factor_of
        model._stand_ins = {**self._stand_ins, **stand_ins}
        return model

    def leaf_shares(self, samples: Samples) -> list[FloatArray]:
        """Returns the leaf shares of the transformer, the only part that sums over leaves."""
        return self.transformer.leaf_shares(samples)

    def tunable_part(self) -> CostModel:
        """Returns the transformer; trees and perceptron cannot be tuned on a few tasks."""
        return self.transformer

    def prior_facts(self) -> dict[str, Any] | None:
        """Returns the prior facts of the transformer."""
        return self.transformer.prior_facts()

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the weights and the trees and returns the state."""
        transformer = self.transformer.save(directory)
        perceptron_dir = directory / _PERCEPTRON_FOLDER
        make_folder(perceptron_dir, what="weights of the perceptron")
        return {
            "feature_schema": transformer["feature_schema"],
            "options": to_dict(self._options),
            "transformer": transformer,
            "perceptron": self._perceptron.save(perceptron_dir),
            "trees": self._trees.save(directory),
            "shares": list(self.shares),
            "tree_devices": sorted(self._tree_devices),
            "factor": self._factor,
            "factor_of": self._factor_of,
            "stand_ins": {label: asdict(value) for label, value in self._stand_ins.items()},
        }

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> EnsembleCostModel:
        """Rebuilds the model.

        Raises:
            DataError: a file is missing or does not fit the state.
        """
        model = cls(from_dict(EnsembleOptions, state_value(state, "options")))
        model.transformer = TransformerCostModel.load(directory, state_value(state, "transformer"))
        perceptron = SegmentMlpCostModel.load(
            directory / _PERCEPTRON_FOLDER, state_value(state, "perceptron")
        )
        assert isinstance(perceptron, SegmentMlpCostModel)
        model._perceptron = perceptron
        model._trees = GbdtCostModel.load(directory, state_value(state, "trees"))
        first, second, third = (float(share) for share in state_value(state, "shares"))
        model.shares = (first, second, third)
        model._tree_devices = frozenset(state_value(state, "tree_devices"))
        model._factor = float(state_value(state, "factor"))
        model._factor_of = dict(state.get("factor_of", {}))  # not in earlier models
        for label, value in state.get("stand_ins", {}).items():  # not in models of the first form
            known = DeviceSpec(**value["device"])
            model._stand_ins[label] = StandIn(known, (value["factors"][0], value["factors"][1]))
        return model

    def _stood_in(self, samples: Samples) -> tuple[Samples, FloatArray]:
        """Returns samples with replaced devices, and float64 [3, N], factors on seconds by part."""
        factors = np.ones((3, len(samples.devices)))
        devices = list(samples.devices)
        for index, spec in enumerate(samples.devices):
            if spec.name in self._stand_ins:
                known = self._stand_ins[spec.name]
                devices[index], factors[1:, index] = known.device, known.factors
        return replace(samples, devices=tuple(devices)), factors[:, samples.device]

    def _has_trees(self, samples: Samples) -> BoolArray:
        known = np.array([spec.name in self._tree_devices for spec in samples.devices], bool)
        return np.asarray(known[samples.device], bool)


def _logs(seconds: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(seconds, _LEAST_S)))


def _possible_shares() -> Iterator[tuple[float, float, float]]:
    for first in range(_SHARE_STEPS + 1):
        for second in range(_SHARE_STEPS + 1 - first):
            third = _SHARE_STEPS - first - second
            yield first / _SHARE_STEPS, second / _SHARE_STEPS, third / _SHARE_STEPS


def _badness(samples: Samples, log_latency: FloatArray) -> float:
    """Returns the mean absolute log error after median shift + (1 - Spearman within tasks) / 2."""
    residual = log_latency - np.log(samples.latency_s)
    error = np.abs(residual - np.median(residual)).mean()
    order = spearman_by_task(judged(samples, np.exp(log_latency)))
    return float(error) + _ORDER_WEIGHT * (1.0 - (order or 0.0))


def _mixed(parts: FloatArray, shares: Sequence[float], has_trees: BoolArray) -> FloatArray:
    """Returns float64 [N], the weighted mean, without the trees where `has_trees` is False."""
    weights = np.broadcast_to(np.array(shares)[:, None], parts.shape).copy()
    weights[-1, ~has_trees] = 0.0
    weights[0, weights.sum(axis=0) == 0.0] = 1.0
    return np.asarray((weights * parts).sum(axis=0) / weights.sum(axis=0))


def _devices_with_tasks(samples: Samples, least: int) -> frozenset[str]:
    """Returns the labels of devices with at least `least` tasks."""
    found = set()
    for index, spec in enumerate(samples.devices):
        if len(np.unique(samples.task_id[samples.device == index])) >= least:
            found.add(spec.name)
    return frozenset(found)
