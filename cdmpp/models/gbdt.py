"""Gradient-boosted trees on pooled leaf features and the device vector."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray
from cdmpp.config import from_dict, to_dict
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs
from cdmpp.devices.vector import device_vector
from cdmpp.errors import UsageError
from cdmpp.files.boosted_trees import (
    ask_trees,
    grow_trees,
    load_booster,
    save_booster,
    tree_parameters,
    tree_rows,
)
from cdmpp.files.stored import from_json, to_json
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.nets.options import is_base, is_feature
from cdmpp.models.options import GbdtObjective, GbdtOptions
from cdmpp.models.parts.checks import check_schema, check_trainable, state_value
from cdmpp.models.parts.labels import LogLabels, ScoreLabels, labels_from_json
from cdmpp.models.parts.pooling import pooled_features
from cdmpp.models.parts.prior import Prior, fit_prior
from cdmpp.models.parts.ranking import best_over_latency, log_rates, task_device_groups

_FILE_NAME = "trees.ubj.xz"
_CHUNK_PROGRAMS = 20_000
#: Maximum numbers of training and of validation samples, whose columns are held in memory (15 KB
#: per sample). Every task keeps the same number.
_MOST_SAMPLES, _MOST_WATCHED = 350_000, 60_000
_log = logging.getLogger("cdmpp")
_OBJECTIVES: dict[GbdtObjective, str] = {
    "squared_log": "reg:squarederror",
    "absolute_log": "reg:absoluteerror",
    "huber_log": "reg:pseudohubererror",
    "rank": "rank:pairwise",
}


class GbdtCostModel(CostModel):
    """XGBoost on log latency, from sums and maxima over the leaves: a strong and fast baseline.

    The objective `rank` learns the order of the programs of one task on one device; the scores are
    calibrated to seconds afterwards (see `ScoreLabels`).
    """

    kind: ClassVar[str] = "gbdt"

    def __init__(self, options: GbdtOptions | None = None) -> None:
        self._options = options or self.default_options()
        self._schema: dict[str, int] | None = None
        self._labels: LogLabels | ScoreLabels = LogLabels(0.0, 1.0)
        self._booster: Any = None
        self._prior: Prior | None = None

    @classmethod
    def default_options(cls) -> GbdtOptions:
        """Returns the default options."""
        return GbdtOptions()

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Boosts on `train` until the error on `validation` (if any) stops falling.

        Raises:
            UsageError: objective `rank` with a prior that predictions are relative to.
        """
        check_trainable(train)
        self._schema = dict(train.programs.feature_schema)
        options = self._options
        if options.objective == "rank" and is_base(options.prior):
            raise UsageError(
                f"objective 'rank' learns an order and cannot use prior {options.prior!r}; "
                "expected --set gbdt.prior=none or feature"
            )
        self._prior = fit_prior(train, options.prior, options.prior_model)
        train = _few(train, _MOST_SAMPLES, seed)
        validation = _few(validation, _MOST_WATCHED, seed)
        # The ranking objective needs the programs of one task on one device to be contiguous.
        train = train.take(np.argsort(task_device_groups(train), kind="stable"))
        judge, watched, rows = train, None, self._labelled(train)
        if len(validation):
            judge = validation.take(np.argsort(task_device_groups(validation), kind="stable"))
            watched = self._labelled(judge)
        self._booster = grow_trees(
            self._parameters(seed), rows, watched, trees=options.trees, patience=options.patience
        )
        output = np.asarray(self._booster.predict(rows if watched is None else watched), np.float64)
        if options.objective == "rank":
            self._labels = ScoreLabels.fit(-output, judge.latency_s, log_rates(judge))
        else:
            labels = LogLabels(0.0, 1.0)
            output = output + self._base(judge)
            if options.least_mape_factor:
                labels = labels.with_least_mape(labels.decode(output), judge.latency_s)
            self._labels = labels

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds."""
        samples = check_schema(self._schema, samples)
        if len(samples) == 0:
            return np.zeros(0)
        parts = np.array_split(np.arange(len(samples)), -(-len(samples) // _CHUNK_PROGRAMS))
        return np.concatenate([self._predict(samples.take(part)) for part in parts])

    def _predict(self, samples: Samples) -> FloatArray:
        output = ask_trees(self._booster, self._matrix(samples))
        if isinstance(self._labels, ScoreLabels):
            return self._labels.decode(-output, log_rates(samples))
        return self._labels.decode(output + self._base(samples))

    def prior_facts(self) -> dict[str, Any] | None:
        """Returns the calibrated analytic prior as JSON; None without one."""
        return None if self._prior is None else to_json(self._prior)

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the trees and returns the state."""
        save_booster(self._booster, directory / _FILE_NAME)
        return {
            "feature_schema": self._schema,
            "options": to_dict(self._options),
            "labels": asdict(self._labels),
            "prior": self.prior_facts(),
        }

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> GbdtCostModel:
        """Rebuilds the model.

        Raises:
            DataError: the file of trees is missing or damaged.
        """
        model = cls(from_dict(GbdtOptions, state_value(state, "options")))
        model._schema = state_value(state, "feature_schema")
        labels = labels_from_json(state_value(state, "labels"))
        assert isinstance(labels, LogLabels | ScoreLabels)
        model._labels = labels
        prior = state.get("prior")
        model._prior = None if prior is None else from_json(Prior, prior)
        hint = f"retrain with `cdmpp train --model {cls.kind}`"
        model._booster = load_booster(directory / _FILE_NAME, hint=hint)
        model._booster.set_param({"nthread": model._options.threads})
        return model

    def _parameters(self, seed: int) -> dict[str, Any]:
        options = self._options
        parameters = tree_parameters(options, _OBJECTIVES[options.objective], seed)
        if options.objective == "rank":
            parameters |= {"eval_metric": "ndcg", "ndcg_exp_gain": False}
        return parameters

    def _labelled(self, samples: Samples) -> Any:
        """Returns rows and labels of samples whose groups are contiguous."""
        matrix, threads = self._matrix(samples), self._options.threads
        if self._options.objective != "rank":
            labels = np.log(samples.latency_s) - self._base(samples)
            return tree_rows(matrix, labels, threads=threads)
        group = task_device_groups(samples)
        places = np.unique(group, return_inverse=True)[1]
        ranks = best_over_latency(samples.latency_s, group)
        return tree_rows(matrix, ranks, groups=places, threads=threads)

    def _matrix(self, samples: Samples) -> NDArray[np.float32]:
        """Returns float32 [N, pooled + device columns]."""
        rows, inverse = np.unique(samples.program, return_inverse=True)
        blocks = self._options.extra_blocks
        totals = self._options.total_columns
        pooled = pooled_features(samples.programs, rows, blocks, totals=totals)
        devices = np.stack([device_vector(spec) for spec in samples.devices])
        is_each_once = np.array_equal(inverse, np.arange(len(rows)))
        columns = [pooled if is_each_once else pooled[inverse], devices[samples.device]]
        if self._prior is not None and is_feature(self._options.prior):
            columns.append(self._prior.columns(samples)[:, 1:])
        return np.concatenate(columns, axis=1)

    def _base(self, samples: Samples) -> FloatArray | float:
        """Returns the base of the trees' output: float64 [N], log seconds of the prior, or 0."""
        if self._prior is None or not is_base(self._options.prior):
            return 0.0
        return self._prior.log_s(samples)


class GbdtRankCostModel(GbdtCostModel):
    """Gradient-boosted trees trained with the ranking objective."""

    kind: ClassVar[str] = "gbdt-rank"

    @classmethod
    def default_options(cls) -> GbdtOptions:
        """Returns the options with the ranking objective."""
        return GbdtOptions(objective="rank")


def _few(samples: Samples, most: int, seed: int) -> Samples:
    """Returns at most `most` samples and keeps every task of every device (`cap_programs`)."""
    if len(samples) <= most:
        return samples
    found = cap_programs(samples, most // len(np.unique(samples.device)), seed=seed)
    _log.warning(
        "the trees use %d of %d samples, all tasks alike: more do not fit into memory",
        len(found), len(samples),
    )  # fmt: skip
    return found
