"""Tunes copies of a trained model, for cross-validation on a budget and on the whole budget."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.models.loop.loop import train_loop
from cdmpp.models.loop.pace import LoopPace
from cdmpp.models.loop.progress import OnTrain, TrainProgress
from cdmpp.models.nets.options import LoopOptions
from cdmpp.models.parts.leaf_batches import samples_digest
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.finetune.tuning_trainee import HeldOut, TuningTrainee, select_parameters


@runtime_checkable
class Tunable(Protocol):
    """Interface of models that can be fine-tuned."""

    def tuning_copy(self) -> Tunable:
        """Returns a copy that shares no weights with the model."""

    def tuning_starts(self, budget: Samples) -> Sequence[Tunable]:
        """Returns copies as starts: an unchanged one, then one per trained device.

        The latter treat the budget's device like the trained device.
        """

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds."""

    def tuning_network(self) -> nn.Module:
        """Returns the network of `predict`, not a copy."""

    def tuning_trainee(
        self, train: Samples, validation: Samples, loop: LoopOptions, *, seed: int
    ) -> HeldOut:
        """Returns a trainee for the training loop, with the statistics of the first training."""


def look_name(what: str, steps: int) -> str:
    """Returns the key of a tuned variant in `FinetuneResult.held_out_error`."""
    return f"{what}, {steps} steps"


class Tuner:
    """Tunes copies of one model with one set of options."""

    def __init__(
        self,
        model: Tunable,
        budget: Samples,
        options: FinetuneOptions,
        seed: int,
        source: Samples | None,
        on_progress: OnTrain | None,
    ) -> None:
        self._unchanged = model
        self._model = _nearest_start(model, budget)
        self._options = options
        self._seed = seed
        self._source = source
        self._on_progress = on_progress
        self._whats = ("adapters", "all") if options.what == "auto" else (options.what,)

    def best_steps(self, errors: dict[str, float]) -> dict[str, int]:
        """Returns kind of tuning -> number of steps with the lowest held-out error."""
        return {
            what: min(self._looks(), key=lambda steps: errors[look_name(what, steps)])
            for what in self._whats
        }

    def unchanged(self) -> Tunable:
        """Returns a copy of the unadapted model."""
        return self._unchanged.tuning_copy()

    def shifted(self, budget: Samples) -> Tunable:
        """Returns a copy scaled to a median error of zero on the budget."""
        model = self._model.tuning_copy()
        self._trainee(budget, budget, "").centre(model.tuning_network())
        return model

    def trial(self, train: Samples, held_out: Samples) -> dict[str, FloatArray]:
        """Returns variant -> float64 [held-out sample], predicted log seconds.

        The start is also chosen without the held-out samples.
        """
        start = _nearest_start(self._unchanged, train)
        trainee = self._trainee(train, held_out, "")
        network = self._unchanged.tuning_network()
        predicted = {"unchanged": trainee.predict_validation(network)}
        network = start.tuning_copy().tuning_network()
        trainee.centre(network)
        predicted["shifted"] = trainee.predict_validation(network)
        for what in self._whats:
            trainee = self._trainee(train, held_out, what)
            network = start.tuning_copy().tuning_network()
            trainee.centre(network)
            looks = self._tune(network, trainee, what, None, None, train)
            names = [look_name(what, steps) for steps in self._looks()]
            predicted |= dict(zip(names, looks, strict=True))
        return predicted

    def tuned(self, budget: Samples, steps: dict[str, int], run_dir: Path | None) -> Tunable:
        """Returns a copy with the averaged weights of all kinds of tuning.

        Args:
            steps: kind of tuning -> number of steps.
            run_dir: folder for logs and checkpoints; None = none are written.
        """
        weights: list[dict[str, Tensor]] = []
        for what, count in steps.items():
            network = self._model.tuning_copy().tuning_network()
            trainee = self._trainee(budget, budget, what)
            trainee.centre(network)
            folder = run_dir and run_dir / f"tuning-{what}"
            self._tune(network, trainee, what, count, folder, budget)
            weights.append(network.state_dict())
        model = self._model.tuning_copy()
        mean = {key: torch.stack([part[key] for part in weights]).mean(0) for key in weights[0]}
        model.tuning_network().load_state_dict(mean)
        return model

    def _looks(self) -> list[int]:
        """Returns the numbers of steps after which held-out programs are evaluated."""
        every, most = self._options.validate_every, self._options.steps
        return [*range(every, most, every), most]

    def _loop(self, what: str) -> LoopOptions:
        options = self._options
        return LoopOptions(
            epochs=options.steps,
            max_steps=options.steps,
            validate_every=options.validate_every,
            patience=1,
            programs_per_batch=options.programs_per_batch,
            programs_per_task=options.programs_per_task,
            learning_rate=options.learning_rate_all if what == "all" else options.learning_rate,
            weight_decay=options.weight_decay,
            gradient_clip=options.gradient_clip,
            threads=options.threads,
        )

    def _trainee(self, train: Samples, validation: Samples, what: str) -> HeldOut:
        loop = self._loop(what)
        return self._model.tuning_trainee(train, validation, loop, seed=self._seed)

    def _tune(
        self,
        network: nn.Module,
        trainee: HeldOut,
        what: str,
        wanted_steps: int | None,
        run_dir: Path | None,
        budget: Samples,
    ) -> list[FloatArray]:
        """Tunes in place; returns predictions of the held-out samples at each validation.

        Args:
            wanted_steps: steps after which tuning stops and validates once; None = all steps, with
                a validation at each of `_looks`.
        """
        options, loop = self._options, self._loop(what)
        pace = _Pace(loop)
        if wanted_steps is not None:
            loop = replace(
                loop,
                max_steps=wanted_steps,
                validate_every=wanted_steps,
                checkpoint_every=options.validate_every,
            )
        select_parameters(network, what)
        tuning = TuningTrainee(
            trainee,
            network,
            l2_to_start=options.l2_to_start,
            rehearsal=options.replay,
            source=self._trainee(self._source, self._source, what) if self._source else None,
        )
        result = train_loop(
            network,
            tuning,
            loop,
            seed=self._seed,
            fingerprint=self._fingerprint(network, budget, what, wanted_steps),
            run_dir=run_dir,
            on_progress=self._report,
            pace=pace,
        )
        network.load_state_dict(result.weights)
        network.requires_grad_(True).eval()
        return tuning.predicted

    def _report(self, progress: TrainProgress) -> None:
        """Reports progress without the validation value, which only counts (`TuningTrainee`)."""
        if self._on_progress:
            self._on_progress(replace(progress, validation_loss=None))

    def _fingerprint(
        self, network: nn.Module, budget: Samples, what: str, wanted_steps: int | None
    ) -> str:
        digest = hashlib.sha256()
        source = samples_digest(self._source) if self._source else None
        facts = [asdict(self._options), self._seed, samples_digest(budget), source]
        facts += [what, wanted_steps]
        digest.update(json.dumps(facts).encode())
        for value in network.state_dict().values():
            digest.update(value.numpy().tobytes())
        return digest.hexdigest()


class _Pace(LoopPace):
    """The learning rate of a tuning of all steps, also if it stops earlier."""

    def rate(
        self, history: Sequence[dict[str, Any]], *, step: int, place: float, steps: int
    ) -> float:
        return super().rate(history, step=step, place=place, steps=self.options.max_steps)


def _nearest_start(model: Tunable, budget: Samples) -> Tunable:
    """Returns the start with the lowest median absolute log error on the budget after scaling.

    Ties go to the unchanged model.
    """
    errors = []
    starts = model.tuning_starts(budget)
    for start in starts:
        log_ratio = np.log(budget.latency_s) - np.log(start.predict(budget))
        errors.append(float(np.median(np.abs(log_ratio - np.median(log_ratio)))))
    return starts[int(np.argmin(errors))]
