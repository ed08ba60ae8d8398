"""State of cdmpp's cost model during a search, for any TVM: scores, tuning, saved state."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.models.base import CostModel
from cdmpp.predict.distilled import DistilledModel
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.requested_device import asked_device
from cdmpp.pretrained import model_folder
from cdmpp.programs.compact_ast import CompactAst
from tvm_helper.cost_model.measured_programs import LEAST_PROGRAMS, MeasuredPrograms, adapt
from tvm_helper.cost_model.neighbours import MOST_NEIGHBOURS, Misses, neighbour_columns
from tvm_helper.cost_model.reference import move_reference, scores_of
from tvm_helper.cost_model.safety_net import SafetyNet
from tvm_helper.cost_model.state_file import SearchState, load_for_search
from tvm_helper.cost_model.usage import Usage

if TYPE_CHECKING:  # imports TVM, which the process of Ansor's scorer may lack
    from tvm_helper.cost_model.xgb_peer import XgbPeer

_log = logging.getLogger("cdmpp")


class SearchCore:
    """The part of a search's cost model that needs no TVM.

    Global random states are never read or set.

    Args:
        model: a run folder, `pretrained`, or a loaded model.
        device: label or description of the measured device.
        finetune_every: 0 = frozen; n = after every n measured programs the weights are fine-tuned
            on all measured programs, and kept if they are better on held-out programs.
        neighbours: whether residuals on a task's measured programs correct predictions for its
            other programs.
        seed: seed of the fine-tuning.

    Attributes:
        trained: the model at the start of the search.
        current: the model in use. Until a tuned model replaces it, its distilled network scores
            candidates, if there is one for the device's kind.
        device: the device that measures.
        measured: the measured programs, with fine-tuning or `neighbours`; otherwise empty.
        tuned_to: number of measured programs at the last tuning.
        reference_s: task -> (reference for this round, shortest predicted so far), in seconds.
        usage: counts of scored, measured and failed programs.

    Raises:
        UsageError: `finetune_every` is negative.
        DeviceError: an unknown device.
        DataError: there is no complete model.
    """

    def __init__(
        self,
        model: TrainedModel | Path | str,
        device: DeviceSpec | str,
        *,
        finetune_every: int = 0,
        neighbours: bool = False,
        seed: int = 0,
    ) -> None:
        if finetune_every < 0:
            raise UsageError(
                f"finetune_every is {finetune_every}; expected 0 (frozen) or a number of programs"
            )
        self.trained = (
            model if isinstance(model, TrainedModel) else load_for_search(model_folder(model))
        )
        card = self.trained.card
        spec = device if isinstance(device, DeviceSpec) else asked_device(device, card)
        self.device = card.told(spec)
        self.finetune_every = finetune_every
        self.current: CostModel = self.trained.model
        self.measured = MeasuredPrograms(self.device)
        self.tuned_to = 0
        self.reference_s: dict[str, tuple[float, float]] = {}
        self.usage = Usage()
        self._neighbours = neighbours
        #: Task -> correction by its measured programs, for the model in use.
        self._told: dict[str, Misses] = {}
        self._seed = seed

    @property
    def scorer(self) -> CostModel | DistilledModel:
        """Model that scores candidates now: the model in use, or the network distilled from it
        (kind `distilled`).
        """
        is_tuned = self.current is not self.trained.model
        return self.current if is_tuned else self.trained.scorer(self.device.kind)

    def latency_s(self, task: str, samples: Samples) -> FloatArray:
        """Returns float64 [sample], predicted seconds of candidates of one task, corrected by its
        measured programs if enabled.

        Args:
            samples: samples of one device, without latencies.
        """
        predicted_s = self.scorer.predict(samples)
        if not self._neighbours or task not in self.measured.tasks:
            return predicted_s
        if task not in self._told:
            known = self.measured.samples(task)
            known = known.take(np.arange(len(known))[-MOST_NEIGHBOURS:])
            miss = np.log(known.latency_s) - np.log(self.scorer.predict(known))
            self._told[task] = Misses(neighbour_columns(known), miss)
        told = self._told[task].told(neighbour_columns(samples))
        return np.asarray(predicted_s * np.exp(told))

    def scores(self, task: str, latency_s: FloatArray, *, unsupported: float) -> FloatArray:
        """Returns float64 [candidate], see `scores_of`."""
        return scores_of(self.reference_s, task, latency_s, unsupported=unsupported)

    def count(self, unsupported: Counter[str], *, candidates: int, feature_s: float) -> None:
        """Counts a scored batch; logs each new reason once."""
        self.usage.predicted += candidates
        self.usage.feature_s += feature_s
        for reason in unsupported.keys() - self.usage.unsupported.keys():
            _log.warning(
                "cdmpp: %d of %d candidates cannot be scored (%s); they get the lowest score",
                unsupported[reason], candidates, reason,
            )  # fmt: skip
        self.usage.unsupported.update(unsupported)

    def learn(self, task: str, asts: Sequence[CompactAst], latency_s: FloatArray) -> None:
        """Adds measured programs of one task; fine-tunes the weights on all measured programs once
        `finetune_every` new ones are available.

        Args:
            latency_s: float64 [program], measured seconds.
        """
        if self.finetune_every or self._neighbours:
            self.measured.add(task, asts, latency_s)
            self._told.pop(task, None)
        if not self.finetune_every:
            return
        new = len(self.measured) - self.tuned_to
        if new < self.finetune_every or len(self.measured) < LEAST_PROGRAMS:
            return
        result = adapt(
            self.trained.model, self.current, self.measured, self.tuned_to, seed=self._seed
        )
        self.usage.tunings += 1
        self.tuned_to = len(self.measured)
        if result.model is None:
            _log.info("cdmpp: fine-tuning on %d programs was not better; old weights kept",
                      self.tuned_to)  # fmt: skip
            return
        self.usage.kept_tunings += 1
        self.current = result.model
        self.reference_s.clear()
        self._told.clear()
        _log.info("cdmpp: fine-tuned on %d measured programs, held-out loss %.3f (before: %.3f)",
                  self.tuned_to, result.new, result.old)  # fmt: skip

    def end_round(self, task: str) -> None:
        """Moves the reference of a task's scores, see `move_reference`."""
        move_reference(self.reference_s, task)

    def state(self, net: SafetyNet, peer: XgbPeer | None) -> SearchState:
        """Returns the state for `restore`, with the safety net and its peer."""
        return SearchState(
            trained=self.trained,
            current=self.current,
            device=self.device,
            measured=self.measured,
            tuned_to=self.tuned_to,
            reference_s=self.reference_s,
            net=net,
            peer=peer,
        )

    def restore(self, state: SearchState) -> None:
        """Restores a saved state; keeps this object's mode, seed and usage."""
        self.trained, self.current = state.trained, state.current
        self.device, self.measured = state.device, state.measured
        self.tuned_to, self.reference_s = state.tuned_to, state.reference_s
        self._told.clear()


__all__ = ["SearchCore"]
