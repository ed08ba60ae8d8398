"""A served model as a cost model of this process."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import ServerError, UsageError
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.saved_model import ModelCard
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.serve.client import Client
from cdmpp.serve.leaf_table import encode_asts

_log = logging.getLogger("cdmpp")
_NOT_HERE = "a served model can only predict; train, save and load it on the server"


class ServedCostModel(CostModel):
    """Sends leaf tables to a server and returns seconds, bit-identical to the same model here.

    Args:
        client: client of the server.
        name: the server's name of the model.
        fallback: model that predicts if the server is unreachable; None = an error.
    """

    kind = "served"

    def __init__(
        self, client: Client, name: str, *, version: str, fallback: CostModel | None = None
    ) -> None:
        self._client = client
        self._name = name
        self._version = version
        self._fallback = fallback

    def predict(self, samples: Samples) -> NDArray[np.float64]:
        """Returns float64 [N], seconds.

        Raises:
            ServerError: the server is unreachable, and there is no fallback.
        """
        seconds = np.full(len(samples), np.nan)
        for index in np.unique(samples.device).tolist():
            rows = np.flatnonzero(samples.device == index)
            try:
                seconds[rows] = self._ask(samples.take(rows), samples.devices[index].name)
            except ServerError as error:
                if self._fallback is None:
                    raise
                _log.warning("cdmpp: %s; using the model of this process instead", error)
                seconds[rows] = self._fallback.predict(samples.take(rows))
        return seconds

    def _ask(self, samples: Samples, device: str) -> NDArray[np.float64]:
        tables = encode_asts([_ast(samples, row) for row in samples.program.tolist()])
        answer = self._client.rank(
            [{"leaves": tables}], device=device, model=self._name, own_batch=True
        )
        version = answer["model"]["version"]
        if version != self._version:
            _log.warning("cdmpp: the server has a new version of model %s: %s after %s",
                         self._name, version, self._version)  # fmt: skip
            self._version = version
        return np.array([np.nan if one is None else one for one in answer["latency_s"]])

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Raises `UsageError`."""
        raise UsageError(_NOT_HERE)

    def save(self, directory: Path) -> dict[str, Any]:
        """Raises `UsageError`."""
        raise UsageError(_NOT_HERE)

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> CostModel:
        """Raises `UsageError`."""
        raise UsageError(_NOT_HERE)


def served_model(
    client: Client, name: str, *, fallback: TrainedModel | None = None
) -> TrainedModel:
    """Returns a model of a server with its training devices; it has no intervals here.

    Args:
        fallback: model that predicts if the server becomes unreachable later.

    Raises:
        ServerError: the server does not respond.
        UsageError: the server has no such model.
    """
    models = {one["name"]: one for one in client.models()}
    if name not in models:
        raise UsageError(f"{client.url} has no model {name!r}; expected one of {', '.join(models)}")
    facts = models[name]
    own = {one.name for one in fields(DeviceSpec)}
    devices = tuple(
        DeviceSpec(**{key: value for key, value in spec.items() if key in own})
        for spec in client.devices()
        if spec["name"] in facts["devices"]
    )
    card = ModelCard(
        kind=ServedCostModel.kind, feature_schema=facts["feature_schema"],
        data_hash=facts["data_hash"], split={}, devices=devices, training_tasks=frozenset(),
        versions={},
    )  # fmt: skip
    model = ServedCostModel(
        client, name, version=facts["version"],
        fallback=None if fallback is None else fallback.model,
    )  # fmt: skip
    return TrainedModel(model, card, None)


def _ast(samples: Samples, row: int) -> CompactAst:
    arrays = samples.programs
    leaves = slice(int(arrays.leaf_offset[row]), int(arrays.leaf_offset[row + 1]))
    nodes = slice(int(arrays.tree_offset[row]), int(arrays.tree_offset[row + 1]))
    return CompactAst(
        arrays.leaf_features[leaves], arrays.leaf_extra[leaves], arrays.leaf_position[leaves],
        arrays.tree[nodes],
    )  # fmt: skip
