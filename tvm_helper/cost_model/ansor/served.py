"""Scores of a `cdmpp serve` for Ansor, instead of a local process; needs no TVM."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import numpy as np

from cdmpp.errors import UsageError
from cdmpp.serve.client import Client
from tvm_helper.cost_model.reference import move_reference, scores_of
from tvm_helper.cost_model.usage import Usage

_log = logging.getLogger("cdmpp")


class ServedAnsor:
    """Server's model with the interface of `AnsorClient`; it is never fine-tuned.

    Args:
        client: client of the server.
        model: name of the model on the server.
        device: label of the measured device.

    Raises:
        ServerError: the server does not respond.
    """

    def __init__(self, client: Client, model: str, device: str) -> None:
        client.health()
        self._client = client
        self._model = model
        self._device = device
        self._tasks: dict[str, dict[str, str]] = {}
        self._reference_s: dict[str, tuple[float, float]] = {}
        self._usage = Usage()

    def ask(self, kind: str, **values: Any) -> dict[str, Any]:
        """Returns the response to a request (see `tvm_helper.cost_model.ansor.server`).

        Raises:
            CdmppError: the server reports an error or does not respond.
            UsageError: the request is `save` or `load`.
        """
        if kind == "task":
            self._tasks[values["name"]] = {"target": values["target"], "dag": values["dag"]}
            return {}
        if kind == "predict":
            scores = self._scores(values["name"], values["lines"])
            return {"scores": scores, "usage": self._usage.to_json()}
        if kind == "update":
            results = [json.loads(line)["r"] for line in values["lines"]]
            self._usage.measured += len(results)
            self._usage.failed += sum(error_code != 0 for _, error_code, *_ in results)
            move_reference(self._reference_s, values["name"])
            return {"usage": self._usage.to_json()}
        raise UsageError("a served model is not fine-tuned, so it cannot be saved or loaded")

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _scores(self, name: str, lines: list[str]) -> list[float | None]:
        """Returns the scores of states; None = invalid."""
        started = time.perf_counter()
        entry = {"records": lines, **self._tasks[name]}
        answer = self._client.rank([entry], device=self._device, model=self._model, own_batch=True)
        self._usage.predicted += len(lines)
        self._usage.predict_s += time.perf_counter() - started
        reasons = [reason for reason in answer["reasons"] if reason is not None]
        for reason in sorted(set(reasons) - set(self._usage.unsupported)):
            _log.warning("cdmpp: candidates cannot be scored (%s); they are invalid", reason)
        self._usage.unsupported.update(reasons)
        seconds = np.array([np.nan if one is None else one for one in answer["latency_s"]])
        scores = scores_of(self._reference_s, name, seconds, unsupported=np.nan)
        return [None if np.isnan(score) else score for score in scores.tolist()]
