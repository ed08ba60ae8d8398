"""Network of the step-time model: the ratio of each kernel's time to its roofline."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from cdmpp.arrays import Float32Array, FloatArray, IntArray
from cdmpp.networks.step_time.inputs import DEVICE_FEATURES, Kernels, StepTimeInputs

_HIDDEN = 64
#: Initial seconds of an empty kernel and of the host per operator; constant seconds of a step.
_KERNEL_S, _CALL_S, _STEP_S = 2e-6, 8e-6, 1e-4
_FIRST_LOSS = 0.4
#: Exponent of the smooth maximum of host and device time; the host runs ahead of the GPU.
_POWER = 4
_MOST_LOG = 6.0
#: Standard deviation of noise on device-dependent features in training. There are few devices;
#: without noise the network overfits their differences (on a fifth of the families, the median
#: error on the left-out RTX 3090 was 36 % instead of 6 %).
_NOISE = 0.15
#: Weight of the loss of ratios relative to the loss of seconds.
_RATIO_WEIGHT = 1.0
#: Minimum number of steps of torch's schedule, which divides by a tenth of the steps minus one.
_LEAST_ROUNDS = 20


class StepNetwork(nn.Module):
    """Time of steps: the smooth maximum of the device's time (sum over kernels) and the host's.

    The time of a kernel is a multiple of its roofline plus a constant, both predicted by a
    perceptron on the features of the kernel.

    Args:
        width: number of kernel features.
        flags: number of step flags.
    """

    def __init__(self, width: int, flags: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, _HIDDEN), nn.SiLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.SiLU(),
            nn.Linear(_HIDDEN, 2),
        )  # fmt: skip
        self.host = nn.Linear(flags, 1)
        last = self.body[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.copy_(torch.tensor([_FIRST_LOSS, 0.0]))
            self.host.weight.zero_()
            self.host.bias.zero_()

    def kernel_seconds(self, kernels: Kernels) -> torch.Tensor:
        """Returns float32 [kernels], seconds of all runs of each kernel."""
        logs = self.body(torch.from_numpy(kernels.features)).clamp(-_MOST_LOG, _MOST_LOG)
        roofline_s, count = torch.from_numpy(kernels.roofline_s), torch.from_numpy(kernels.count)
        each_s: torch.Tensor = roofline_s * logs[:, 0].exp() + _KERNEL_S * logs[:, 1].exp()
        return count * each_s

    def forward(
        self, inputs: StepTimeInputs, steps: IntArray, noise: Float32Array | None = None
    ) -> torch.Tensor:
        """Returns float32 [S], log seconds; see `StepTimeInputs.kernels` for the arguments."""
        found = inputs.kernels(steps, noise)
        owner, each_s = torch.from_numpy(found.owner), self.kernel_seconds(found)
        device_s = torch.zeros(found.steps).index_add_(0, owner, each_s)
        per_call = self.host(torch.from_numpy(inputs.flags[steps]))[:, 0].clamp(-3, 3).exp()
        host_s = torch.from_numpy(inputs.calls[steps]) * _CALL_S * per_call
        both = (device_s**_POWER + host_s**_POWER) ** (1 / _POWER)
        return torch.log(both + _STEP_S)


def fit_network(
    inputs: StepTimeInputs,
    log_s: FloatArray,
    steps: IntArray,
    groups: IntArray,
    *,
    seed: int,
    epochs: int,
    batch: int,
    rate: float,
) -> StepNetwork:
    """Returns a network fitted to log seconds.

    Args:
        inputs: inputs of all steps.
        log_s: float64 [N], log seconds of all steps.
        steps: int64 [S], the steps to fit.
        groups: int64 [N], group of every step. Steps of a group differ only in the execution; their
            time ratios are also fitted.
        rate: maximum learning rate.
    """
    torch.manual_seed(seed)
    network = StepNetwork(inputs.width, inputs.flags.shape[1])
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=1e-2)
    rounds = epochs * -(-len(steps) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, rate, total_steps=max(rounds + 1, _LEAST_ROUNDS), pct_start=0.1
    )
    generator = np.random.default_rng(seed)
    targets = torch.tensor(log_s, dtype=torch.float32)
    for _ in range(epochs):
        order = _shuffled(steps, groups, generator)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            wanted = targets[torch.from_numpy(chosen)]
            noise = generator.normal(0.0, _NOISE, (len(chosen), DEVICE_FEATURES))
            found = network(inputs, chosen, noise.astype(np.float32))
            loss = nn.functional.smooth_l1_loss(found, wanted, beta=0.1)
            is_pair = torch.from_numpy(np.diff(groups[chosen]) == 0)
            if is_pair.any():
                ratios, real = found.diff()[is_pair], wanted.diff()[is_pair]
                loss = loss + _RATIO_WEIGHT * nn.functional.smooth_l1_loss(ratios, real, beta=0.1)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    network.eval()
    return network


def _shuffled(steps: IntArray, groups: IntArray, generator: np.random.Generator) -> IntArray:
    """Returns the steps in random order, with the steps of a group next to each other."""
    place = generator.permutation(int(groups.max()) + 1)[groups[steps]]
    return steps[np.lexsort((generator.random(len(steps)), place))]
