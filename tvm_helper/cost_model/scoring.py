"""What our cost model knows during a search, whichever TVM asks it: scores, tuning, its state."""

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

if TYPE_CHECKING:  # it imports TVM, which a process of Ansor's scorer need not have
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
        neighbours: whether the model's errors on a task's measured programs correct its predictions
            for the task's other programs.
        seed: of the fine-tuning.

    Attributes:
        trained: the model that the search began with.
        current: the model in use; as long as it is the one that the search began with, the network
            that was distilled from that scores for it, where there is one for such devices.
        device: the hardware that measures.
        measured: what was measured, in the modes that learn from it.
        tuned_to: number of measured programs that `current` has learned from.
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
        #: Of a task: what its measured programs tell, by the model in use.
        self._told: dict[str, Misses] = {}
        self._seed = seed

    @property
    def scorer(self) -> CostModel | DistilledModel:
        """What scores candidates now: the model in use, or the network that was distilled from it
        (kind `distilled`).
        """
        is_tuned = self.current is not self.trained.model
        return self.current if is_tuned else self.trained.scorer(self.device.kind)

    def latency_s(self, task: str, samples: Samples) -> FloatArray:
        """Returns float64 [sample], what is to be expected of candidates of one task, in seconds.

        Args:
            samples: of one device, without latencies.
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
        """Takes notice of a batch that was scored; a new reason is logged."""
        self.usage.predicted += candidates
        self.usage.feature_s += feature_s
        for reason in unsupported.keys() - self.usage.unsupported.keys():
            _log.warning(
                "cdmpp: %d of %d candidates cannot be scored (%s); they get the lowest score",
                unsupported[reason], candidates, reason,
            )  # fmt: skip
        self.usage.unsupported.update(unsupported)

    def learn(self, task: str, asts: Sequence[CompactAst], latency_s: FloatArray) -> None:
        """Takes notice of measured programs of one task; tunes the weights to all that was
        measured, if the mode and their number say so.

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
        """Lets the reference of a task's scores move, after a measured batch."""
        move_reference(self.reference_s, task)

    def state(self, net: SafetyNet, peer: XgbPeer | None) -> SearchState:
        """Returns what `restore` needs, with the net and the peer that go with it."""
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
        """Continues from a saved state; mode, seed and usage stay those of this one."""
        self.trained, self.current = state.trained, state.current
        self.device, self.measured = state.device, state.measured
        self.tuned_to, self.reference_s = state.tuned_to, state.reference_s
        self._told.clear()


__all__ = ["SearchCore"]
