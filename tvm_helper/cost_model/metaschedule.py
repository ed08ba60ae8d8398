"""cdmpp's cost model in MetaSchedule: `ms.tune_tir(..., cost_model=CdmppCostModel(...))`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.predict.estimates import TrainedModel
from cdmpp.pretrained import model_folder
from cdmpp.processes.collector import without_collector
from cdmpp.programs.featurise import is_gpu_kind
from cdmpp.serve.client import Client
from cdmpp.serve.served_model import served_model
from tvm_helper.compat import derived_object, meta_schedule, shash2hex
from tvm_helper.cost_model.module_scores import ModuleSamples, module_samples
from tvm_helper.cost_model.safety_net import SafetyNet
from tvm_helper.cost_model.scoring import SearchCore
from tvm_helper.cost_model.state_file import load_for_search, read_state, write_state
from tvm_helper.cost_model.usage import Usage
from tvm_helper.cost_model.xgb_peer import XgbPeer

#: Score of a candidate without features. Every other score is higher.
UNSUPPORTED_SCORE = 0.0
#: TVM stores the latency of a failed program as 1e10 seconds.
_FAILED_S = 1e9


@derived_object
class CdmppCostModel(meta_schedule.cost_model.PyCostModel):  # type: ignore[misc]
    """Scores candidates by the latency that a trained model predicts for a device.

    A score is the shortest latency predicted for the task before this round, divided by the
    candidate's latency: positive, about 1 for the best, higher is better. A candidate that cannot
    be featurised gets `UNSUPPORTED_SCORE` and is counted in `usage.unsupported`.

    Global random states are never read or set. TVM turns errors in its calls into a RuntimeError
    with the same text.

    Args:
        model: a run folder, `pretrained`, or a loaded model; with a server, the name of its model.
        device: label or description of the measured device.
        server: URL of a `cdmpp serve` that scores; its scores are bit-identical to those of a local
            model.
        token: token of the server.
        fallback: local model to use if the server stops; None = the search ends.
        finetune_every: 0 = frozen; n = after every n measured programs the weights are fine-tuned
            on all measured programs, and kept if they are better on held-out programs.
        neighbours: whether residuals on a task's measured programs correct predictions for its
            other candidates.
        safety_net: whether TVM's XGB model also scores, and gets weight while it ranks better.
        seed: seed of the fine-tuning.

    Attributes:
        usage: counts of scored, measured and failed programs.
        net: the current rank correlations; its `peer_share` is the current weight of XGB.

    Raises:
        DeviceError: an unknown device.
        DataError: there is no complete model.
        ServerError: the server does not respond.
        UsageError: a served model cannot be fine-tuned.
    """

    def __init__(
        self,
        model: TrainedModel | Path | str,
        device: DeviceSpec | str,
        *,
        server: str | None = None,
        token: str | None = None,
        fallback: TrainedModel | Path | str | None = None,
        finetune_every: int = 0,
        neighbours: bool = True,
        safety_net: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if server is not None:
            if finetune_every:
                raise UsageError("a served model cannot be fine-tuned; leave finetune_every at 0")
            client = Client(server, token=token)
            model = served_model(client, str(model), fallback=_local(fallback))
        self._core = SearchCore(
            model, device, finetune_every=finetune_every, neighbours=neighbours, seed=seed
        )
        self._peer = XgbPeer() if safety_net else None
        self.usage = self._core.usage
        self.net = SafetyNet()

    @property
    def scorer(self) -> str:
        """Kind of the model that scores candidates now; `distilled` = the distilled network."""
        return self._core.scorer.kind

    @without_collector()  # one collection over TVM's and torch's objects takes as long as a batch
    def predict(self, context: Any, candidates: Sequence[Any]) -> FloatArray:
        """Returns float64 [candidate], higher is better."""
        started = time.perf_counter()
        task = _task(context)
        found, latency_s = self._latencies(context, candidates, task)
        scores = self._core.scores(task, latency_s, unsupported=UNSUPPORTED_SCORE)
        share = self.net.peer_share
        if self._peer is not None and share > 0:
            peer = self._peer.scores(context, candidates)
            if peer is not None:
                is_known = np.isfinite(latency_s)
                blended = (1.0 - share) * scores + share * np.maximum(peer, 0.0)
                scores = np.where(is_known, blended, UNSUPPORTED_SCORE)
        self._core.count(found.unsupported, candidates=len(candidates), feature_s=found.seconds)
        self.usage.predict_s += time.perf_counter() - started
        return scores

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Updates the safety net with a measured batch; adapts the model to it if enabled."""
        if len(candidates) == 0:
            return
        started = time.perf_counter()
        task = _task(context)
        cost_s = np.array([_cost_s(result) for result in results])
        found, latency_s = self._latencies(context, candidates, task)
        is_good = np.isfinite(cost_s) & np.isfinite(latency_s)
        self.usage.measured += len(candidates)
        self.usage.failed += int(np.sum(~np.isfinite(cost_s)))
        if self._peer is not None:
            peer = self._peer.scores(context, candidates)
            own = -latency_s[is_good]
            self.net.judge(
                context.task_name or task, cost_s[is_good], own,
                None if peer is None else peer[is_good],
            )  # fmt: skip
            self._peer.update(context, candidates, results)
        place_of = {int(place): row for row, place in enumerate(found.supported)}
        asts = [found.ast(place_of[place]) for place in np.flatnonzero(is_good).tolist()]
        self._core.learn(task, asts, cost_s[is_good])
        self._core.end_round(task)
        self.usage.update_s += time.perf_counter() - started

    def check_target(self, target: Any) -> None:
        """Checks that the device can run programs for a target.

        Raises:
            UsageError: the target is for CPUs and the device is a GPU, or the reverse.
        """
        device = self._core.device
        if is_gpu_kind(target.kind.name) != (device.kind == "gpu"):
            raise UsageError(
                f"programs for {target.kind.name} do not run on {device.name}, which is a "
                f"{device.kind}; expected a device of the target's kind, see `cdmpp device list`"
            )

    def save(self, path: str) -> None:
        """Writes everything that `load` needs into one file (tar, no pickle inside).

        Raises:
            DataError: it cannot be written.
        """
        write_state(Path(path), self._core.state(self.net, self._peer))

    def load(self, path: str) -> None:
        """Restores the state of the model that wrote the file; keeps this model's mode and seed.

        Raises:
            DataError: not a file of this kind.
        """
        state = read_state(Path(path), peer=self._peer)
        self._core.restore(state)
        self.net = state.net

    def _latencies(
        self, context: Any, candidates: Sequence[Any], task: str
    ) -> tuple[ModuleSamples, FloatArray]:
        """Returns the samples and float64 [candidate], predicted seconds; NaN without features."""
        self.check_target(context.target)
        found = module_samples(
            [candidate.sch.mod for candidate in candidates[:]],  # a slice is read faster
            context.target,
            self._core.device,
            task=task,
            threads=max(1, int(context.num_threads)),
            version=self._core.trained.card.leaf_extra_version,
        )
        latency_s = np.full(len(candidates), np.nan)
        if len(found.supported):
            latency_s[found.supported] = self._core.latency_s(task, found.samples)
        return found, latency_s


def _local(model: TrainedModel | Path | str | None) -> TrainedModel | None:
    """Returns the loaded model; None stays None."""
    if model is None or isinstance(model, TrainedModel):
        return model
    return load_for_search(model_folder(model))


def _task(context: Any) -> str:
    """Returns a name of the workload and the target's kind."""
    return f"{shash2hex(context.mod)}|{context.target.kind.name}"


def _cost_s(result: Any) -> float:
    """Returns the median seconds of a measurement; NaN if it failed."""
    run_s = [float(value) for value in result.run_secs or ()]
    if result.error_msg is not None or not run_s or max(run_s) > _FAILED_S:
        return float("nan")
    return float(np.median(run_s))


__all__ = ["UNSUPPORTED_SCORE", "CdmppCostModel", "Usage"]
