"""Options of fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TuneWhat = Literal["auto", "all", "head", "adapters"]


@dataclass(frozen=True)
class FinetuneOptions:
    """Options of fine-tuning.

    Attributes:
        what: `adapters` tunes the device-dependent weights, the layer norms and all biases; `head`
            the layers after the encoder; `all` every weight; `auto` tunes `adapters` and `all` from
            the same start and averages the weights of the two models.
        learning_rate: peak learning rate of `adapters` and `head`; short warm-up, then cosine to
            zero at `steps`.
        learning_rate_all: peak learning rate of `all`, with the same schedule.
        steps: maximum steps of the optimiser.
        validate_every: steps between evaluations on held-out programs.
        folds: number of cross-validation folds that select the number of steps (by task; by program
            if there is one task).
        programs_per_batch: programs per step.
        programs_per_task: programs of one task that are grouped in a batch.
        weight_decay: decoupled, on matrices only, towards zero.
        l2_to_start: weight of the squared distance from the weights at the start.
        replay: weight of the loss on samples of the first training; 0 = they are not used.
        gradient_clip: maximum norm of the gradient.
        threads: CPU threads; 0 = all cores.
    """

    what: TuneWhat = "auto"
    learning_rate: float = 1e-3
    learning_rate_all: float = 1e-4
    steps: int = 160
    validate_every: int = 40
    folds: int = 3
    programs_per_batch: int = 48
    programs_per_task: int = 4
    weight_decay: float = 0.0
    l2_to_start: float = 0.0
    replay: float = 0.0
    gradient_clip: float = 1.0
    threads: int = 1
