"""Gradient-boosted trees on pooled leaf features and the device vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.atomic import write_atomic
from cdmpp.datasets.samples import Samples
from cdmpp.devices.vector import device_vector
from cdmpp.errors import DataError
from cdmpp.models._guard import check_schema, check_trainable, state_value
from cdmpp.models._pooling import pooled_features
from cdmpp.models.base import CostModel
from cdmpp.models.options import GbdtOptions

_FILE_NAME = "trees.json"


class GbdtCostModel(CostModel):
    """XGBoost on log latency: a strong and quick baseline that does not see the tree, only sums and
    maxima.
    """

    kind: ClassVar[str] = "gbdt"

    def __init__(self, options: GbdtOptions | None = None) -> None:
        self._options = options or GbdtOptions()
        self._schema: dict[str, int] | None = None
        self._booster: Any = None

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Boosts on `train` until the error on `validation` (if any) stops to fall."""
        import xgboost

        check_trainable(train)
        self._schema = dict(train.programs.feature_schema)
        options = self._options
        training = xgboost.DMatrix(_matrix(train), label=np.log(train.latency_s))
        watched = []
        if len(validation):
            label = np.log(validation.latency_s)
            watched = [(xgboost.DMatrix(_matrix(validation), label=label), "validation")]
        booster = xgboost.train(
            {
                "objective": "reg:squarederror",
                "tree_method": "hist",
                "max_depth": options.depth,
                "eta": options.learning_rate,
                "subsample": options.subsample,
                "colsample_bytree": options.column_share,
                "min_child_weight": options.min_child_weight,
                "nthread": options.threads or None,
                "seed": seed,
            },
            training,
            num_boost_round=options.trees,
            evals=watched,
            early_stopping_rounds=options.patience if watched else None,
            verbose_eval=False,
        )
        if watched:
            booster = booster[: booster.best_iteration + 1]
        self._booster = booster

    def predict(self, samples: Samples) -> NDArray[np.float64]:
        """Returns float64 [N], seconds."""
        import xgboost

        check_schema(self._schema, samples)
        if len(samples) == 0:
            return np.zeros(0)
        log_latency = self._booster.predict(xgboost.DMatrix(_matrix(samples)))
        return np.exp(np.asarray(log_latency, np.float64))

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the trees as the library's own JSON and returns the state."""
        content = bytes(self._booster.save_raw("json"))
        write_atomic(directory / _FILE_NAME, lambda path: _write_bytes(path, content))
        return {"feature_schema": self._schema, "options": asdict(self._options)}

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> GbdtCostModel:
        """Rebuilds the model.

        Raises:
            DataError: the file of trees is missing or damaged.
        """
        import xgboost

        model = cls(GbdtOptions(**state_value(state, "options")))
        model._schema = state_value(state, "feature_schema")
        path = directory / _FILE_NAME
        try:
            model._booster = xgboost.Booster(model_file=bytearray(path.read_bytes()))
        except (OSError, ValueError, xgboost.core.XGBoostError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "empty"
            raise DataError(
                f"cannot read the trees {path} ({reason}); train again with `cdmpp train "
                f"--model gbdt`"
            ) from error
        return model


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _matrix(samples: Samples) -> NDArray[np.float32]:
    """Returns float32 [N, pooled + device columns]."""
    rows, inverse = np.unique(samples.program, return_inverse=True)
    devices = np.stack([device_vector(spec) for spec in samples.devices])
    pooled = pooled_features(samples.programs, rows)
    return np.concatenate([pooled[inverse], devices[samples.device]], axis=1)
