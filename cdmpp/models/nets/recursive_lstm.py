"""A recursive LSTM over trees of leaves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TreeLevel:
    """The inner nodes of one height in a batch of trees; missing children are -1 at the end.

    Attributes:
        leaf: int64 [node, most], leaves directly below each node (rows of `TreeBatch.leaves`).
        child: int64 [node, most], inner children of each node, numbered over all lower levels.
    """

    leaf: Tensor
    child: Tensor


@dataclass(frozen=True)
class TreeBatch:
    """The trees of programs, and the samples of these programs.

    Attributes:
        leaves: float32 [leaf, feature], normalised leaf vectors of all programs.
        levels: inner nodes from the lowest level to the highest.
        root: int64 [batch], root of each program, numbered over all levels.
        program: int64 [sample], row of each sample's program in the batch.
        device: float32 [sample, device_feature], normalised device vectors.
    """

    leaves: Tensor
    levels: tuple[TreeLevel, ...]
    root: Tensor
    program: Tensor
    device: Tensor


class RecursiveLstm(nn.Module):
    """Combines embedded leaves up the tree; the output layers read the root's state and the device.

    An inner node reads its leaves with one LSTM and its inner children with another.
    """

    def __init__(
        self,
        embed: tuple[int, ...],
        dropout: float,
        *,
        feature_count: int,
        device_feature_count: int,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((feature_count, *embed[:-1]), embed, strict=True):
            layers += [nn.Linear(before, after), nn.ELU(), nn.Dropout(dropout)]
        width = embed[-1]
        self.embed = nn.Sequential(*layers)
        self.leaf_lstm = nn.LSTM(width, width, batch_first=True)
        self.child_lstm = nn.LSTM(width, width, batch_first=True)
        self.no_leaf = nn.Parameter(torch.zeros(1, width))
        self.no_child = nn.Parameter(torch.zeros(1, width))
        self.combine = nn.Sequential(
            nn.Linear(2 * width, width), nn.ELU(), nn.Dropout(dropout),
            nn.Linear(width, width), nn.ELU(),
        )  # fmt: skip
        self.output = nn.Sequential(
            nn.Linear(width + device_feature_count, width), nn.ELU(), nn.Linear(width, 1)
        )

    def forward(self, batch: TreeBatch) -> Tensor:
        """Returns float32 [sample]."""
        leaves = self.embed(batch.leaves)
        states = leaves[:0]
        for level in batch.levels:
            below = [
                _read(self.leaf_lstm, leaves, level.leaf, self.no_leaf),
                _read(self.child_lstm, states, level.child, self.no_child),
            ]
            states = torch.cat([states, self.combine(torch.cat(below, dim=1))])
        root = states[batch.root][batch.program]
        result: Tensor = self.output(torch.cat([root, batch.device], dim=1)).squeeze(1)
        return result


def _read(lstm: nn.LSTM, table: Tensor, index: Tensor, nothing: Tensor) -> Tensor:
    """Returns float32 [node, width], the LSTM's output after each node's last child.

    `nothing` for nodes without children.
    """
    node, most = index.shape
    if most == 0:
        return nothing.expand(node, -1)
    count = (index >= 0).sum(dim=1)
    if len(table) == 0:
        return nothing.expand(node, -1)
    output, _ = lstm(table[index.clamp(min=0)])
    last = output[torch.arange(node, device=index.device), (count - 1).clamp(min=0)]
    return torch.where(count[:, None] > 0, last, nothing)
