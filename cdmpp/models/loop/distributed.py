"""Training in several processes started by torchrun."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

from cdmpp.errors import UsageError
from cdmpp.models.loop.shards import process_count, process_index
from cdmpp.models.nets.options import DeviceType

Result = TypeVar("Result")

#: How long processes wait for the first one to extract a dataset; torchrun ends all if one fails.
_PATIENCE = timedelta(days=1)
_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


@contextlib.contextmanager
def process_group(device_type: DeviceType) -> Iterator[None]:
    """Joins the processes that torchrun started until the block ends; a no-op without torchrun.

    Raises:
        UsageError: `cuda` without a GPU for this process.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if device_type == "cuda":
        torch.cuda.set_device(training_device(device_type))
    distributed.init_process_group(_BACKENDS[device_type], timeout=_PATIENCE)
    try:
        yield
        distributed.barrier()  # a process that leaves early can end threads of the others
    finally:
        distributed.destroy_process_group()


def training_device(device_type: DeviceType) -> torch.device:
    """Returns the torch device that this process trains on.

    Raises:
        UsageError: `cuda` without a GPU for this process.
    """
    if device_type == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if index >= count:
        raise UsageError(
            f"--device-type cuda needs a GPU for each process, found {count} for process "
            f"{index + 1} on this machine; train on the CPU with --device-type cpu, or start at "
            "most one process per GPU"
        )
    return torch.device("cuda", index)


def is_first() -> bool:
    """Returns whether this process writes files and reports; always True without torchrun."""
    return process_index() == 0


def first_then_others(work: Callable[[], Result]) -> Result:
    """Returns `work()`; the other processes run it once the first has finished."""
    if process_count() == 1:
        return work()
    if is_first():
        result = work()
        distributed.barrier()
        return result
    distributed.barrier()
    return work()


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replaces every gradient by its mean over the processes."""
    if process_count() == 1:
        return
    gradients = [value.grad for value in parameters if value.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= process_count()
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def seed_step(seed: int, step: int) -> None:
    """Seeds torch's generator (dropout) for a step, differently in every process.

    The seed depends only on seed, step and process, so a resumed training draws the same numbers.
    A single process is not reseeded.
    """
    if process_count() > 1:
        state = np.random.SeedSequence([seed, step, process_index()]).generate_state(1)
        torch.manual_seed(int(state[0]))
