"""PCGrad: removes conflicts between the gradients of several targets.

Source: Yu et al., Gradient Surgery for Multi-Task Learning, 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def reconcile(gradients: Tensor, generator: torch.Generator) -> Tensor:
    """Returns [parameters], the sum of the gradients after the projections of PCGrad.

    A gradient with a negative inner product with another gradient is projected onto the plane
    orthogonal to it; the other gradients are visited in random order.

    Args:
        gradients: [targets, parameters].
    """
    norms = (gradients * gradients).sum(1)
    total = torch.zeros_like(gradients[0])
    for number in range(len(gradients)):
        own = gradients[number].clone()
        for other in torch.randperm(len(gradients), generator=generator).tolist():
            if other == number or float(norms[other]) == 0.0:
                continue
            product = own @ gradients[other]
            if float(product) < 0.0:
                own -= product / norms[other] * gradients[other]
        total += own
    return total


def pcgrad_backward(
    losses: Tensor,
    shared: Sequence[nn.Parameter],
    own: Sequence[Sequence[nn.Parameter]],
    generator: torch.Generator,
) -> None:
    """Sets `grad` of all parameters: by PCGrad for shared parameters, as usual for the others.

    Args:
        losses: [targets].
        shared: parameters on which all losses depend.
        own: [targets] parameters on which only one loss depends.
    """
    rows = []
    for number, loss in enumerate(losses):
        wanted = [*shared, *own[number]]
        found = torch.autograd.grad(loss, wanted, retain_graph=number + 1 < len(losses))
        rows.append(torch.cat([part.flatten() for part in found[: len(shared)]]))
        for parameter, part in zip(own[number], found[len(shared) :], strict=True):
            parameter.grad = part
    merged = reconcile(torch.stack(rows), generator)
    start = 0
    for parameter in shared:
        count = parameter.numel()
        parameter.grad = merged[start : start + count].view_as(parameter).clone()
        start += count
