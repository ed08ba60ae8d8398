"""The training loop of torch models: deterministic order, early stopping, checkpoints, exact
resume.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdmpp.datasets.atomic import make_folder
from cdmpp.errors import DataError
from cdmpp.models.options import LoopOptions
from cdmpp.training._files import write_text
from cdmpp.training.checkpoint import (
    TrainingState,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

Progress = Callable[[dict[str, Any]], None]


class Trainee(Protocol):
    """What the loop needs to know about a model and its data."""

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Returns the batches of an epoch, a pure function of the epoch; all epochs have equally
        many.
        """

    def loss(self, network: nn.Module, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        """Returns the loss to minimise and the number of samples in the batch."""

    def validate(self, network: nn.Module) -> float:
        """Returns the validation loss; `network` is in evaluation mode and gradients are off."""


@dataclass(frozen=True)
class LoopResult:
    """How a training went.

    Attributes:
        weights: averaged weights with the lowest validation loss.
        best_epoch: their epoch, counted from 1.
        steps: steps done.
        history: one entry an epoch: epoch, step, training_loss, validation_loss, samples_per_s,
            elapsed_s.
    """

    weights: dict[str, Tensor]
    best_epoch: int
    steps: int
    history: list[dict[str, Any]]


def train_loop(
    network: nn.Module,
    trainee: Trainee,
    options: LoopOptions,
    *,
    seed: int,
    fingerprint: str,
    run_dir: Path | None = None,
    on_progress: Progress | None = None,
) -> LoopResult:
    """Trains `network` and returns its best averaged weights.

    With a `run_dir`, a checkpoint is written every `options.checkpoint_every` steps and after every
    epoch, and a later call with the same fingerprint continues from the newest one: on CPU the
    result has the same bytes as a training that was never interrupted. The caller's random state is
    left alone.

    Raises:
        DataError: the loss is not finite.
        UsageError: `run_dir` holds checkpoints of another fingerprint.
    """
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(options.threads or threads)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _train(network, trainee, options, fingerprint, run_dir, on_progress)
    finally:
        torch.set_num_threads(threads)


def _train(
    network: nn.Module,
    trainee: Trainee,
    options: LoopOptions,
    fingerprint: str,
    run_dir: Path | None,
    on_progress: Progress | None,
) -> LoopResult:
    state = TrainingState(
        network=network,
        average=copy.deepcopy(network).requires_grad_(False),
        best={key: value.detach().clone() for key, value in network.state_dict().items()},
        optimiser=_optimiser(network, options),
        step=0,
        best_loss=None,
        best_epoch=0,
        epoch_losses=[],
        history=[],
        finished=False,
    )
    checkpoints = run_dir / "checkpoints" if run_dir else None
    if checkpoints:
        make_folder(checkpoints, what="checkpoints")
        newest = latest_checkpoint(checkpoints)
        if newest:
            load_checkpoint(newest, state, fingerprint=fingerprint)
    if run_dir:
        _write_log(run_dir, state.history)
    per_epoch = len(trainee.batches(0))
    steps = per_epoch * options.epochs
    started = time.perf_counter()
    first_step = state.step
    while not state.finished and state.step < steps:
        epoch = state.step // per_epoch
        samples = 0
        epoch_started = time.perf_counter()
        for batch in trainee.batches(epoch)[state.step % per_epoch :]:
            loss, count = _step(state, trainee, batch, options, steps)
            state.epoch_losses.append(loss)
            samples += count
            at_end = state.step % per_epoch == 0
            if checkpoints and not at_end and state.step % options.checkpoint_every == 0:
                save_checkpoint(checkpoints, state, fingerprint=fingerprint)
            if on_progress:
                elapsed = time.perf_counter() - started
                on_progress(
                    {
                        "step": state.step,
                        "steps": steps,
                        "epoch": epoch + 1,
                        "loss": loss,
                        "validation_loss": state.best_loss,
                        "steps_per_s": (state.step - first_step) / max(elapsed, 1e-9),
                    }
                )
        seconds = time.perf_counter() - epoch_started
        _end_epoch(state, trainee, epoch + 1, samples / max(seconds, 1e-9), seconds)
        state.finished = (
            epoch + 1 - state.best_epoch >= options.patience or epoch + 1 == options.epochs
        )
        if run_dir:
            _append_log(run_dir, state.history[-1])
        if checkpoints:
            save_checkpoint(checkpoints, state, fingerprint=fingerprint)
    return LoopResult(state.best, state.best_epoch, state.step, state.history)


def _optimiser(network: nn.Module, options: LoopOptions) -> torch.optim.Optimizer:
    matrices = [p for p in network.parameters() if p.ndim >= 2]
    others = [p for p in network.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": options.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=options.learning_rate,
    )


def _step(
    state: TrainingState,
    trainee: Trainee,
    batch: NDArray[np.int64],
    options: LoopOptions,
    steps: int,
) -> tuple[float, int]:
    for group in state.optimiser.param_groups:
        group["lr"] = options.learning_rate * _schedule(state.step, steps, options.warmup_fraction)
    state.network.train()
    loss, samples = trainee.loss(state.network, batch)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise DataError(
            f"the training loss became {value} at step {state.step + 1}; expected a finite "
            f"number; try a "
            "lower learning rate, e.g. --set transformer.loop.learning_rate=0.0003"
        )
    state.optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(state.network.parameters(), options.gradient_clip)
    state.optimiser.step()
    state.step += 1
    # The ramp lets the average forget the random start quickly.
    decay = min(options.average_decay, (1.0 + state.step) / (10.0 + state.step))
    with torch.no_grad():
        for averaged, current in zip(
            state.average.parameters(), state.network.parameters(), strict=True
        ):
            averaged.lerp_(current, 1.0 - decay)
    return value, samples


def _schedule(step: int, steps: int, warmup_fraction: float) -> float:
    """Returns the share of the peak learning rate: linear warm-up, then half a cosine to zero."""
    warmup = max(1.0, warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1.0, steps - warmup)))


def _end_epoch(
    state: TrainingState,
    trainee: Trainee,
    epoch: int,
    samples_per_s: float,
    seconds: float,
) -> None:
    state.average.eval()
    with torch.no_grad():
        validation_loss = float(trainee.validate(state.average))
    if not math.isfinite(validation_loss):
        raise DataError(
            f"the validation loss became {validation_loss} after epoch {epoch}; expected a "
            f"finite number; "
            "look for damaged data with `cdmpp dataset stats`"
        )
    if state.best_loss is None or validation_loss < state.best_loss:
        state.best_loss = validation_loss
        state.best_epoch = epoch
        state.best = {
            key: value.detach().clone() for key, value in state.average.state_dict().items()
        }
    previous = state.history[-1]["elapsed_s"] if state.history else 0.0
    state.history.append(
        {
            "epoch": epoch,
            "step": state.step,
            "training_loss": float(np.mean(state.epoch_losses)),
            "validation_loss": validation_loss,
            "samples_per_s": samples_per_s,
            "elapsed_s": previous + seconds,
        }
    )
    state.epoch_losses = []


def _write_log(run_dir: Path, history: list[dict[str, Any]]) -> None:
    """Makes log.jsonl agree with the checkpoint: lines of epochs after it are dropped."""
    write_text(run_dir / "log.jsonl", "".join(json.dumps(entry) + "\n" for entry in history))


def _append_log(run_dir: Path, entry: dict[str, Any]) -> None:
    with (run_dir / "log.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")
