"""Adam and AdamW with torch's arithmetic, without `torch.optim.Optimizer`.

Creating a torch optimiser imports torch's compiler, which costs every training process two seconds
and 70 MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class _Group:
    """Parameters that share a weight decay; `first` is the number of the first parameter."""

    first: int
    parameters: list[nn.Parameter]
    weight_decay: float


@dataclass
class AdamOptimiser:
    """Adam or AdamW with the same bytes as `torch.optim.Adam` and `AdamW`.

    Attributes:
        is_decoupled: whether weight decay shrinks the weights directly (AdamW) instead of adding an
            L2 term to the loss (Adam).
        is_fused: whether one kernel updates many tensors; its last bits differ.
        learning_rate: learning rate of the next step.
        moments: number of the parameter -> `step`, `exp_avg` and `exp_avg_sq`, as in torch's state;
            only for parameters that had a gradient.
    """

    is_decoupled: bool
    is_fused: bool
    learning_rate: float
    moments: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    _groups: list[_Group] = field(default_factory=list)

    def add(self, parameters: Iterable[nn.Parameter], weight_decay: float) -> None:
        """Adds parameters, which get the next numbers."""
        first = sum(len(group.parameters) for group in self._groups)
        self._groups.append(_Group(first, list(parameters), weight_decay))

    def zero_grad(self) -> None:
        """Sets all gradients to None."""
        for group in self._groups:
            for parameter in group.parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Updates all parameters that have a gradient."""
        for group in self._groups:
            pairs = [
                (value, self._moments(group.first + index, value))
                for index, value in enumerate(group.parameters)
                if value.grad is not None
            ]
            if not pairs:
                continue
            adam(
                [value for value, _ in pairs],
                [value.grad for value, _ in pairs if value.grad is not None],
                [moments["exp_avg"] for _, moments in pairs],
                [moments["exp_avg_sq"] for _, moments in pairs],
                [],
                [moments["step"] for _, moments in pairs],
                fused=self.is_fused or None,
                decoupled_weight_decay=self.is_decoupled,
                amsgrad=False,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                lr=self.learning_rate,
                weight_decay=group.weight_decay,
                eps=_EPSILON,
                maximize=False,
            )

    def _moments(self, number: int, value: nn.Parameter) -> dict[str, Tensor]:
        if number not in self.moments:
            # The fused kernel expects the step count on the device of the weights.
            place = value.device if self.is_fused else None
            self.moments[number] = {
                "step": torch.zeros((), dtype=torch.float32, device=place),
                "exp_avg": torch.zeros_like(value, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(value, memory_format=torch.preserve_format),
            }
        return self.moments[number]

    def load(self, moments: dict[int, dict[str, Tensor]]) -> None:
        """Restores moments, moved to the devices of their parameters."""
        parameters = [value for group in self._groups for value in group.parameters]
        self.moments = {
            number: {
                name: tensor.to(parameters[number].device)
                if self.is_fused or name != "step"
                else tensor
                for name, tensor in found.items()
            }
            for number, found in moments.items()
        }


def adamw(
    network: nn.Module, learning_rate: float, weight_decay: float, *, is_fused: bool
) -> AdamOptimiser:
    """Returns AdamW over all weights of a network; only tensors of two or more dimensions decay."""
    optimiser = AdamOptimiser(True, is_fused, learning_rate)
    optimiser.add([value for value in network.parameters() if value.ndim >= 2], weight_decay)
    optimiser.add([value for value in network.parameters() if value.ndim < 2], 0.0)
    return optimiser


def plain_adam(
    network: nn.Module, learning_rate: float, weight_decay: float = 0.0
) -> AdamOptimiser:
    """Returns Adam over all weights of a network."""
    optimiser = AdamOptimiser(False, False, learning_rate)
    optimiser.add(network.parameters(), weight_decay)
    return optimiser
