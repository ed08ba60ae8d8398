"""Fits a torch network on batches of graphs with the shared training loop."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdmpp.models.loop.adam import AdamOptimiser, adamw, plain_adam
from cdmpp.models.loop.loop import train_loop
from cdmpp.models.nets.options import LoopOptions
from cdmpp.networks.models.base import Fitting
from cdmpp.networks.models.batch import GraphTensors, collate
from cdmpp.networks.models.options import GraphFitOptions

#: (network, inputs, labels) -> [targets], the loss of each target.
Losses = Callable[[nn.Module, list[Any], Tensor], Tensor]
#: Sets the gradients of a network from the losses [targets].
Backward = Callable[[nn.Module, Tensor], None]
_LARGEST_GRADIENT = 5.0
#: Graphs per batch in `run_graphs`.
_PREDICT_GRAPHS = 128


@dataclass(frozen=True)
class GraphPart:
    """Training or validation part of a network.

    Attributes:
        inputs: [rows] inputs of the network.
        wanted: float32 [rows, targets], labels; NaN = missing.
    """

    inputs: list[Any]
    wanted: Tensor


def fit_network(
    name: str,
    make: Callable[[], nn.Module],
    train: GraphPart,
    validation: GraphPart,
    losses: Losses,
    options: GraphFitOptions,
    fitting: Fitting,
    *,
    seed: int | None = None,
    backward: Backward | None = None,
) -> nn.Module:
    """Returns a network with the weights of the smallest validation loss, which may be the initial
    weights.

    Args:
        name: name of the network in the model.
        make: returns the network with initial weights.
        losses: the sum of these losses is minimised.
        seed: None = the seed of the fitting.
        backward: sets the gradients; None = gradients of the sum of the losses.

    Raises:
        NotFiniteError: the loss is not finite.
        UsageError: the folder has checkpoints of another fit.
    """
    seed = fitting.seed if seed is None else seed
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make()
    loop = LoopOptions(
        epochs=options.epochs, learning_rate=options.learning_rate, threads=options.threads,
        gradient_clip=_LARGEST_GRADIENT, average_decay=0.0,
    )  # fmt: skip
    result = train_loop(
        network,
        _Trainee(train, validation, losses, backward, options.batch, seed),
        loop,
        seed=seed,
        fingerprint=hashlib.sha256(f"{fitting.identity} {name}".encode()).hexdigest(),
        run_dir=fitting.run_dir and fitting.run_dir / name,
        on_progress=fitting.on_progress,
        pace=GraphPace(options),
    )
    network.load_state_dict(result.weights)
    fitting.history.extend({"network": name, **entry} for entry in result.history)
    return network.eval()


def squared_losses(found: Tensor, wanted: Tensor) -> Tensor:
    """Returns [targets], mean squared errors over the rows with a label."""
    return known_means(known_errors(found, wanted) ** 2, wanted)


def known_errors(found: Tensor, wanted: Tensor) -> Tensor:
    """Returns [rows, targets], prediction minus label; 0 without a label."""
    return torch.where(torch.isfinite(wanted), found - torch.nan_to_num(wanted), 0.0)


def known_means(loss: Tensor, wanted: Tensor) -> Tensor:
    """Returns [targets], means of losses over the rows with a label."""
    return loss.sum(0) / torch.isfinite(wanted).sum(0).clamp(min=1)


def run_graphs(network: nn.Module, graphs: list[GraphTensors]) -> Tensor:
    """Returns [graphs, targets], computed in batches."""
    starts = range(0, len(graphs), _PREDICT_GRAPHS)
    return torch.cat([network(collate(graphs[at : at + _PREDICT_GRAPHS])) for at in starts])


class _Trainee:
    """Adapter of one training to the training loop."""

    def __init__(
        self,
        train: GraphPart,
        validation: GraphPart,
        losses: Losses,
        backward: Backward | None,
        batch: int,
        seed: int,
    ) -> None:
        self._train, self._validation = train, validation
        self._losses, self._backward, self._batch = losses, backward, batch
        self._rng, self._orders = np.random.default_rng(seed), list[NDArray[np.int64]]()
        self._latest: tuple[nn.Module, Tensor] | None = None

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        while len(self._orders) <= epoch:
            self._orders.append(self._rng.permutation(len(self._train.inputs)))
        order = self._orders[epoch]
        return [order[at : at + self._batch] for at in range(0, len(order), self._batch)]

    def loss(self, network: nn.Module, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        rows = batch.tolist()
        inputs = [self._train.inputs[row] for row in rows]
        losses = self._losses(network, inputs, self._train.wanted[rows])
        self._latest = network, losses
        return losses.sum(), len(rows)

    def backward(self, loss: Tensor) -> None:
        """Sets the gradients of the last loss."""
        assert self._latest is not None
        if self._backward is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._backward(*self._latest)

    def validate(self, network: nn.Module) -> float:
        held = self._validation
        return float(self._losses(network, held.inputs, held.wanted).sum())


class GraphPace:
    """Learning-rate schedule of `GraphFitOptions`, with one rate per epoch.

    The initial weights are a candidate for the best weights too.
    """

    rate_option: ClassVar[str] = "MODEL.fit.learning_rate"

    def __init__(self, options: GraphFitOptions) -> None:
        self._options = options
        self._first_loss = math.inf

    def optimiser(self, network: nn.Module) -> AdamOptimiser:
        """Returns Adam, or AdamW with weight decay."""
        options = self._options
        if not options.weight_decay:
            return plain_adam(network, options.learning_rate)
        return adamw(network, options.learning_rate, options.weight_decay, is_fused=False)

    def first_loss(self, validate: Callable[[], float]) -> float | None:
        """Returns the validation loss before the first step."""
        self._first_loss = validate()
        return self._first_loss

    def rate(
        self, history: Sequence[dict[str, Any]], *, step: int, place: float, steps: int
    ) -> float:
        """Returns the learning rate of the next epoch."""
        if self._options.schedule == "cosine":
            return self._cosine(len(history) + 1)
        return self._plateau(history)[0]

    def is_over(self, history: Sequence[dict[str, Any]], best_epoch: int) -> bool:
        """Returns whether the plateau schedule must reduce the rate below its minimum."""
        return self._options.schedule == "plateau" and self._plateau(history)[1]

    def _plateau(self, history: Sequence[dict[str, Any]]) -> tuple[float, bool]:
        """Returns the rate of the plateau schedule, and whether training ends."""
        options = self._options
        rate, waited, best = options.learning_rate, 0, self._first_loss
        for entry in history:
            loss = entry["validation_loss"]
            waited, best = (0, loss) if loss < best else (waited + 1, best)
            if waited > options.patience:
                if rate <= options.least_learning_rate:
                    return rate, True
                rate, waited = max(rate / 2, options.least_learning_rate), 0
        return rate, False

    def _cosine(self, epoch: int) -> float:
        """Returns the rate of an epoch: a short linear warm-up, then a cosine decay."""
        options = self._options
        rise = max(1, options.epochs // 20)
        if epoch <= rise:
            return options.learning_rate * epoch / rise
        done = (epoch - rise) / max(1, options.epochs - rise)
        share = (1 + math.cos(math.pi * done)) / 2
        span = options.learning_rate - options.least_learning_rate
        return options.least_learning_rate + share * span
