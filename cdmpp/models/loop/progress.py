"""What a training tells about itself; loads without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainProgress:
    """A training after `step` of at most `steps` steps, in an epoch counted from 1, with the loss
    of the step, the lowest validation loss so far and the number of the net's parameters.
    """

    step: int
    steps: int
    epoch: int
    loss: float
    validation_loss: float | None
    steps_per_s: float
    parameters: int


OnTrain = Callable[[TrainProgress], None]
#: (what is being done, progress of it or None)
RunProgress = Callable[[str, TrainProgress | None], None]
