"""One step of a network, independent of the device: building, warm-up and timed values."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from cdmpp.networks.architectures.spec import ArchitectureSpec
from cdmpp.networks.campaign.labels import NetworkTiming, median_interval

_LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class SampleRequest:
    """A sample to measure.

    Attributes:
        spec: the architecture; None = use `make`.
        batch: batch size.
        mode: `infer`, or `train` (forward, backward, SGD step).
        kind: `cpu` or `gpu`.
        threads: software threads on a CPU.
        timing: options of timing.
        most_memory_bytes: maximum growth of the process; None = no limit.
        make: returns a network and its inputs (CPU only); None = use `spec`.
    """

    spec: ArchitectureSpec | None
    batch: int
    mode: Literal["infer", "train"]
    kind: Literal["cpu", "gpu"]
    threads: int
    timing: NetworkTiming
    most_memory_bytes: int | None = None
    make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]] | None = None


def make_step(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], mode: Literal["infer", "train"]
) -> Callable[[], None]:
    """Returns a function that runs one iteration: a forward pass, or a training step that clears
    the gradients.
    """
    if mode == "infer":
        module.eval()

        def infer() -> None:
            module(*inputs)

        return infer
    module.train()
    update = make_update(module)
    targets = torch.zeros(len(inputs[0]), dtype=torch.int64, device=inputs[0].device)

    def train() -> None:
        functional.cross_entropy(module(*inputs), targets).backward()  # type: ignore[no-untyped-call]
        update()

    return train


def make_update(module: nn.Module) -> Callable[[], None]:
    """Returns a function that runs an SGD step and clears the gradients."""
    optimiser = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE)

    def update() -> None:
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return update


def grad_mode(mode: Literal["infer", "train"]) -> contextlib.AbstractContextManager[Any]:
    """Returns the gradient context for steps of this mode."""
    return torch.inference_mode() if mode == "infer" else torch.enable_grad()


def warm_up(run: Callable[[int], float], timing: NetworkTiming) -> float:
    """Runs the warm-up iterations; returns the seconds of the last one."""
    started, runs = time.perf_counter(), 0
    while True:
        last = run(1)
        runs += 1
        if runs >= timing.warm_up_runs and time.perf_counter() - started >= timing.warm_up_s:
            return last


def timed_values(times_s: tuple[float, ...], iterations: int) -> dict[str, Any]:
    """Returns the values of a label that are computed from the times."""
    median, low, high = median_interval(times_s)
    return {
        "outcome": "ok", "time_s": median, "low_s": low, "high_s": high,
        "times_s": list(times_s), "iterations": iterations,
    }  # fmt: skip
