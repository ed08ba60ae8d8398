"""Options of fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TuneWhat = Literal["auto", "all", "head", "adapters"]


@dataclass(frozen=True)
class FinetuneOptions:
    """How a trained model is adapted.

    Attributes:
        what: `adapters` tunes what depends on the device, the layer norms and all biases; `head`
            the parts behind the encoder; `all` every weight; `auto` tunes `adapters` and `all` from
            the same start and takes the mean of the two models' weights.
        learning_rate: peak of `adapters` and `head`; short warm-up, then cosine to zero at `steps`.
        learning_rate_all: likewise for `all`.
        steps: most steps of the optimiser.
        validate_every: steps between looks at the held-out programs.
        folds: parts of the budget that are held out in turn to decide how many steps are good (by
            task; by program when there is one task).
        programs_per_batch: programs in one step.
        programs_per_task: programs of one task kept together in a batch.
        weight_decay: decoupled, on matrices only; pulls towards zero.
        l2_to_start: weight of the squared distance from the weights at the start.
        replay: weight of the loss on source samples, which are rehearsed where they are given.
        gradient_clip: largest norm of the gradient.
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
