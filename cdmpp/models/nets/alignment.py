"""Distances between the embedding distributions of several domains, as loss terms.

A domain is a device or a task of the *training* part. A model whose embeddings are similar in all
training domains should transfer better to a new one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.models.nets.options import AlignmentKind

#: Domains with fewer samples in a batch are ignored.
LEAST_SAMPLES = 4
#: Widths of the kernels of `mmd`, as multiples of the mean squared distance between samples.
_KERNEL_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
#: Lower bound on squared norms, whose square root has an infinite gradient at 0.
_LEAST_SQUARE = 1e-12


def alignment_loss(
    embedding: Tensor, domain: Tensor, *, kind: AlignmentKind, moments: int = 5
) -> Tensor:
    """Returns the mean distance between each domain of a batch and the rest of the batch, a scalar.

    0 when fewer than two domains have enough samples.

    Args:
        embedding: float32 [sample, hidden].
        domain: int64 [sample].
        kind: `cmd` or `mmd`; `none` gives 0.
        moments: highest moment of `cmd`.
    """
    total = embedding.new_zeros(())
    if kind == "none":
        return total
    names, counts = torch.unique(domain, return_counts=True)
    names = names[counts >= LEAST_SAMPLES]
    is_large = torch.isin(domain, names)
    embedding, domain = embedding[is_large], domain[is_large]
    if len(names) < 2:
        return total
    for name in names:
        is_own = domain == name
        total = total + distance(embedding[is_own], embedding[~is_own], kind=kind, moments=moments)
    return total / len(names)


def distance(first: Tensor, second: Tensor, *, kind: AlignmentKind, moments: int = 5) -> Tensor:
    """Returns the distance between the distributions of two sets of embeddings.

    Args:
        first: float32 [sample, hidden].
        second: float32 [other sample, hidden].
        kind: `cmd` or `mmd`; `none` gives 0.
        moments: highest moment of `cmd`.
    """
    if kind == "none":
        return first.new_zeros(())
    if kind == "cmd":
        return central_moment_discrepancy(first, second, moments=moments)
    return maximum_mean_discrepancy(first, second)


def central_moment_discrepancy(first: Tensor, second: Tensor, *, moments: int = 5) -> Tensor:
    """Returns the central moment discrepancy, ≥ 0.

    It sums the distances of the means and of the central moments 2 to `moments`. Embeddings are
    mapped into (-1, 1) by tanh; the distance of k-th moments is divided by 2^k, the k-th power of
    the width of that interval.

    Source: Zellinger et al., Central Moment Discrepancy for domain-invariant representations.
    """
    first, second = torch.tanh(first), torch.tanh(second)
    first_mean, second_mean = first.mean(dim=0), second.mean(dim=0)
    total = _norm(first_mean - second_mean) / 2.0
    first, second = first - first_mean, second - second_mean
    for order in range(2, moments + 1):
        gap = first.pow(order).mean(dim=0) - second.pow(order).mean(dim=0)
        total = total + _norm(gap) / 2.0**order
    return total


def maximum_mean_discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """Returns the squared maximum mean discrepancy, ≥ 0, of a sum of Gaussian kernels.

    The kernel widths scale with the mean squared distance within the joint set, so the result does
    not depend on the scale of the embeddings.

    Source: Gretton et al., A kernel two-sample test (the biased estimate).
    """
    both = torch.cat([first, second])
    square = torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist").square()
    width = square.detach().mean().clamp(min=_LEAST_SQUARE)
    kernel = torch.stack([torch.exp(-square / (factor * width)) for factor in _KERNEL_WIDTHS])
    kernel = kernel.mean(dim=0)
    count = len(first)
    within = kernel[:count, :count].mean() + kernel[count:, count:].mean()
    return within - 2.0 * kernel[:count, count:].mean()


def _norm(vector: Tensor) -> Tensor:
    """Returns the length of a vector; its gradient is finite everywhere."""
    return torch.sqrt(vector.square().sum() + _LEAST_SQUARE)
