"""How fast a training goes: the optimiser, the learning rate of a step, the time it may take."""

from __future__ import annotations

import math
import time
from typing import Any

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


def new_optimiser(network: nn.Module, options: LoopOptions) -> AdamOptimiser:
    """Returns the optimiser of the options over all weights."""
    if options.optimiser == "adam":
        return plain_adam(network, options.learning_rate, options.weight_decay)
    return adamw(network, options.learning_rate, options.weight_decay, is_fused=True)


def learning_rate(options: LoopOptions, *, step: int, place: float, steps: int) -> float:
    """Returns the learning rate of the next step; `place` is how far, in steps, the cosine is."""
    if options.schedule == "triangular":
        return options.learning_rate * triangle(step, options.half_period)
    return options.learning_rate * _schedule(place, steps, options.warmup_fraction)


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
