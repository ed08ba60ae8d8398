"""Standardised leaves and device vectors, the inputs of most baselines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cdmpp.arrays import Float32Array, IntArray
from cdmpp.datasets.samples import Samples
from cdmpp.devices.vector import device_vector
from cdmpp.models.nets.alike_rows import AlikeRows
from cdmpp.models.nets.segment_mlp import SegmentBatch
from cdmpp.models.parts.normalise import Normalisation
from cdmpp.models.parts.pooling import fit_leaves, leaf_matrix, leaf_rows, unlike_columns
from cdmpp.models.parts.program_groups import ProgramGroups


@dataclass(frozen=True)
class LeafCoder:
    """Statistics of the leaves and devices of a training part; each program counts once.

    Attributes:
        leaf: statistics of the leaf columns in use.
        device: statistics of the device vectors.
        extra_blocks: blocks of added leaf columns to use; None = all.
    """

    leaf: Normalisation
    device: Normalisation
    extra_blocks: tuple[str, ...] | None

    @classmethod
    def fit(cls, train: Samples, extra_blocks: tuple[str, ...] | None) -> LeafCoder:
        """Returns the statistics of `train`."""
        return cls(fit_leaves(train, extra_blocks), fit_devices(train), extra_blocks)

    def inputs(self, samples: Samples) -> LeafInputs:
        """Returns the inputs of samples."""
        return LeafInputs(samples, self)


class LeafInputs:
    """Samples whose batches are concatenated leaves.

    Args:
        alike: whether batches store columns with common values once (`AlikeRows`).
    """

    def __init__(self, samples: Samples, coder: LeafCoder, *, alike: bool = False) -> None:
        self.groups = ProgramGroups(samples)
        self._samples = samples
        self._coder = coder
        self._alike = alike
        self._device = device_rows(samples, coder.device)

    def leaves(self, programs: IntArray) -> Float32Array:
        """Returns float32 [leaf, feature], standardised, ordered by program."""
        arrays = self._samples.programs
        rows = leaf_rows(arrays, self.groups.program_rows[programs])
        return self._coder.leaf.apply(leaf_matrix(arrays, rows, self._coder.extra_blocks))

    def devices(self, sample_rows: IntArray) -> Tensor:
        """Returns float32 [sample, device_feature], standardised."""
        return self._device[torch.from_numpy(self._samples.device[sample_rows])]

    def batch(self, programs: IntArray) -> SegmentBatch:
        """Returns the batch of the chosen programs."""
        sample_rows, owner = self.groups.samples_of(programs)
        count = len(programs)
        leaves: Tensor | AlikeRows
        if self._alike and self.groups.leaf_count[programs].any():
            arrays = self._samples.programs
            rows = leaf_rows(arrays, self.groups.program_rows[programs])
            found = unlike_columns(arrays, rows, self._coder.extra_blocks)
            leaves = AlikeRows(*map(torch.from_numpy, self._coder.leaf.apply_unlike(found)))
        else:
            leaves = torch.from_numpy(self.leaves(programs))
        segment = np.repeat(np.arange(count, dtype=np.int64), self.groups.leaf_count[programs])
        return SegmentBatch(
            leaves=leaves,
            owner=torch.from_numpy(segment),
            program_count=count,
            program=torch.from_numpy(owner),
            device=self.devices(sample_rows),
        )


def fit_devices(train: Samples) -> Normalisation:
    """Returns the statistics of the device vectors of the devices in `train`."""
    used = np.unique(train.device)
    return Normalisation.fit(np.stack([device_vector(train.devices[index]) for index in used]))


def device_rows(samples: Samples, normalisation: Normalisation) -> Tensor:
    """Returns float32 [device, device_feature], the standardised vector of each device."""
    vectors = np.stack([device_vector(spec) for spec in samples.devices])
    return torch.from_numpy(normalisation.apply(vectors))
