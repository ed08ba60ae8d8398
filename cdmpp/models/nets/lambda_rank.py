"""LambdaRank: a pairwise ranking loss weighted by the change of NDCG."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def lambda_rank_loss(score: Tensor, relevance: Tensor, group: Tensor) -> Tensor:
    """Returns the mean over pairs of one group of |NDCG change| x logistic loss of the pair.

    For a pair with relevance i > j the term is |gain_i - gain_j| x |1/discount_i - 1/discount_j| x
    log2(1 + exp(score_j - score_i)); gain = (2^relevance - 1) / (ideal DCG of the group), discount
    = log2(1 + rank by score). 0 when no group has two samples of different relevance.

    Args:
        score: float32 [sample], higher = predicted better.
        relevance: float32 [sample] in [0, 1], higher = better.
        group: int64 [sample], equal for samples that are ranked together.

    Source: Wang et al., The LambdaLoss Framework for Ranking Metric Optimization, CIKM 2018.
    """
    same = group[:, None] == group[None, :]
    with torch.no_grad():
        discount = torch.log2(2.0 + _better(score, same))
        ideal = (torch.exp2(relevance) - 1.0) / torch.log2(2.0 + _better(relevance, same))
        gain = (torch.exp2(relevance) - 1.0) / (same * ideal[None, :]).sum(dim=1)
        change = (gain[:, None] - gain[None, :]).abs()
        change = change * (1.0 / discount[:, None] - 1.0 / discount[None, :]).abs()
        weight = change * (same & (relevance[:, None] > relevance[None, :]))
    margin = score[:, None] - score[None, :]
    loss = weight * functional.softplus(-margin) / math.log(2.0)
    return loss.sum() / (weight > 0).sum().clamp(min=1)


def _better(value: Tensor, same: Tensor) -> Tensor:
    """Returns float [sample], the number of samples ranked above each in its group (stable)."""
    index = torch.arange(len(value), device=value.device)
    before = (value[None, :] > value[:, None]) | (
        (value[None, :] == value[:, None]) & (index[None, :] < index[:, None])
    )
    return (before & same).sum(dim=1).to(value.dtype)
