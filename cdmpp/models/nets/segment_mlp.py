"""Tenset's perceptron: encodes each leaf, then sums over leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from cdmpp.models.nets.alike_rows import AlikeRows, through


@dataclass(frozen=True)
class SegmentBatch:
    """Programs with concatenated leaves, and their samples.

    Attributes:
        leaves: float32 [leaf, feature], normalised leaf vectors of all programs.
        owner: int64 [leaf], program of each leaf, ascending.
        program_count: number of programs in the batch.
        program: int64 [sample], program of each sample.
        device: float32 [sample, device_feature], normalised device vectors.
    """

    leaves: Tensor | AlikeRows
    owner: Tensor
    program_count: int
    program: Tensor
    device: Tensor


class SegmentMlp(nn.Module):
    """A perceptron on each leaf, a sum over leaves, and residual layers on the sum and the device.

    The perceptron has two layers; two residual layers and a linear output follow the sum.
    """

    def __init__(self, hidden: int, *, feature_count: int, device_feature_count: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Linear(feature_count, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.join = nn.Linear(hidden + device_feature_count, hidden)
        self.first = nn.Linear(hidden, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, 1)

    def forward(self, batch: SegmentBatch) -> Tensor:
        """Returns float32 [sample]."""
        first = cast(nn.Linear, self.encode[0])
        state = self.encode[1:](through(first, batch.leaves))
        summed = state.new_zeros((batch.program_count, state.shape[1]))
        summed = summed.index_add(0, batch.owner, state)
        joined = self.join(torch.cat([summed[batch.program], batch.device], dim=1))
        joined = joined + torch.relu(self.first(joined))
        joined = joined + torch.relu(self.second(joined))
        result: Tensor = self.output(joined).squeeze(1)
        return result
