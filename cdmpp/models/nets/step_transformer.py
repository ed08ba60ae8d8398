"""TLP's network: self-attention over the steps of a schedule and a sum of step scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class StepBatch:
    """The schedules of programs, and the samples of these programs.

    Attributes:
        steps: float32 [batch, step, feature], standardised; rows after a schedule's end are
            padding.
        context: float32 [batch, context_feature], added columns of the whole program; the width may
            be 0.
        program: int64 [sample], row of each sample's program in the batch.
        device: float32 [sample, device_feature], normalised device vectors.
    """

    steps: Tensor
    context: Tensor
    program: Tensor
    device: Tensor


class StepTransformer(nn.Module):
    """Embedding, one self-attention layer and two residual layers over steps, then summed scores.

    The score of each step also depends on the device and the context.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        *,
        feature_count: int,
        context_count: int,
        device_feature_count: int,
    ) -> None:
        super().__init__()
        quarter, half = max(1, hidden // 4), max(1, hidden // 2)
        self._heads = heads
        self.embed = nn.Sequential(
            nn.Linear(feature_count, quarter), nn.ReLU(),
            nn.Linear(quarter, half), nn.ReLU(),
            nn.Linear(half, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
        )  # fmt: skip
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.attention_out = nn.Linear(hidden, hidden)
        self.first = nn.Linear(hidden, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.surroundings = nn.Linear(context_count + device_feature_count, hidden)
        self.score = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, half), nn.ReLU(),
            nn.Linear(half, quarter), nn.ReLU(),
            nn.Linear(quarter, 1),
        )  # fmt: skip

    def forward(self, batch: StepBatch) -> Tensor:
        """Returns float32 [sample]."""
        state = self.embed(batch.steps)
        state = state + self._attend(state)
        state = state + torch.relu(self.first(state))
        state = state + torch.relu(self.second(state))
        surroundings = torch.cat([batch.context[batch.program], batch.device], dim=1)
        state = state[batch.program] + self.surroundings(surroundings)[:, None, :]
        total: Tensor = self.score(state).squeeze(-1).sum(dim=1)
        return total

    def _attend(self, state: Tensor) -> Tensor:
        count, step, hidden = state.shape
        packed = self.query_key_value(state).view(
            count, step, 3, self._heads, hidden // self._heads
        )
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(count, step, hidden))
        return out
