"""Adapts a trained model to new devices; held-out tasks decide how far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.models.adapted import AdaptedCostModel
from cdmpp.models.base import CostModel
from cdmpp.models.ensemble import EnsembleCostModel, StandIn
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.parts.checks import check_trainable
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.training.finetune.choice import Choice, Kept, choose, shrunken_factor
from cdmpp.training.finetune.few_shot import try_tuning, tunable
from cdmpp.training.finetune.folds import budget_folds
from cdmpp.training.finetune.one_factor import as_device, fit_one_factor, with_devices
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.finetune.tuning_trainee import error

#: The transformer's share in an ensemble is a multiple of 1 / _SHARE_STEPS.
_SHARE_STEPS = 10
#: Minimum number of tasks to hold one out.
LEAST_TASKS = 2
#: Exponent of the lowest-MAPE factor of a full fit, which is already centred.
_FULL_FACTOR = 0.5


@dataclass(frozen=True)
class Adapted:
    """A model adapted to a device.

    Attributes:
        model: the new model; the given one if no candidate is better.
        choice: the selected candidate and the reason.
        steps: tuned weights -> steps of the optimiser; empty if none were tuned.
        nearest: trained device that replaces the new one for the parts that cannot be tuned; None
            if the whole model is tunable, or no fit was selected.
        shares: shares of the ensemble's parts; None under the same conditions.
        held_out: the measured samples in the order of the folds; None if there are too few.
        held_out_s: candidate -> float64 [N], cross-validated predictions for `held_out`; empty if
            there are too few samples.
    """

    model: CostModel
    choice: Choice
    steps: dict[str, int]
    nearest: str | None
    shares: tuple[float, ...] | None
    held_out: Samples | None
    held_out_s: dict[Kept, FloatArray]

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of metrics.json."""
        return {
            "kept": self.choice.kept, "why": self.choice.reason, "steps": self.steps,
            "held_out_error": self.choice.errors, "nearest": self.nearest,
            "shares": None if self.shares is None else list(self.shares),
        }  # fmt: skip


def adapt(
    model: CostModel,
    train: Samples,
    known: Sequence[DeviceSpec],
    *,
    options: FinetuneOptions | None = None,
    seed: int,
    run_dir: Path | None = None,
    on_progress: OnTrain | None = None,
) -> Adapted:
    """Adapts a model to the devices of some measured tasks.

    Candidates are the unadapted model, one scale factor, a full fit, and the mean of factor and
    full fit; `cdmpp.training.finetune.choice` selects one.

    Args:
        train: measured samples.
        known: the devices that the model was trained on.
        run_dir: folder for logs and checkpoints of the final tunings.

    Raises:
        UsageError: the model cannot be fine-tuned.
        DataError: no samples, or features of another schema version.
    """
    fits = TriedFits(model, train, known, options=options, seed=seed, on_progress=on_progress)
    kept = fits.choice.kept
    is_fit = kept in ("shrunken", "full")
    return Adapted(
        fits.model(kept, run_dir),
        fits.choice,
        fits.steps if is_fit else {},
        fits.nearest if is_fit else None,
        fits.shares if is_fit else None,
        fits.held_out,
        fits.held_out_s,
    )


class TriedFits:
    """All candidates for a budget, with their cross-validated predictions.

    The full fit fine-tunes the tunable part (`try_tuning`). The other parts of an ensemble replace
    the device by the trained device that fits best, with one factor each. The transformer's share
    is the mean of its old share and the one with the lowest error on held-out tasks. One factor
    lowers the percentage error on them, shrunk for few tasks. With several devices the fit is the
    tuned part alone. With one task, no other can be held out, and nothing is tuned.

    Attributes:
        held_out: the budget in the order of the folds; None without folds.
        held_out_s: candidate -> float64 [N], cross-validated predictions for `held_out`.
        choice: the selected candidate and the reason.
        steps, nearest, shares: of the full fit, see `Adapted`.
    """

    def __init__(
        self,
        model: CostModel,
        train: Samples,
        known: Sequence[DeviceSpec],
        *,
        options: FinetuneOptions | None = None,
        seed: int,
        on_progress: OnTrain | None = None,
    ) -> None:
        options = options or FinetuneOptions()
        part = tunable(model, options)
        assert isinstance(part, CostModel)
        check_trainable(train)
        self._base, self._train, self._known = model, train, known
        self._folds = budget_folds(train, options.folds, seed=seed)
        self._factor = _factor(model, train)
        self._tuned: CostModel | None = None
        self.steps: dict[str, int] = {}
        self.nearest: str | None = None
        self.shares: tuple[float, ...] | None = None
        self.held_out: Samples | None = None
        self.held_out_s: dict[Kept, FloatArray] = {}
        if self._folds:
            self._try_factor()
        if len(np.unique(train.task_id)) < LEAST_TASKS:
            self.choice = Choice("one_factor", {}, "only one task: no other task to validate on")
            return
        nothing = train.take(np.zeros(0, np.int64))
        self._tried = try_tuning(
            part, train, nothing, options=options, seed=seed, on_progress=on_progress
        )
        self._try_full()
        assert self.held_out is not None
        self.choice = choose(self.held_out_s, self.held_out.latency_s, self.held_out.task_id)

    def model(self, kept: Kept, run_dir: Path | None = None) -> CostModel:
        """Fits a candidate to the whole budget; a full or shrunken fit needs `held_out_s`.

        Args:
            run_dir: folder for logs and checkpoints of the final tunings.
        """
        if kept == "unchanged":
            return self._base
        share = {"one_factor": 0.0, "shrunken": 0.5, "full": 1.0}[kept]
        if share and self._tuned is None:
            self._tuned = self._tuned_model(run_dir)
        full_factor = self._full_factor if share else 1.0
        log_factor = (1.0 - share) * math.log(self._factor) + share * math.log(full_factor)
        return AdaptedCostModel(
            self._base,
            self._tuned if share else None,
            labels=self._labels(),
            factor=math.exp(log_factor),
            share=share,
        )

    def _try_factor(self) -> None:
        rows = [np.flatnonzero(fold) for fold in self._folds]
        self.held_out = self._train.take(np.concatenate(rows))
        before = self._base.predict(self.held_out)
        factors = [_factor(self._base, self._train.take(~fold)) for fold in self._folds]
        per_row = np.repeat(factors, [len(fold) for fold in rows])
        self.held_out_s = {"unchanged": before, "one_factor": per_row * before}

    def _try_full(self) -> None:
        assert self.held_out is not None
        self.steps = self._tried.steps
        full_s = self._tried.held_out_s["tuned"]
        if self._has_others():
            assert isinstance(self._base, EnsembleCostModel)
            others = self._held_out_others(self._base)
            parts = self._base.fenced(np.log(np.concatenate([full_s[None], others])))
            self.shares = _shares(parts, self._base.shares, self.held_out.latency_s)
            full_s = np.exp(np.asarray(self.shares) @ parts)
            self._stand_in = _stand_in(self._base, self._train, self._known)
            self.nearest = self._stand_in.device.name
        self._full_factor, full_s = self._scaled(full_s)
        self.held_out_s["shrunken"] = np.sqrt(self.held_out_s["one_factor"] * full_s)
        self.held_out_s["full"] = full_s

    def _tuned_model(self, run_dir: Path | None) -> CostModel:
        tuned = self._tried.model("tuned", run_dir)
        if not self._has_others():
            return tuned
        assert isinstance(self._base, EnsembleCostModel)
        assert isinstance(tuned, TransformerCostModel)
        assert self.shares is not None
        (label,) = self._labels()
        return self._base.adapted(tuned, {label: self._stand_in}, shares=self.shares)

    def _has_others(self) -> bool:
        """Returns whether the full fit includes untuned parts of an ensemble."""
        return isinstance(self._base, EnsembleCostModel) and len(self._labels()) == 1

    def _labels(self) -> frozenset[str]:
        used = np.unique(self._train.device)
        return frozenset(self._train.devices[int(index)].name for index in used)

    def _scaled(self, predicted_s: FloatArray) -> tuple[float, FloatArray]:
        """Returns the factor on predictions, and predictions scaled by the other folds' factor."""
        assert self.held_out is not None
        measured_s, task = self.held_out.latency_s, self.held_out.task_id
        fold = np.repeat(np.arange(len(self._folds)), [int(rows.sum()) for rows in self._folds])
        scaled = predicted_s.copy()
        for one in range(len(self._folds)):
            rest = fold != one
            factor = shrunken_factor(predicted_s[rest], measured_s[rest], task[rest])
            scaled[~rest] *= factor**_FULL_FACTOR
        return shrunken_factor(predicted_s, measured_s, task) ** _FULL_FACTOR, scaled

    def _held_out_others(self, model: EnsembleCostModel) -> FloatArray:
        """Returns float64 [2, N]: seconds by perceptron and trees, in the order of the folds.

        The replaced devices and factors are fitted to the other folds.
        """
        found = []
        for rows in self._folds:
            stand_in = _stand_in(model, self._train.take(~rows), self._known)
            held_out = with_devices(self._train.take(rows), self._known)
            parts = model.parts_s(as_device(held_out, stand_in.device.name))[1:]
            found.append(np.array(stand_in.factors)[:, None] * parts)
        return np.concatenate(found, axis=1)


def _factor(model: CostModel, samples: Samples) -> float:
    return shrunken_factor(model.predict(samples), samples.latency_s, samples.task_id)


def comparable(samples: Samples, known: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """Returns the labels of known devices of the samples' kind; if there are none, of all."""
    kind = samples.devices[int(samples.device[0])].kind
    same = tuple(spec.name for spec in known if spec.kind == kind)
    return same or tuple(spec.name for spec in known)


def _stand_in(model: EnsembleCostModel, train: Samples, known: Sequence[DeviceSpec]) -> StandIn:
    """Returns the known device with the best fit of the whole model, and its parts' factors."""
    samples = with_devices(train, known)
    nearest, _ = fit_one_factor(model, samples, comparable(train, known))
    parts = model.parts_s(as_device(samples, nearest))[1:]
    first, second = np.median(train.latency_s / parts, axis=1)
    device = next(spec for spec in known if spec.name == nearest)
    return StandIn(device, (float(first), float(second)))


def _shares(
    parts: FloatArray, before: Sequence[float], measured_s: FloatArray
) -> tuple[float, ...]:
    """Returns the shares: the first is selected, the others keep their ratio.

    Args:
        parts: float64 [3, N], log seconds.
        before: the current shares.
    """
    others = np.array([0.0, *before[1:]])
    others = others / others.sum() if others.sum() > 0 else np.array([0.0, 0.5, 0.5])
    candidates = [
        share * np.array([1.0, 0.0, 0.0]) + (1.0 - share) * others
        for share in np.linspace(0.0, 1.0, _SHARE_STEPS + 1)
    ]
    best = min(candidates, key=lambda shares: error(np.exp(shares @ parts), measured_s))
    return tuple(float(value) for value in (best + np.asarray(before)) / 2.0)
