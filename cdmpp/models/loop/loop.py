"""The training loop of torch models: fixed batch order, early stopping, resumable checkpoints."""

from __future__ import annotations

import copy
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdmpp.errors import NotFiniteError, UsageError
from cdmpp.files.atomic import make_folder, write_text
from cdmpp.models.loop.checkpoint import (
    TrainingState,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from cdmpp.models.loop.distributed import average_gradients, is_first, seed_step, training_device
from cdmpp.models.loop.pace import CpuBudget, LoopPace, Pace
from cdmpp.models.loop.progress import OnTrain, TrainProgress
from cdmpp.models.loop.shards import process_count
from cdmpp.models.nets.options import LoopOptions
from cdmpp.timing.stats import timer

#: Maximum checkpoints per epoch: each holds all losses of its epoch so far, so the bytes written
#: grow quadratically.
_MOST_CHECKPOINTS = 200


class Trainee(Protocol):
    """Interface of the loop to a model and its data."""

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Returns the batches of an epoch, a pure function of the epoch; their number is fixed."""

    def loss(self, network: nn.Module, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        """Returns the loss to minimise and the number of samples in the batch."""

    def validate(self, network: nn.Module) -> float:
        """Returns the validation loss; `network` is in evaluation mode and gradients are off."""


@dataclass(frozen=True)
class LoopResult:
    """Result of a training.

    Attributes:
        weights: averaged weights with the lowest validation loss.
        best_epoch: epoch of `weights`, counted from 1.
        steps: number of steps.
        history: one entry per epoch: epoch, step, training_loss, validation_loss, learning_rate,
            samples_per_s, elapsed_s.
    """

    weights: dict[str, Tensor]
    best_epoch: int
    steps: int
    history: list[dict[str, Any]]


@timer("training loop")
def train_loop(
    network: nn.Module,
    trainee: Trainee,
    options: LoopOptions,
    *,
    seed: int,
    fingerprint: str,
    run_dir: Path | None = None,
    on_progress: OnTrain | None = None,
    pace: Pace | None = None,
) -> LoopResult:
    """Trains `network` and returns its best averaged weights.

    With a `run_dir`, a checkpoint is written every `options.checkpoint_every` steps (at most 200
    per epoch) and after every epoch. A later call with the same fingerprint continues from the
    newest one. On CPU the result then has the same bytes as an uninterrupted training; on a GPU it
    is close. The caller's random state is unchanged.

    If `on_progress` has a method `validated(epoch, predict)`, it is called after every validation;
    `predict()` returns float64 [validation sample], log seconds. A trainee with a method
    `backward(loss)` computes the gradients itself. Under torchrun (see
    `cdmpp.models.loop.distributed`) all processes do the same steps and only the first one writes.

    Args:
        pace: optimiser, learning rate and stopping rule; None = those of `options`.

    Raises:
        NotFiniteError: the loss is not finite.
        UsageError: `run_dir` holds checkpoints of another fingerprint, or `options` are not
            supported.
    """
    threads = torch.get_num_threads()
    device = training_device(options.device_type)
    _check(trainee, options)
    try:
        torch.set_num_threads(options.threads or threads)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network.to(device)
            writes_to = run_dir if is_first() else None
            return _train(
                network, trainee, options, pace or LoopPace(options), fingerprint, run_dir,
                writes_to, on_progress, seed,
            )  # fmt: skip
    finally:
        network.to("cpu")
        torch.set_num_threads(threads)


def _check(trainee: Trainee, options: LoopOptions) -> None:
    """Checks that the options are supported.

    Raises:
        UsageError: this kind of model cannot train on a GPU, or several processes have a time
            limit.
    """
    if options.device_type != "cpu" and not getattr(trainee, "follows_network", False):
        raise UsageError(
            f"this training runs on the CPU only, got device_type {options.device_type}; expected "
            "cpu, or the model transformer"
        )
    if options.cpu_seconds and process_count() > 1:
        raise UsageError(
            "cpu_seconds limits the time of one process, got a training in "
            f"{process_count()} processes; limit it with max_steps instead"
        )


def _train(
    network: nn.Module,
    trainee: Trainee,
    options: LoopOptions,
    pace: Pace,
    fingerprint: str,
    run_dir: Path | None,
    writes_to: Path | None,
    on_progress: OnTrain | None,
    seed: int,
) -> LoopResult:
    """Runs `train_loop`; `writes_to` is `run_dir` in the process that writes, else None."""
    state = TrainingState(
        network=network,
        average=copy.deepcopy(network).requires_grad_(False),
        best={key: value.detach().clone() for key, value in network.state_dict().items()},
        optimiser=pace.optimiser(network),
        step=0,
        best_loss=None,
        best_epoch=0,
        epoch_losses=[],
        history=[],
        finished=False,
    )
    state.best_loss = pace.first_loss(lambda: _validation_loss(state, trainee))
    checkpoints = writes_to / "checkpoints" if writes_to else None
    if checkpoints:
        make_folder(checkpoints, what="checkpoints")
    newest = latest_checkpoint(run_dir / "checkpoints") if run_dir else None
    if newest:
        load_checkpoint(newest, state, fingerprint=fingerprint)
    if writes_to:
        _write_log(writes_to, state.history)
    forward: Any = torch.compile(network, dynamic=True) if options.compile else network
    batches = functools.lru_cache(maxsize=1)(trainee.batches)  # several epochs can share a pass
    per_pass = len(batches(0))
    per_epoch = options.validate_every or per_pass
    steps = min(per_pass * options.epochs, options.max_steps or sys.maxsize)
    every = max(options.checkpoint_every, per_epoch // _MOST_CHECKPOINTS)
    budget = CpuBudget(options.cpu_seconds, state.history)
    started = time.perf_counter()
    first_step = state.step
    parameters = sum(value.numel() for value in network.parameters())
    while not state.finished and state.step < steps:
        epoch = state.step // per_epoch
        stop = min((epoch + 1) * per_epoch, steps)
        samples = 0
        epoch_started = time.perf_counter()
        for batch in _stretch(batches, state.step, stop, per_pass):
            place = max(state.step, budget.share_used() * steps)
            seed_step(seed, state.step)
            rate = pace.rate(state.history, step=state.step, place=place, steps=steps)
            loss, count = _step(state, trainee, batch, options, pace, rate, forward)
            state.epoch_losses.append(loss)
            samples += count
            at_end = state.step == stop
            if checkpoints and not at_end and state.step % every == 0:
                save_checkpoint(checkpoints, state, fingerprint=fingerprint)
            if on_progress:
                elapsed = time.perf_counter() - started
                on_progress(
                    TrainProgress(
                        step=state.step,
                        steps=steps,
                        epoch=epoch + 1,
                        loss=loss,
                        validation_loss=state.best_loss,
                        steps_per_s=(state.step - first_step) / max(elapsed, 1e-9),
                        parameters=parameters,
                    )
                )
            if budget.is_spent():
                break
        seconds = time.perf_counter() - epoch_started
        _end_epoch(state, trainee, epoch + 1, samples / max(seconds, 1e-9), seconds)
        budget.note(state.history[-1])
        state.finished = (
            pace.is_over(state.history, state.best_epoch)
            or state.step == steps
            or budget.is_spent()
        )
        if writes_to:
            _append_log(writes_to, state.history[-1])
        if checkpoints:
            save_checkpoint(checkpoints, state, fingerprint=fingerprint)
        watch = getattr(on_progress, "validated", None)
        if watch is not None:
            watch(epoch + 1, lambda: _predict_validation(state, trainee))
    return LoopResult(state.best, state.best_epoch, state.step, state.history)


def _predict_validation(state: TrainingState, trainee: Trainee) -> NDArray[np.float64]:
    """Returns float64 [validation sample], log seconds predicted by the current averaged weights.

    Raises:
        UsageError: this kind of model cannot predict before its training ends.
    """
    predict = getattr(trainee, "predict_validation", None)
    if predict is None:
        raise UsageError(
            f"{type(trainee).__name__} has no predictions before the end of training; expected "
            "one with predict_validation. Tune it without a pruner"
        )
    found: NDArray[np.float64] = predict(state.average)
    return found


def _stretch(
    batches_of: Callable[[int], list[NDArray[np.int64]]], start: int, stop: int, per_pass: int
) -> Iterator[NDArray[np.int64]]:
    """Yields the batches of steps `start` to `stop`, over one or more passes of the data.

    A pass with fewer batches than the first one (`per_pass`) starts over.
    """
    step = start
    while step < stop:
        first = step % per_pass
        found = batches_of(step // per_pass)
        batches = found[first : first + stop - step]
        if not batches:
            batches = found[: min(stop - step, per_pass - first)]
        yield from batches
        step += len(batches)


@timer("step")
def _step(
    state: TrainingState,
    trainee: Trainee,
    batch: NDArray[np.int64],
    options: LoopOptions,
    pace: Pace,
    rate: float,
    forward: nn.Module,
) -> tuple[float, int]:
    """Does one step; `forward` is `state.network`, possibly compiled."""
    state.optimiser.learning_rate = rate
    if not state.network.training:
        state.network.train()
    is_narrow = options.precision == "bf16"
    with torch.autocast(options.device_type, dtype=torch.bfloat16, enabled=is_narrow):
        loss, samples = trainee.loss(forward, batch)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise NotFiniteError(
            f"the training loss became {value} at step {state.step + 1}; expected a finite "
            f"number; try a lower learning rate, e.g. --set {pace.rate_option}=0.0003"
        )
    state.optimiser.zero_grad()
    getattr(trainee, "backward", Tensor.backward)(loss)
    average_gradients(state.weights)
    nn.utils.clip_grad_norm_(state.weights, options.gradient_clip, foreach=True)
    state.optimiser.step()
    state.step += 1
    # The ramp quickly removes the random initial weights from the average.
    decay = min(options.average_decay, (1.0 + state.step) / (10.0 + state.step))
    with torch.no_grad():
        torch._foreach_lerp_(state.averaged, state.weights, 1.0 - decay)
        # Batch norm statistics are averages already.
        for kept, own in zip(state.average.buffers(), state.network.buffers(), strict=True):
            kept.copy_(own)
    return value, samples


@timer("validate")
def _end_epoch(
    state: TrainingState,
    trainee: Trainee,
    epoch: int,
    samples_per_s: float,
    seconds: float,
) -> None:
    validation_loss = _validation_loss(state, trainee)
    if not math.isfinite(validation_loss):
        raise NotFiniteError(
            f"the validation loss became {validation_loss} after epoch {epoch}; expected a "
            "finite number; check the data with `cdmpp dataset stats`"
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
            "learning_rate": state.optimiser.learning_rate,
            "samples_per_s": samples_per_s,
            "elapsed_s": previous + seconds,
        }
    )
    state.epoch_losses = []


def _validation_loss(state: TrainingState, trainee: Trainee) -> float:
    state.average.eval()
    with torch.no_grad():
        return float(trainee.validate(state.average))


def _write_log(run_dir: Path, history: list[dict[str, Any]]) -> None:
    """Rewrites log.jsonl from the checkpoint's history, which drops lines of later epochs."""
    write_text(run_dir / "log.jsonl", "".join(json.dumps(entry) + "\n" for entry in history))


def _append_log(run_dir: Path, entry: dict[str, Any]) -> None:
    with (run_dir / "log.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")
