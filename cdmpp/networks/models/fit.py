"""Fitting a torch network on batches of graphs: the same seed gives the same weights on a CPU."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.errors import NotFiniteError
from cdmpp.models.loop.adam import AdamOptimiser, adamw, plain_adam
from cdmpp.networks.models.options import GraphFitOptions

#: Called after every epoch with its number, losses and learning rate.
Progress = Callable[[dict[str, Any]], None]
#: Sets the gradients of the losses [targets].
Backward = Callable[[Tensor], None]
_LARGEST_GRADIENT = 5.0


class GraphTrainee(Protocol):
    """What the fit needs to know about a model and its data."""

    def losses(self, network: nn.Module, rows: list[int]) -> Tensor:
        """Returns [targets], the loss of each target on these training rows."""

    def validation_loss(self, network: nn.Module) -> float:
        """Returns what is to fall; gradients are off and the network is in evaluation mode."""


def fit_network(
    network: nn.Module,
    trainee: GraphTrainee,
    count: int,
    options: GraphFitOptions,
    *,
    seed: int,
    backward: Backward | None = None,
    on_progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Fits `network` and leaves it with the weights that validated best, the first ones included.

    Args:
        count: training rows.
        backward: sets the gradients; None = those of the sum of the losses.

    Returns:
        One entry an epoch: epoch, training_loss, validation_loss, learning_rate.

    Raises:
        NotFiniteError: the loss is not finite.
    """
    optimiser = _optimiser(network, options)
    rng = np.random.default_rng(seed)
    best, best_loss = copy.deepcopy(network.state_dict()), _validate(network, trainee, 0)
    history: list[dict[str, Any]] = []
    rate, waited = options.learning_rate, 0
    for epoch in range(1, options.epochs + 1):
        if options.schedule == "cosine":
            rate = _cosine(options, epoch)
        optimiser.learning_rate = rate
        network.train()
        total = 0.0
        for rows in _batches(rng.permutation(count), options.batch):
            losses = trainee.losses(network, rows)
            optimiser.zero_grad()
            if backward is None:
                losses.sum().backward()  # type: ignore[no-untyped-call]
            else:
                backward(losses)
            nn.utils.clip_grad_norm_(network.parameters(), _LARGEST_GRADIENT)
            optimiser.step()
            total += float(losses.detach().sum()) * len(rows)
        validated = _validate(network, trainee, epoch)
        entry = {
            "epoch": epoch,
            "training_loss": total / count,
            "validation_loss": validated,
            "learning_rate": rate,
        }
        history.append(entry)
        if on_progress:
            on_progress(entry)
        if validated < best_loss:
            best, best_loss = copy.deepcopy(network.state_dict()), validated
            waited = 0
        else:
            waited += 1
        if options.schedule == "plateau" and waited > options.patience:
            if rate <= options.least_learning_rate:
                break
            rate, waited = max(rate / 2, options.least_learning_rate), 0
    network.load_state_dict(best)
    network.eval()
    return history


@contextmanager
def torch_session(seed: int, threads: int) -> Iterator[None]:
    """Random numbers from `seed` and so many threads (0 = as they are) inside; then as before."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def _validate(network: nn.Module, trainee: GraphTrainee, epoch: int) -> float:
    network.eval()
    with torch.no_grad():
        loss = trainee.validation_loss(network)
    if not math.isfinite(loss):
        raise NotFiniteError(
            f"the validation loss of epoch {epoch} is {loss}, expected a finite number; fit with a "
            "lower learning rate (--set MODEL.fit.learning_rate=...)"
        )
    return loss


def _optimiser(network: nn.Module, options: GraphFitOptions) -> AdamOptimiser:
    if not options.weight_decay:
        return plain_adam(network, options.learning_rate)
    return adamw(network, options.learning_rate, options.weight_decay, is_fused=False)


def _cosine(options: GraphFitOptions, epoch: int) -> float:
    """Returns the learning rate: a short rise, then half a cosine."""
    rise = max(1, options.epochs // 20)
    if epoch <= rise:
        return options.learning_rate * epoch / rise
    done = (epoch - rise) / max(1, options.epochs - rise)
    share = (1 + math.cos(math.pi * done)) / 2
    return options.least_learning_rate + share * (
        options.learning_rate - options.least_learning_rate
    )


def _batches(order: np.ndarray[Any, np.dtype[np.int64]], size: int) -> Iterator[list[int]]:
    for start in range(0, len(order), size):
        yield order[start : start + size].tolist()
