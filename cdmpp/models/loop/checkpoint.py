"""Checkpoints of a torch training: a folder with safetensors and JSON, written atomically."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import read_json, write_json
from cdmpp.files.checked_tensors import read_tensors, write_tensors
from cdmpp.models.loop.adam import AdamOptimiser

CHECKPOINT_VERSION = 1
_PREFIX = "step-"


@dataclass
class TrainingState:
    """The complete state of a training.

    Attributes:
        network: the weights being optimised.
        average: moving average of the weights.
        best: averaged weights with the lowest validation loss so far.
        optimiser: optimiser of the network's parameters.
        step: number of finished steps.
        best_loss: validation loss of `best`; None before the first validation.
        best_epoch: epoch of `best`, counted from 1; 0 before the first validation.
        epoch_losses: training losses of the steps of the unfinished epoch.
        history: one entry per epoch, as in log.jsonl.
        finished: whether training has ended.
    """

    network: nn.Module
    average: nn.Module
    best: dict[str, Tensor]
    optimiser: AdamOptimiser
    step: int
    best_loss: float | None
    best_epoch: int
    epoch_losses: list[float]
    history: list[dict[str, Any]]
    finished: bool

    @cached_property
    def weights(self) -> list[Tensor]:
        """The parameters of `network`."""
        return list(self.network.parameters())

    @cached_property
    def averaged(self) -> list[Tensor]:
        """The parameters of `average`."""
        return list(self.average.parameters())


def save_checkpoint(folder: Path, state: TrainingState, *, fingerprint: str) -> Path:
    """Writes a checkpoint and removes older ones. Returns its folder.

    Args:
        folder: the run's `checkpoints` folder.
        fingerprint: digest of everything that must be equal for a resume.
    """
    tensors: dict[str, Tensor] = {"rng": torch.get_rng_state()}
    for name, module in (("network", state.network), ("average", state.average)):
        tensors.update({f"{name}.{key}": value for key, value in module.state_dict().items()})
    tensors.update({f"best.{key}": value for key, value in state.best.items()})
    for index, moments in state.optimiser.moments.items():
        tensors.update({f"optimiser.{index}.{key}": value for key, value in moments.items()})
    name = f"{_PREFIX}{state.step:08d}"
    temporary = folder / f"{name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    # Cloned: safetensors rejects tensors that share memory, as `best` and `average` may.
    content = save({key: value.detach().clone().contiguous() for key, value in tensors.items()})
    write_tensors(temporary / "state.safetensors", content)
    description = {
        "version": CHECKPOINT_VERSION,
        "fingerprint": fingerprint,
        "step": state.step,
        "best_loss": state.best_loss,
        "best_epoch": state.best_epoch,
        "finished": state.finished,
        "epoch_losses": state.epoch_losses,
        "history": state.history,
    }
    write_json(temporary / "state.json", description)
    target = folder / name
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)
    for old in folder.iterdir():
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return target


def latest_checkpoint(folder: Path) -> Path | None:
    """Returns the newest complete checkpoint of a run's `checkpoints` folder, or None."""
    if not folder.is_dir():
        return None
    names = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name.startswith(_PREFIX) and not entry.name.endswith(".tmp")
    )
    return folder / names[-1] if names else None


def load_checkpoint(path: Path, state: TrainingState, *, fingerprint: str) -> None:
    """Restores `state` (and torch's random state) in place.

    Raises:
        UsageError: the checkpoint belongs to another configuration, seed or data.
        DataError: the checkpoint is damaged.
    """
    hint = f"remove {path} to train from the start"
    description = read_json(path / "state.json", what="checkpoint", hint=hint)
    if description.get("version") != CHECKPOINT_VERSION:
        raise DataError(
            f"checkpoint {path} has version {description.get('version')}, expected "
            f"{CHECKPOINT_VERSION}; {hint}"
        )
    if description["fingerprint"] != fingerprint:
        raise UsageError(
            f"{path.parent.parent} holds checkpoints of another configuration, seed or data set; "
            f"choose another --out, or remove {path.parent} to train from the start"
        )
    try:
        tensors = load(read_tensors(path / "state.safetensors")[0])
        _restore(state, tensors)
    except (OSError, SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise DataError(f"checkpoint {path} is damaged ({error}); {hint}") from error
    state.step = int(description["step"])
    state.best_loss = description["best_loss"]
    state.best_epoch = int(description["best_epoch"])
    state.epoch_losses = list(description["epoch_losses"])
    state.history = list(description["history"])
    state.finished = bool(description["finished"])


def _restore(state: TrainingState, tensors: dict[str, Tensor]) -> None:
    def part(prefix: str) -> dict[str, Tensor]:
        return {
            key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)
        }

    state.network.load_state_dict(part("network."))
    state.average.load_state_dict(part("average."))
    state.best = part("best.")
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in part("optimiser.").items():
        index, name = key.split(".", 1)
        moments.setdefault(int(index), {})[name] = value
    state.optimiser.load(moments)
    torch.set_rng_state(tensors["rng"])
