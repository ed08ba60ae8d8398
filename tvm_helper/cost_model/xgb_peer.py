"""TVM's XGB model, trained on the same measurements as cdmpp's model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray
from cdmpp.files.json_text import parse_json
from tvm_helper.compat import meta_schedule


class XgbPeer:
    """TVM's XGB model, without TVM's random scores before the first training.

    Args:
        threads: number of training threads.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self._model: Any = meta_schedule.cost_model.XGBModel(
            num_warmup_samples=0, num_tuning_cores=threads
        )

    @property
    def is_trained(self) -> bool:
        """Whether the model can score."""
        return self._model.booster is not None

    def scores(self, context: Any, candidates: Sequence[Any]) -> FloatArray | None:
        """Returns float64 [candidate], higher is better; None before training."""
        if not self.is_trained or not candidates:
            return None
        tensors = self._model.extractor.extract_from(context, list(candidates))
        features = [tensor.numpy().astype("float32") for tensor in tensors]
        found = np.zeros(len(candidates))
        # XGBModel's packing drops candidates without rows.
        places = [place for place, rows in enumerate(features) if len(rows)]
        if places:
            found[places] = self._model._predict(xs=[features[place] for place in places])
        return found

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Trains on a measured batch, including failures."""
        if candidates:
            self._model.update(context, list(candidates), list(results))

    def save(self, directory: Path) -> None:
        """Writes the trees and the training data; TVM's own format contains a pickle."""
        directory.mkdir(exist_ok=True)
        groups = list(self._model.data.values())
        state = {
            "last_train_size": self._model.last_train_size,
            "groups": [group.group_hash for group in groups],
        }
        (directory / "state.json").write_text(json.dumps(state), encoding="utf-8")
        arrays: dict[str, NDArray[Any]] = {}
        for number, group in enumerate(groups):
            arrays[f"features_{number}"] = np.concatenate(group.features)
            arrays[f"rows_{number}"] = np.array([len(rows) for rows in group.features], np.int64)
            arrays[f"costs_{number}"] = np.asarray(group.costs, np.float32)
        with (directory / "data.npz").open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
        if self.is_trained:
            self._model.booster.save_model(str(directory / "trees.json"))

    def load(self, directory: Path) -> None:
        """Loads a folder written by `save`."""
        import xgboost

        state = parse_json((directory / "state.json").read_text(encoding="utf-8"))
        self._model.data.clear()
        self._model.data_size = 0
        with np.load(directory / "data.npz", allow_pickle=False) as arrays:
            for number, name in enumerate(state["groups"]):
                ends = np.cumsum(arrays[f"rows_{number}"])[:-1]
                features = np.split(arrays[f"features_{number}"], ends)
                costs = arrays[f"costs_{number}"]
                self._model.data[name] = meta_schedule.cost_model.xgb_model.FeatureGroup(
                    name, features, costs
                )
                self._model.data_size += len(costs)
        self._model.last_train_size = state["last_train_size"]
        trees = directory / "trees.json"
        self._model.booster = None
        if trees.exists():
            self._model.booster = xgboost.Booster()
            self._model.booster.load_model(str(trees))
