"""Our cost model inside TVM's MetaSchedule: `ms.tune_tir(..., cost_model=CdmppCostModel(...))`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule
from tvm.s_tir.meta_schedule.utils import shash2hex

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.models.base import CostModel
from cdmpp.pretrained import model_folder
from cdmpp.training.asked_device import asked_device
from cdmpp.training.estimates import TrainedModel
from tvm_helper.cost_model_file import SearchState, load_for_search, read_state, write_state
from tvm_helper.featurise import is_gpu_kind
from tvm_helper.measured_programs import LEAST_PROGRAMS, MeasuredPrograms, adapt
from tvm_helper.module_scores import ModuleSamples, module_samples, predict_modules
from tvm_helper.safety_net import SafetyNet
from tvm_helper.xgb_peer import XgbPeer

FloatArray = NDArray[np.float64]
_log = logging.getLogger("cdmpp")

#: Score of a candidate that has no features. Every other score is above it.
UNSUPPORTED_SCORE = 0.0
#: TVM stores the latency of a failed program as 1e10 seconds.
_FAILED_S = 1e9


@dataclass
class Usage:
    """What a cost model did so far.

    Attributes:
        predicted: candidates that were scored.
        unsupported: reason -> candidates that got `UNSUPPORTED_SCORE`.
        measured: candidates whose measurement it was told.
        failed: candidates whose measurement failed.
        tunings: how often the weights were tuned.
        kept_tunings: how often the tuned weights were better and were kept.
        feature_s: seconds spent on lowering and walking.
        predict_s: seconds in `predict`, features included.
        update_s: seconds in `update`, tuning and the XGB model included.
    """

    predicted: int = 0
    unsupported: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    failed: int = 0
    tunings: int = 0
    kept_tunings: int = 0
    feature_s: float = 0.0
    predict_s: float = 0.0
    update_s: float = 0.0


@derived_object
class CdmppCostModel(meta_schedule.cost_model.PyCostModel):  # type: ignore[misc]
    """Scores candidates by the latency that a trained model predicts for a device.

    A score is the shortest latency that was predicted for the task before this round over the
    candidate's latency: positive, about 1 for the best, higher is better. A candidate that cannot
    be featurised gets `UNSUPPORTED_SCORE` and is counted in `usage.unsupported`.

    Global random states are never read or set. What is raised inside TVM's calls arrives there as a
    RuntimeError with the same text.

    Args:
        model: a run folder, `pretrained`, or a loaded model.
        device: label of the hardware that measures, or what it is.
        finetune_every: 0 = frozen; n = after every n measured programs the weights are tuned to all
            that was measured, and kept if they are better on programs that were held out.
        safety_net: whether TVM's XGB model runs along and takes over where it ranks better.
        seed: of the tuning.

    Attributes:
        usage: what was done so far.
        net: the live rank correlations; its `peer_share` is the weight of XGB now.

    Raises:
        DeviceError: the device is not known.
        DataError: there is no complete model.
    """

    def __init__(
        self,
        model: TrainedModel | Path | str,
        device: DeviceSpec | str,
        *,
        finetune_every: int = 0,
        safety_net: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if finetune_every < 0:
            raise UsageError(
                f"finetune_every is {finetune_every}; expected 0 (frozen) or a number of programs"
            )
        trained = model if isinstance(model, TrainedModel) else load_for_search(model_folder(model))
        self._trained = trained
        self._device = (
            device if isinstance(device, DeviceSpec) else asked_device(device, trained.card)
        )
        self._finetune_every = finetune_every
        self._seed = seed
        self._current: CostModel = trained.model
        self._measured = MeasuredPrograms(self._device)
        self._tuned_to = 0
        self._peer = XgbPeer() if safety_net else None
        #: task -> (reference for this round, shortest predicted so far), in seconds
        self._reference_s: dict[str, tuple[float, float]] = {}
        self.usage = Usage()
        self.net = SafetyNet()

    def predict(self, context: Any, candidates: Sequence[Any]) -> FloatArray:
        """Returns float64 [candidate], higher is better."""
        started = time.perf_counter()
        task = _task(context)
        found, latency_s = self._latencies(context, candidates, task)
        scores = self._scores(task, latency_s)
        share = self.net.peer_share
        if self._peer is not None and share > 0:
            peer = self._peer.scores(context, candidates)
            if peer is not None:
                is_known = np.isfinite(latency_s)
                blended = (1.0 - share) * scores + share * np.maximum(peer, 0.0)
                scores = np.where(is_known, blended, UNSUPPORTED_SCORE)
        self._count(found, len(candidates))
        self.usage.predict_s += time.perf_counter() - started
        return scores

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learns how good the scores of a measured batch were, and from it where that is wanted."""
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
        if self._finetune_every:
            place_of = {int(place): row for row, place in enumerate(found.supported)}
            asts = [found.asts[place_of[place]] for place in np.flatnonzero(is_good).tolist()]
            self._measured.add(task, asts, cost_s[is_good])
            self._maybe_tune()
        reference = self._reference_s.get(task)
        if reference is not None:
            self._reference_s[task] = (reference[1], reference[1])
        self.usage.update_s += time.perf_counter() - started

    def check_target(self, target: Any) -> None:
        """Refuses targets that the device cannot run.

        Raises:
            UsageError: CPU programs for a GPU, or the other way round.
        """
        device = self._device
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
        state = SearchState(
            trained=self._trained,
            current=self._current,
            device=self._device,
            measured=self._measured,
            tuned_to=self._tuned_to,
            reference_s=self._reference_s,
            net=self.net,
            peer=self._peer,
        )
        write_state(Path(path), state)

    def load(self, path: str) -> None:
        """Continues where the model that wrote the file was; mode and seed stay those of this one.

        Raises:
            DataError: it is no file of this kind.
        """
        state = read_state(Path(path), peer=self._peer)
        self._trained, self._current = state.trained, state.current
        self._device, self._measured = state.device, state.measured
        self._tuned_to, self._reference_s = state.tuned_to, state.reference_s
        self.net = state.net

    def _latencies(
        self, context: Any, candidates: Sequence[Any], task: str
    ) -> tuple[ModuleSamples, FloatArray]:
        """Returns the samples and float64 [candidate], seconds; NaN without features."""
        self.check_target(context.target)
        found = module_samples(
            [candidate.sch.mod for candidate in candidates],
            context.target,
            self._device,
            task=task,
            threads=max(1, int(context.num_threads)),
        )
        return found, predict_modules(self._current, found, len(candidates))

    def _scores(self, task: str, latency_s: FloatArray) -> FloatArray:
        is_known = np.isfinite(latency_s)
        if not np.any(is_known):
            return np.full(len(latency_s), UNSUPPORTED_SCORE)
        shortest = float(latency_s[is_known].min())
        # The reference moves between rounds only: TVM compares the scores of a round's batches.
        reference, best = self._reference_s.get(task, (shortest, shortest))
        self._reference_s[task] = (reference, min(best, shortest))
        return np.where(is_known, reference / np.where(is_known, latency_s, 1.0), UNSUPPORTED_SCORE)

    def _count(self, found: ModuleSamples, candidates: int) -> None:
        self.usage.predicted += candidates
        self.usage.feature_s += found.seconds
        for reason in found.unsupported.keys() - self.usage.unsupported.keys():
            _log.warning(
                "cdmpp: %d of %d candidates cannot be scored (%s); they get the lowest score",
                found.unsupported[reason], candidates, reason,
            )  # fmt: skip
        self.usage.unsupported.update(found.unsupported)

    def _maybe_tune(self) -> None:
        new = len(self._measured) - self._tuned_to
        if new < self._finetune_every or len(self._measured) < LEAST_PROGRAMS:
            return
        result = adapt(
            self._trained.model, self._current, self._measured, self._tuned_to, seed=self._seed
        )
        self.usage.tunings += 1
        self._tuned_to = len(self._measured)
        if result.model is None:
            _log.info("cdmpp: tuning to %d programs was no better; old weights kept",
                      self._tuned_to)  # fmt: skip
            return
        self.usage.kept_tunings += 1
        self._current = result.model
        self._reference_s.clear()
        _log.info("cdmpp: tuned to %d measured programs, held-out badness %.3f after %.3f",
                  self._tuned_to, result.new, result.old)  # fmt: skip


def _task(context: Any) -> str:
    """Returns a name that is equal for equal workloads on equal kinds of targets."""
    return f"{shash2hex(context.mod)}|{context.target.kind.name}"


def _cost_s(result: Any) -> float:
    """Returns the median seconds of a measurement; NaN where it failed."""
    run_s = [float(value) for value in result.run_secs or ()]
    if result.error_msg is not None or not run_s or max(run_s) > _FAILED_S:
        return float("nan")
    return float(np.median(run_s))


__all__ = ["UNSUPPORTED_SCORE", "CdmppCostModel", "Usage"]
