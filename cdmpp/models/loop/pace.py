"""How fast a training goes: the optimiser, the learning rate of a step, the time it may take."""

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
    """Process CPU time of a training, over all its interruptions; never spent when it is 0."""

    def __init__(self, seconds: float, history: list[dict[str, Any]]) -> None:
        self._seconds = seconds
        self._started = time.process_time()
        self._before = float(history[-1].get("cpu_s", 0.0)) if history else 0.0

    def share_used(self) -> float:
        """Returns the share of the budget that is used, at most 1."""
        return min(1.0, self._used() / self._seconds) if self._seconds else 0.0

    def is_spent(self) -> bool:
        """Returns whether nothing of the budget is left."""
        return self.share_used() >= 1.0

    def note(self, entry: dict[str, Any]) -> None:
        """Writes the used seconds into an entry of the history, for a resume."""
        if self._seconds:
            entry["cpu_s"] = self._used()

    def _used(self) -> float:
        return self._before + time.process_time() - self._started


class Pace(Protocol):
    """How fast a training goes, and when it has gone far enough.

    Attributes:
        rate_option: the option of the learning rate, for errors.
    """

    rate_option: ClassVar[str]

    def optimiser(self, network: nn.Module) -> AdamOptimiser:
        """Returns the optimiser over all weights."""

    def first_loss(self, validate: Callable[[], float]) -> float | None:
        """Returns the validation loss that an epoch has to be below for its weights to be kept;
        None = the first epoch's are kept. `validate()` is the loss of the untrained network.
        """

    def rate(
        self, history: Sequence[dict[str, Any]], *, step: int, place: float, steps: int
    ) -> float:
        """Returns the learning rate of the next step; `place` is how far, in steps, a schedule is
        that follows time.
        """

    def is_over(self, history: Sequence[dict[str, Any]], best_epoch: int) -> bool:
        """Whether training stops after these epochs."""


@dataclass(frozen=True)
class LoopPace:
    """The pace of `LoopOptions`."""

    options: LoopOptions
    rate_option: ClassVar[str] = "transformer.loop.learning_rate"

    def optimiser(self, network: nn.Module) -> AdamOptimiser:
        """Returns the optimiser of the options."""
        options = self.options
        if options.optimiser == "adam":
            return plain_adam(network, options.learning_rate, options.weight_decay)
        return adamw(network, options.learning_rate, options.weight_decay, is_fused=True)

    def first_loss(self, validate: Callable[[], float]) -> float | None:
        """Returns None: a training is never without gain."""
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
        """Whether the patience is at its end."""
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
