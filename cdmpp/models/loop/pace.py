"""Optimiser, learning rate schedule, stopping rule and CPU time budget of a training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import nn

from cdmpp.models.loop.adam import AdamOptimiser, adamw, plain_adam
from cdmpp.models.nets.options import LoopOptions


class CpuBudget:
    """CPU time budget of a training, summed over resumes; a budget of 0 is unlimited."""

    def __init__(self, seconds: float, history: list[dict[str, Any]]) -> None:
        self._seconds = seconds
        self._started = time.process_time()
        self._before = float(history[-1].get("cpu_s", 0.0)) if history else 0.0

    def share_used(self) -> float:
        """Returns the used share of the budget, at most 1."""
        return min(1.0, self._used() / self._seconds) if self._seconds else 0.0

    def is_spent(self) -> bool:
        """Returns whether the budget is used up."""
        return self.share_used() >= 1.0

    def note(self, entry: dict[str, Any]) -> None:
        """Stores the used seconds in an entry of the history, for a resume."""
        if self._seconds:
            entry["cpu_s"] = self._used()

    def _used(self) -> float:
        return self._before + time.process_time() - self._started


class Pace(Protocol):
    """Optimiser, learning rate and stopping rule of a training.

    Attributes:
        rate_option: name of the learning rate option, for error messages.
    """

    rate_option: ClassVar[str]

    def optimiser(self, network: nn.Module) -> AdamOptimiser:
        """Returns the optimiser over all weights."""

    def first_loss(self, validate: Callable[[], float]) -> float | None:
        """Returns the validation loss that an epoch must beat for its weights to be selected.

        None = no bound. `validate()` returns the loss of the untrained network.
        """

    def rate(
        self, history: Sequence[dict[str, Any]], *, step: int, place: float, steps: int
    ) -> float:
        """Returns the learning rate of the next step.

        Args:
            place: progress in steps for schedules that also follow the time budget; >= `step`.
        """

    def is_over(self, history: Sequence[dict[str, Any]], best_epoch: int) -> bool:
        """Returns whether training stops after these epochs."""


@dataclass(frozen=True)
class LoopPace:
    """The pace that `LoopOptions` describe."""

    options: LoopOptions
    rate_option: ClassVar[str] = "transformer.loop.learning_rate"

    def optimiser(self, network: nn.Module) -> AdamOptimiser:
        """Returns the optimiser of the options."""
        options = self.options
        if options.optimiser == "adam":
            return plain_adam(network, options.learning_rate, options.weight_decay)
        return adamw(network, options.learning_rate, options.weight_decay, is_fused=True)

    def first_loss(self, validate: Callable[[], float]) -> float | None:
        """Returns None: the first epoch's weights always count."""
        return None

    def rate(
        self, history: Sequence[dict[str, Any]], *, step: int, place: float, steps: int
    ) -> float:
        """Returns the learning rate of the schedule."""
        options = self.options
        if options.schedule == "triangular":
            return options.learning_rate * triangle(step, options.half_period)
        return options.learning_rate * _schedule(place, steps, options.warmup_fraction)

    def is_over(self, history: Sequence[dict[str, Any]], best_epoch: int) -> bool:
        """Returns whether the patience is exhausted."""
        return len(history) - best_epoch >= self.options.patience


def triangle(step: int, half_period: int) -> float:
    """Returns the factor on the learning rate: 0.1 at the start, 10 after a half period."""
    place = (step / half_period) % 2.0
    return 0.1 + 9.9 * (1.0 - abs(place - 1.0))


def _schedule(step: float, steps: int, warmup_fraction: float) -> float:
    """Returns the share of the peak learning rate: linear warm-up, then half a cosine to zero."""
    warmup = max(1.0, warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1.0, steps - warmup)))
