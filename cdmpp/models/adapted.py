"""A model adapted to some devices, stored with its base model: the result of `cdmpp finetune`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.errors import UsageError
from cdmpp.files.atomic import make_folder
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.parts.checks import state_value

_BASE_FOLDER, _TUNED_FOLDER = "base", "tuned"


class AdaptedCostModel(CostModel):
    """Blends a base model with a fine-tuned one on the devices it was adapted to.

    On these devices, log latency = (1 - share) base + share tuned + log factor. On every other
    device the base model predicts.

    Attributes:
        base: the model before adaptation.
        tuned: a model fitted to the devices; None if share is 0.
        labels: labels of the devices.
        factor: multiplies the predicted seconds.
        share: weight of the tuned model, 0 to 1.
    """

    kind: ClassVar[str] = "adapted"

    def __init__(
        self,
        base: CostModel,
        tuned: CostModel | None,
        *,
        labels: frozenset[str],
        factor: float,
        share: float,
    ) -> None:
        self.base = base
        self.tuned = tuned
        self.labels = labels
        self.factor = factor
        self.share = share if tuned is not None else 0.0

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Raises an error: `cdmpp finetune` makes adapted models.

        Raises:
            UsageError: always.
        """
        raise UsageError("adapted models are made by cdmpp finetune, not by cdmpp train")

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds."""
        is_own = np.array([spec.name in self.labels for spec in samples.devices], bool)
        rows = is_own[samples.device]
        predicted_s = np.zeros(len(samples))
        needs_base = np.flatnonzero(~rows | (self.share < 1.0))
        predicted_s[needs_base] = self.base.predict(samples.take(needs_base))
        if not rows.any():
            return predicted_s
        log_s = np.full(int(rows.sum()), math.log(self.factor))
        if self.share < 1.0:
            log_s += (1.0 - self.share) * np.log(predicted_s[rows])
        if self.tuned is not None and self.share > 0.0:
            log_s += self.share * np.log(self.tuned.predict(samples.take(rows)))
        predicted_s[rows] = np.exp(log_s)
        return predicted_s

    def leaf_shares(self, samples: Samples) -> list[FloatArray] | None:
        """Returns the leaf shares of the base; the tuned model starts as its copy."""
        return self.base.leaf_shares(samples)

    def tunable_part(self) -> CostModel:
        """Returns the tunable part of the tuned model, or of the base if there is none."""
        return (self.tuned or self.base).tunable_part()

    def prior_facts(self) -> dict[str, Any] | None:
        """Returns the prior facts of the base."""
        return self.base.prior_facts()

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes each model to its own folder and returns the state."""
        parts: dict[str, Any] = {}
        for name, part in ((_BASE_FOLDER, self.base), (_TUNED_FOLDER, self.tuned)):
            if part is not None:
                make_folder(directory / name, what="part of the model")
                parts[name] = {"kind": part.kind, "state": part.save(directory / name)}
        return {
            "parts": parts,
            "labels": sorted(self.labels),
            "factor": self.factor,
            "share": self.share,
        }

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> AdaptedCostModel:
        """Rebuilds the model.

        Raises:
            DataError: a file is missing or does not fit the state.
        """
        from cdmpp.models.registry import saved_model_class

        parts = {
            name: saved_model_class(part["kind"]).load(directory / name, part["state"])
            for name, part in state_value(state, "parts").items()
        }
        return cls(
            parts[_BASE_FOLDER],
            parts.get(_TUNED_FOLDER),
            labels=frozenset(state_value(state, "labels")),
            factor=float(state_value(state, "factor")),
            share=float(state_value(state, "share")),
        )
