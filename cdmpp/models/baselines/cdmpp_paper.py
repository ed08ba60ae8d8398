"""The original CDMPP as a cost model, with its published architecture and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.arrays import Float32Array, IntArray
from cdmpp.datasets.samples import Samples
from cdmpp.devices.vector import DEVICE_VECTOR_NAMES, device_vector
from cdmpp.errors import DataError
from cdmpp.metrics import absolute_percentage_error
from cdmpp.models.baselines.base import TorchPeer
from cdmpp.models.nets.leaf_count_net import LeafCountBatch, LeafCountNet
from cdmpp.models.nets.options import CdmppPaperOptions
from cdmpp.models.nets.positional import encode_position
from cdmpp.models.parts.labels import BoxCoxLabels
from cdmpp.models.parts.pooling import leaf_matrix, leaf_rows
from cdmpp.models.parts.program_groups import ProgramGroups

#: Added to the range of a column, as in the original.
_RANGE_FLOOR = 1e-6


@dataclass(frozen=True)
class RangeCoder:
    """Ranges of the leaf columns and the leaf counts of a training part.

    Attributes:
        low: float32 [F], minimum of each column.
        span: float32 [F], maximum minus minimum.
        leaf_counts: the occurring numbers of leaves, ascending.
        extra_blocks: blocks of added leaf columns to use; None = all.
    """

    low: Float32Array
    span: Float32Array
    leaf_counts: tuple[int, ...]
    extra_blocks: tuple[str, ...] | None

    @classmethod
    def fit(cls, train: Samples, extra_blocks: tuple[str, ...] | None) -> RangeCoder:
        """Returns the statistics of `train`; a program without leaves counts as one zero leaf.

        Raises:
            DataError: there are fewer than two samples.
        """
        if len(train) < 2:
            raise DataError(
                "the training part has one sample, but batch norm needs two; inspect the "
                "dataset with `cdmpp dataset stats`"
            )
        programs = np.unique(train.program)
        leaves = leaf_matrix(train.programs, leaf_rows(train.programs, programs), extra_blocks)
        low = leaves.min(axis=0)
        counts = np.maximum(np.diff(train.programs.leaf_offset)[programs], 1)
        return cls(
            low,
            leaves.max(axis=0) - low,
            tuple(int(count) for count in np.unique(counts)),
            extra_blocks,
        )

    def inputs(self, samples: Samples) -> RangeInputs:
        """Returns the inputs of samples."""
        return RangeInputs(samples, self)


class CdmppPaperCostModel(TorchPeer[CdmppPaperOptions]):
    """The published CDMPP: a transformer encoder on min-max scaled leaf vectors.

    It adds the original positional encoding to the leaves, has no input projection, one block for
    each number of leaves, and batch norms. Labels are Box-Cox transformed; the loss is 1000 x
    squared error + percentage error of the normalised label; Adam has a triangular cyclic rate.

    Source: Hu et al., CDMPP: A Device-Model Agnostic Framework for Latency Prediction of Tensor
    Programs, EuroSys 2024.

    Differs from the paper: all statistics come from the training part; weights are selected by the
    lowest MAPE on the validation part, not the test part; all leaf counts are trained together and
    share batches (a batch of one leaf count would be normalised by statistics that evaluation does
    not have); a program with an untrained leaf count uses the block of the nearest trained count,
    its leaves cut or padded with zeros; the device vector is cdmpp's and always present; the added
    leaf columns are used (columns of zeros make their number divisible by four); a program measured
    on several devices is encoded once per batch; the domain regulariser, which sees test inputs, is
    left out.
    """

    kind: ClassVar[str] = "cdmpp-paper"
    options_class = CdmppPaperOptions
    coder_class = RangeCoder

    def _fit_labels(self, train: Samples) -> BoxCoxLabels:
        return BoxCoxLabels.fit(train.latency_s)

    def _new_network(self) -> nn.Module:
        return LeafCountNet(
            self._options,
            self._coder.leaf_counts,
            feature_count=_padded_width(len(self._coder.low)),
            device_feature_count=len(DEVICE_VECTOR_NAMES),
        )

    def _training_batches(self, groups: ProgramGroups, *, seed: int, epoch: int) -> list[IntArray]:
        batches = groups.shuffled(self._options.loop.programs_per_batch, 1, seed=seed, epoch=epoch)
        if len(batches) > 1 and len(batches[-1]) == 1:  # too few for batch norm
            batches[-2:] = [np.concatenate(batches[-2:])]
        return batches

    def _loss(self, output: Tensor, label: Tensor, relevance: Tensor, group: Tensor) -> Tensor:
        difference = output - label
        squared = self._options.mse_weight * (difference**2).mean()
        # A standardised label can be 0, where the original's percentage error is unbounded.
        safe = torch.where(label.abs() < 1e-6, torch.full_like(label, 1e-6), label)
        loss: Tensor = squared + (difference / safe).abs().mean()
        return loss

    def _validation_loss(
        self, output: np.ndarray[Any, np.dtype[np.float64]], samples: Samples
    ) -> float:
        predicted_s = self._seconds(output, samples)
        return float(np.mean(absolute_percentage_error(samples.latency_s, predicted_s)))


class RangeInputs:
    """Samples whose batches group programs by their number of leaves."""

    def __init__(self, samples: Samples, coder: RangeCoder) -> None:
        self.groups = ProgramGroups(samples)
        self._samples = samples
        self._coder = coder
        vectors = np.stack([device_vector(spec) for spec in samples.devices])
        self._device = torch.from_numpy(vectors)
        known = np.array(coder.leaf_counts)
        # The nearest trained number of leaves; the larger one in a tie.
        distance = np.abs(known[None, ::-1] - self.groups.leaf_count[:, None])
        self._count = known[::-1][np.argmin(distance, axis=1)]

    def batch(self, programs: IntArray) -> LeafCountBatch:
        """Returns the batch of the chosen programs."""
        count = self._count[programs]
        order = np.argsort(count, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        sample_rows, owner = self.groups.samples_of(programs)
        return LeafCountBatch(
            leaves=tuple(
                self._encoded(programs[count == size], int(size)) for size in np.unique(count)
            ),
            place=torch.from_numpy(place),
            program=torch.from_numpy(owner),
            device=self._device[torch.from_numpy(self._samples.device[sample_rows])],
        )

    def _encoded(self, programs: IntArray, size: int) -> Tensor:
        """Returns float32 [program, size, feature]; leaves are cut or padded with zeros."""
        coder, arrays = self._coder, self._samples.programs
        rows = leaf_rows(arrays, self.groups.program_rows[programs])
        count = self.groups.leaf_count[programs]
        index = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        owner = np.repeat(np.arange(len(programs)), count)
        owner, rows, index = owner[index < size], rows[index < size], index[index < size]
        raw = leaf_matrix(arrays, rows, coder.extra_blocks)
        width = _padded_width(raw.shape[1])
        leaves = np.zeros((len(programs), size, width), np.float32)
        scaled = (raw - coder.low) / (coder.span + np.float32(_RANGE_FLOOR))
        leaves[owner, index, : raw.shape[1]] = scaled
        position = torch.from_numpy(arrays.leaf_position[rows].astype(np.int64))
        leaves[owner, index] += encode_position(position, width, kind="original").numpy()
        return torch.from_numpy(leaves)


def _padded_width(columns: int) -> int:
    """Returns the number of columns, rounded up to a multiple of four."""
    return -(-columns // 4) * 4
