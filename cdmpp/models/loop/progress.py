"""Progress reports of a training; imports without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainProgress:
    """Progress of a training after `step` of at most `steps` steps.

    Attributes:
        epoch: counted from 1.
        loss: training loss of the step.
        validation_loss: lowest validation loss so far; None before the first validation.
        parameters: number of the network's parameters.
    """

    step: int
    steps: int
    epoch: int
    loss: float
    validation_loss: float | None
    steps_per_s: float
    parameters: int


OnTrain = Callable[[TrainProgress], None]
#: Takes (description of the current work, its progress or None).
RunProgress = Callable[[str, TrainProgress | None], None]
