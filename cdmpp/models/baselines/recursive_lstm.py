"""The recursive LSTM over the program tree (Tiramisu) as a cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cdmpp.arrays import IntArray
from cdmpp.datasets.samples import Samples
from cdmpp.files.stored import from_json, to_json
from cdmpp.models.baselines.base import TorchPeer
from cdmpp.models.baselines.tree_shape import TreeShape, tree_shape
from cdmpp.models.nets.recursive_lstm import RecursiveLstm, TreeBatch, TreeLevel
from cdmpp.models.options import RecursiveLstmOptions
from cdmpp.models.parts.leaf_coder import LeafCoder, LeafInputs


class RecursiveLstmCostModel(TorchPeer[RecursiveLstmOptions]):
    """Combines embedded leaves up the tree with two LSTMs, one for leaves and one for loops.

    Source: Baghdadi et al., A Deep Learning Based Cost Model for Automatic Code Optimization, MLSys
    2021.

    Differs from the paper: leaves are cdmpp's leaf vectors and the tree is that of the compact AST,
    in which chains of loops may be merged; the device vector is an input; trees of different shapes
    share a batch and are combined level by level; weights are averaged; the learning rate follows a
    cosine.
    """

    kind: ClassVar[str] = "recursive-lstm"
    options_class = RecursiveLstmOptions

    def _fit_coder(self, train: Samples) -> TreeCoder:
        leaves = LeafCoder.fit(train, self._options.extra_blocks)
        return TreeCoder(leaves, self._options.collapse_chains)

    def _load_coder(self, state: dict[str, Any]) -> TreeCoder:
        return TreeCoder(from_json(LeafCoder, state), self._options.collapse_chains)

    def _new_network(self) -> nn.Module:
        return RecursiveLstm(
            self._options.embed,
            self._options.dropout,
            feature_count=len(self._coder.leaves.leaf.mean),
            device_feature_count=len(self._coder.leaves.device.mean),
        )


@dataclass(frozen=True)
class TreeCoder:
    """Leaf statistics and the option for merging chains of loops."""

    leaves: LeafCoder
    collapse_chains: bool

    def to_json(self) -> dict[str, Any]:
        """Returns the statistics."""
        state: dict[str, Any] = to_json(self.leaves)
        return state

    def inputs(self, samples: Samples) -> TreeInputs:
        """Returns the inputs of samples."""
        return TreeInputs(samples, self)


class TreeInputs:
    """Samples whose batches are trees; equal trees are parsed once."""

    def __init__(self, samples: Samples, coder: TreeCoder) -> None:
        self._leaves = LeafInputs(samples, coder.leaves)
        self.groups = self._leaves.groups
        self._shapes: list[TreeShape] = []
        self._shape_of = np.zeros(len(self.groups), np.int64)
        known: dict[tuple[bytes, bytes], int] = {}
        arrays = samples.programs
        for place, row in enumerate(self.groups.program_rows.tolist()):
            tree = arrays.tree[arrays.tree_offset[row] : arrays.tree_offset[row + 1]]
            position = arrays.leaf_position[arrays.leaf_offset[row] : arrays.leaf_offset[row + 1]]
            key = (tree.tobytes(), position.tobytes())
            if key not in known:
                known[key] = len(self._shapes)
                self._shapes.append(
                    tree_shape(
                        tree.tolist(), position.tolist(), collapse_chains=coder.collapse_chains
                    )
                )
            self._shape_of[place] = known[key]

    def batch(self, programs: IntArray) -> TreeBatch:
        """Returns the batch of the chosen programs."""
        sample_rows, owner = self.groups.samples_of(programs)
        levels, root = self._levels(programs)
        return TreeBatch(
            leaves=torch.from_numpy(self._leaves.leaves(programs)),
            levels=levels,
            root=torch.from_numpy(root),
            program=torch.from_numpy(owner),
            device=self._leaves.devices(sample_rows),
        )

    def _levels(self, programs: IntArray) -> tuple[tuple[TreeLevel, ...], IntArray]:
        """Returns the levels of the batch, lowest first, and the node number of each root.

        Nodes are numbered from the lowest level upwards.
        """
        first_leaf = np.concatenate([[0], np.cumsum(self.groups.leaf_count[programs])[:-1]])
        alike = [
            (self._shapes[shape], np.flatnonzero(self._shape_of[programs] == shape))
            for shape in np.unique(self._shape_of[programs])
        ]
        root = np.zeros(len(programs), np.int64)
        # Number of the first node of a shape in each level; its programs are contiguous.
        firsts: list[list[int]] = [[] for _ in alike]
        levels: list[TreeLevel] = []
        number = 0
        for height in range(max(len(shape.levels) for shape, _ in alike)):
            leaf_parts: list[IntArray] = []
            child_parts: list[IntArray] = []
            for (shape, members), first in zip(alike, firsts, strict=True):
                if height >= len(shape.levels):
                    continue
                level = shape.levels[height]
                nodes = len(level.leaf)
                first.append(number)
                number += nodes * len(members)
                if height == len(shape.levels) - 1:
                    root[members] = first[height] + np.arange(len(members))
                start = first_leaf[members][:, None, None]
                leaf_parts.append(_spread(level.leaf, start + level.leaf[None]))
                sizes = np.array([len(lower.leaf) for lower in shape.levels], np.int64)
                below = level.child_level
                step = np.arange(len(members))[:, None, None] * sizes[below][None]
                child = np.array(first, np.int64)[below] + level.child_place
                child_parts.append(_spread(below, child[None] + step))
            levels.append(TreeLevel(_stacked(leaf_parts), _stacked(child_parts)))
        return tuple(levels), root


def _spread(present: IntArray, index: IntArray) -> IntArray:
    """Returns int64 [member x node, most]: `index` where a child exists, else -1."""
    values = np.where(present[None] >= 0, index, -1)
    members, nodes, most = values.shape
    return np.asarray(values.reshape(members * nodes, most), np.int64)


def _stacked(parts: list[NDArray[np.int64]]) -> torch.Tensor:
    """Returns the parts concatenated by rows, padded with -1 to the widest."""
    most = max(part.shape[1] for part in parts)
    padded = [
        np.pad(part, ((0, 0), (0, most - part.shape[1])), constant_values=-1) for part in parts
    ]
    return torch.from_numpy(np.concatenate(padded))
