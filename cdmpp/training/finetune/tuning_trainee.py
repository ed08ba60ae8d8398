"""Additions of fine-tuning to a training: chosen weights, regularisation and held-out errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import UsageError

#: Upper bound on a percentage error (as a fraction), so that no single program decides.
_MOST_RELATIVE_ERROR = 3.0


class HeldOut(Protocol):
    """A trainee (see `cdmpp.models.loop.loop.Trainee`) that also returns its predictions."""

    def batches(self, epoch: int) -> list[IntArray]:
        """Returns the batches of an epoch."""

    def loss(self, network: nn.Module, batch: IntArray) -> tuple[Tensor, int]:
        """Returns the loss and the number of samples in the batch."""

    def centre(self, network: Any) -> None:
        """Scales the network's predictions to a median error of zero in training."""

    def predict_validation(self, network: nn.Module) -> FloatArray:
        """Returns float64 [validation sample], predicted log seconds."""


class TuningTrainee:
    """A trainee for `train_loop` with regularisation towards its start and recorded predictions.

    The loop selects the weights of the lowest validation value. That value is the negative number
    of validations, so that all steps are done and the last weights are selected.

    Attributes:
        predicted: one float64 [validation sample] per validation, predicted log seconds.
    """

    def __init__(
        self,
        trainee: HeldOut,
        network: nn.Module,
        *,
        l2_to_start: float,
        rehearsal: float,
        source: HeldOut | None,
    ) -> None:
        self._trainee = trainee
        self._l2_to_start = l2_to_start
        self._start = [value.detach().clone() for value in _moving(network)] if l2_to_start else []
        self._rehearsal = rehearsal
        self._source = source
        self._source_batches = source.batches(0) if source else []
        self.predicted: list[FloatArray] = []

    def batches(self, epoch: int) -> list[IntArray]:
        """Returns the budget's batches of an epoch."""
        return self._trainee.batches(epoch)

    def loss(self, network: nn.Module, batch: IntArray) -> tuple[Tensor, int]:
        """Returns the loss on budget and source samples plus the L2 distance to the start."""
        loss, count = self._trainee.loss(network, batch)
        if self._source is not None:
            # Seeded by the batch, so that a resumed tuning draws the same.
            place = int(np.random.default_rng(batch).integers(len(self._source_batches)))
            loss = (
                loss + self._rehearsal * self._source.loss(network, self._source_batches[place])[0]
            )
        if self._l2_to_start:
            moved = zip(_moving(network), self._start, strict=True)
            loss = loss + self._l2_to_start * sum(
                ((value - start).square().sum() for value, start in moved), torch.zeros(())
            )
        return loss, count

    def validate(self, network: nn.Module) -> float:
        """Records the predictions; returns a value below the previous one."""
        self.predicted.append(self._trainee.predict_validation(network))
        return -float(len(self.predicted))


def error(predicted_s: FloatArray, measured_s: FloatArray) -> float:
    """Returns the selection criterion: the mean of log error + percentage error (at most 300 %)."""
    ratio = predicted_s / measured_s
    relative = np.minimum(np.abs(ratio - 1.0), _MOST_RELATIVE_ERROR)
    return float(np.mean(np.abs(np.log(ratio)) + relative))


def select_parameters(network: nn.Module, what: str) -> None:
    """Sets `requires_grad` of each weight.

    Args:
        what: `all`, `head` or `adapters` (see `FinetuneOptions`).

    Raises:
        UsageError: the network has no such weights.
    """
    norms = {
        f"{name}.{own}"
        for name, module in network.named_modules()
        if isinstance(module, nn.LayerNorm)
        for own, _ in module.named_parameters(recurse=False)
    }
    found = False
    for name, value in network.named_parameters():
        parts = name.split(".")
        is_scalar = value.ndim == 0
        is_head = any(part.endswith("_head") for part in parts) or is_scalar
        is_adapter = (
            any(part.startswith("device_") for part in parts) or name in norms or value.ndim <= 1
        )
        chosen = {"all": True, "head": is_head, "adapters": is_adapter}[what]
        value.requires_grad_(chosen)
        found = found or chosen
    if not found:
        raise UsageError(f"the network has no weights of {what!r}; use --set what=all")


def _moving(network: nn.Module) -> Iterable[Tensor]:
    return (value for value in network.parameters() if value.requires_grad)
