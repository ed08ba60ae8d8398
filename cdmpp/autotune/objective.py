"""One trial: trains a model, monitors it, and evaluates it on the validation part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from optuna.trial import Trial

from cdmpp.arrays import FloatArray
from cdmpp.autotune.leases import Lease
from cdmpp.autotune.options import AutotuneOptions, trial_options
from cdmpp.autotune.settings import MODEL, chosen_values, with_values
from cdmpp.autotune.slots import CHOSEN
from cdmpp.datasets.judge import judge, judged
from cdmpp.datasets.samples import Samples
from cdmpp.errors import CdmppError, NotApplicableError, NotFiniteError
from cdmpp.metrics import spearman_by_task
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import TrainProgress
from cdmpp.models.parts.labels import least_mape_factor
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import new_model, split_samples

#: Timed predictions of the validation part; the fastest counts, as other processes only delay.
_TIMED_PREDICTIONS = 3
_METRICS = ("mape", "median_ape", "spearman_by_task")


class TrialPrunedError(CdmppError):
    """A trial that is ended as bad; the text is the reason."""


class TrialPutBackError(CdmppError):
    """A trial that is ended without a result; it will be rerun."""


@dataclass(frozen=True)
class Parts:
    """The samples of all trials, without the test part.

    Attributes:
        train: training part.
        validation: validation part, for the objectives.
    """

    train: Samples
    validation: Samples


@dataclass(frozen=True)
class Limits:
    """Limits after which a trial is put back.

    Attributes:
        deadline: limit as `time.monotonic()`.
        cpu_left_s: limit of its CPU seconds.
    """

    deadline: float = float("inf")
    cpu_left_s: float = float("inf")


def study_parts(options: TrainOptions, samples: Samples) -> Parts:
    """Returns the training and validation parts as in `cdmpp train`.

    Raises:
        DataError: a part is empty.
    """
    parts = split_samples(options, samples)
    return Parts(samples.take(parts.train), samples.take(parts.validation))


def chosen_options(trial: Trial, options: AutotuneOptions) -> TrainOptions:
    """Returns the training options of a trial, without the trial settings.

    The sampler chooses settings that have no value yet; a finished trial has all values.
    """
    kinds = options.tuned_kinds()
    kind = trial.suggest_categorical(MODEL, kinds) if len(kinds) > 1 else kinds[0]
    base = replace(options.train, model=kind)
    space = options.space(kind)
    return with_values(base, space, chosen_values(space, trial, base))


def run_trial(
    trial: Trial, options: AutotuneOptions, parts: Parts, limits: Limits, lease: Lease
) -> list[float]:
    """Returns the values of the objectives; other results become attributes of the trial.

    Raises:
        TrialPrunedError: the pruner ended it, a limit is exceeded, the loss is not finite, memory
            is short, or the model rejects its settings.
        TrialPutBackError: the study's time is up, or another worker has the trial.
        NotApplicableError: the data lack inputs of this kind of model; this holds for all trials.
    """
    train = trial_options(options, chosen_options(trial, options))
    trial.set_user_attr(CHOSEN, train.model)
    watcher = Watcher(trial, options, parts.validation, limits, lease)
    wall = time.perf_counter()
    try:
        values = _fit_and_judge(train, options, parts, watcher)
    except (TrialPutBackError, TrialPrunedError, NotApplicableError):
        raise
    except NotFiniteError as error:
        raise TrialPrunedError(f"not finite: {error}") from error
    except CdmppError as error:
        raise TrialPrunedError(f"refused: {error}") from error
    except (MemoryError, RuntimeError, ValueError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrialPrunedError(f"out of memory: {_first_line(error)}") from error
    finally:
        if not lease.is_lost:
            watcher.note(wall_s=time.perf_counter() - wall)
    return values


class Watcher:
    """Receives the progress of a training, and ends the trial if it is bad or time is up."""

    def __init__(
        self,
        trial: Trial,
        options: AutotuneOptions,
        validation: Samples,
        limits: Limits,
        lease: Lease,
    ) -> None:
        self._trial = trial
        self._options = options
        self._validation = validation
        self._limits = limits
        self._lease = lease
        self._started = time.process_time()
        self._parameters: int | None = None
        self._steps = 0
        self._epochs = 0

    def __call__(self, progress: TrainProgress) -> None:
        """Handles the progress of one step.

        Raises:
            TrialPrunedError: a limit is exceeded.
            TrialPutBackError: see `check_time`.
        """
        self._steps = progress.step
        if self._parameters is None:
            self._parameters = progress.parameters
            self._limit("parameters", self._parameters, self._options.most_parameters)
        self.check_time()

    def validated(self, epoch: int, predict: Callable[[], FloatArray]) -> None:
        """Reports the validation error after an epoch to the pruner.

        Raises:
            TrialPrunedError: the pruner ends the trial, or the predictions are not finite.
        """
        self._epochs = epoch
        if self._options.is_two_objectives() or self._options.pruner.kind == "none":
            return
        with np.errstate(over="ignore"):
            value = error_of(self._options, self._validation, np.exp(predict()))
        self._trial.report(value, epoch)
        if self._trial.should_prune():
            raise TrialPrunedError(f"{self._options.pruner.kind}: {value:.4g} at epoch {epoch}")

    def check_time(self) -> None:
        """Ends the trial if its own or the study's time is up.

        Raises:
            TrialPrunedError: the trial exceeds its CPU time.
            TrialPutBackError: the study's time is up, or another worker has the trial.
        """
        if self._lease.is_lost:
            raise TrialPutBackError(
                "the worker did not respond in time; another worker took the trial"
            )
        cpu_s = self.cpu_s()
        self._limit("CPU seconds", cpu_s, self._options.most_trial_cpu_s)
        if time.monotonic() > self._limits.deadline or cpu_s > self._limits.cpu_left_s:
            raise TrialPutBackError("the time limit of the study was reached")

    def is_feasible(self) -> None:
        """Reports to the sampler that no limit was exceeded."""
        self._tell_limits("", 0.0)

    def cpu_s(self) -> float:
        """Returns the CPU seconds of this process since the start of the trial."""
        return time.process_time() - self._started

    def note(self, **facts: Any) -> None:
        """Writes the costs of the trial into its attributes."""
        facts |= {"cpu_s": self.cpu_s(), "steps": self._steps, "epochs": self._epochs}
        if self._parameters is not None:
            facts["parameters"] = self._parameters
        for name, value in facts.items():
            self._trial.set_user_attr(name, value)

    def _limit(self, what: str, value: float, most: float) -> None:
        if most and value > most:
            self._tell_limits(what, value / most - 1.0)
            raise TrialPrunedError(f"{value:.6g} {what}, more than {most:.6g}")

    def _tell_limits(self, passed: str, excess: float) -> None:
        # Sets all limits at once: the sampler learns only from trials with the same constraints.
        for what, most in (
            ("parameters", self._options.most_parameters),
            ("CPU seconds", self._options.most_trial_cpu_s),
        ):
            if most:
                self._trial.set_constraint(what, excess if what == passed else 0.0)


def error_of(options: AutotuneOptions, samples: Samples, predicted_s: FloatArray) -> float:
    """Returns the error that the study minimises.

    Raises:
        TrialPrunedError: a prediction is not finite or not positive.
    """
    measured_s = samples.latency_s
    if not np.all(np.isfinite(predicted_s)) or not np.all(predicted_s > 0):
        raise TrialPrunedError("not finite: a prediction is infinite, not a number or zero")
    if options.objective.kind != "error-and-order":
        return float(np.mean(np.abs(predicted_s / measured_s - 1.0)))
    scaled_s = predicted_s * least_mape_factor(predicted_s, measured_s)
    order = spearman_by_task(judged(samples, predicted_s)) or 0.0
    error = float(np.mean(np.abs(scaled_s / measured_s - 1.0)))
    return error + options.objective.order_weight * (1.0 - order)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, torch (CPU or GPU) or XGBoost means out of memory."""
    if isinstance(error, MemoryError):
        return True
    text = f"{type(error).__name__} {error}".lower()
    signs = ("out of memory", "outofmemory", "can't allocate memory", "bad_alloc", "bad allocation")
    return any(sign in text for sign in signs)


def _fit_and_judge(
    train: TrainOptions, options: AutotuneOptions, parts: Parts, watcher: Watcher
) -> list[float]:
    model = new_model(train.model, train)
    model.fit(parts.train, parts.validation, seed=train.seed, on_progress=watcher)
    # Trees report no progress while they are trained.
    watcher.check_time()
    predicted_s = model.predict(parts.validation)
    error = error_of(options, parts.validation, predicted_s)
    predict_s = _prediction_s(model, parts.validation)
    values = judge(parts.validation, predicted_s)
    watcher.is_feasible()
    watcher.note(
        predict_s=predict_s,
        **{name: values[name] for name in _METRICS if values[name] is not None},
    )
    return [error, predict_s] if options.is_two_objectives() else [error]


def _prediction_s(model: CostModel, samples: Samples) -> float:
    """Returns the wall seconds per prediction (one program on one device), in a batch."""
    found = []
    for _ in range(_TIMED_PREDICTIONS):
        started = time.perf_counter()
        model.predict(samples)
        found.append(time.perf_counter() - started)
    return min(found) / max(len(samples), 1)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
