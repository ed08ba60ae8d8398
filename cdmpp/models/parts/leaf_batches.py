"""Batches of leaves, built from samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cdmpp.analytic.roofline.programs import device_rates, leaf_work
from cdmpp.arrays import IntArray, items_of
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.vector import device_vector
from cdmpp.models.nets.alike_rows import AlikeRows
from cdmpp.models.nets.latency_net import LeafBatch
from cdmpp.models.parts.normalise import Normalisation
from cdmpp.models.parts.pooling import (
    columns_of,
    fit_leaves,
    leaf_matrix,
    leaf_rows,
    unlike_columns,
)
from cdmpp.models.parts.prior import Prior
from cdmpp.models.parts.program_groups import ProgramGroups, cut
from cdmpp.programs.added_columns import CAPACITIES, TRAFFIC_COLUMNS

#: Lower bound on work in operations or bytes, so that its logarithm is finite.
_LEAST_WORK = 1.0
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Statistics:
    """Statistics of the training part that normalise a model's inputs."""

    leaf: Normalisation
    device: Normalisation
    prior: Prior | None = None

    @classmethod
    def fit(
        cls,
        train: Samples,
        extra_blocks: Sequence[str] | None = None,
        prior: Prior | None = None,
    ) -> Statistics:
        """Returns statistics of the training part's leaves and devices; a program counts once.

        Args:
            extra_blocks: blocks of added leaf columns to use; None = all.
            prior: the calibrated analytic model; None without one.
        """
        vectors = np.stack([device_vector(train.devices[i]) for i in np.unique(train.device)])
        return cls(
            fit_leaves(train, extra_blocks),
            Normalisation.fit(vectors),
            prior,
        )


class SampleBatches(ProgramGroups):
    """Samples grouped by program, with batches of leaves for the transformer."""

    def __init__(
        self,
        samples: Samples,
        statistics: Statistics,
        extra_blocks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(samples)
        self._samples = samples
        self._extra_blocks = extra_blocks
        self._statistics = statistics
        vectors = np.stack([device_vector(spec) for spec in samples.devices])
        self._device = torch.from_numpy(statistics.device.apply(vectors))
        traffic = columns_of(samples.programs, TRAFFIC_COLUMNS, extra_blocks)
        self._has_traffic = traffic is not None
        self._supply = torch.from_numpy(np.stack([_supply(spec) for spec in samples.devices]))
        prior = statistics.prior
        columns = (
            np.zeros((len(samples), 2), np.float32) if prior is None else prior.columns(samples)
        )
        self._prior = torch.from_numpy(columns)

    def batch(self, programs: IntArray, *, alike: bool = False) -> LeafBatch:
        """Returns the batch of the chosen programs (indices into `program_rows`).

        Args:
            alike: whether columns with common values are stored once (`AlikeRows`).
        """
        arrays = self._samples.programs
        rows = leaf_rows(arrays, self.program_rows[programs])
        counts = self.leaf_count[programs]
        leaves: Tensor | AlikeRows
        if alike and len(rows):
            found = unlike_columns(arrays, rows, self._extra_blocks)
            leaves = AlikeRows(*map(torch.from_numpy, self._statistics.leaf.apply_unlike(found)))
        else:
            raw = leaf_matrix(arrays, rows, self._extra_blocks)
            leaves = torch.from_numpy(self._statistics.leaf.apply(raw))
        work = leaf_work(arrays.leaf_features[rows])
        values = np.stack([work.flop, work.bytes, work.touched_bytes, work.parallelism], 1)
        demand = np.log(np.maximum(values, _LEAST_WORK)).astype(np.float32)
        if self._has_traffic:
            # signed_log(x) = log2(x + 1), and a leaf moves at least one byte.
            columns = arrays.leaf_extra[rows, TRAFFIC_COLUMNS]
            traffic = np.maximum(columns, 1.0) * np.float32(math.log(2.0))
        else:
            traffic = np.full((len(rows), len(CAPACITIES)), np.nan, np.float32)
        sample_rows, program = self.samples_of(programs)
        offset = np.concatenate([[0], np.cumsum(counts)])
        pair, owner = items_of(offset, program)
        is_one = len(self._samples.devices) == 1
        device = torch.from_numpy(self._samples.device[sample_rows[:1] if is_one else sample_rows])
        return LeafBatch(
            leaves=leaves,
            position=torch.from_numpy(arrays.leaf_position[rows].astype(np.int64)),
            demand=torch.from_numpy(demand),
            traffic=torch.from_numpy(traffic),
            mask=torch.from_numpy(np.arange(counts.max(initial=1)) < counts[:, None]),
            program=torch.from_numpy(program),
            pair=torch.from_numpy(pair),
            owner=torch.from_numpy(owner),
            device=self._device[device],
            supply=self._supply[device],
            prior=self._prior[torch.from_numpy(sample_rows)],
        )

    def shuffled(
        self, programs_per_batch: int, programs_per_task: int, *, seed: int, epoch: int
    ) -> list[IntArray]:
        """Returns the batches of an epoch, a pure function of the arguments.

        Programs of one task stay together in small groups, groups of similar leaf counts share a
        batch, and the order of groups and batches is random.
        """
        rng = np.random.default_rng([seed, epoch])
        groups = self._task_groups(programs_per_task, rng)
        # Sorting only within a window keeps padding low and batches varied.
        window = max(1, 16 * programs_per_batch // programs_per_task)
        batches: list[IntArray] = []
        for start in range(0, len(groups), window):
            part_groups = groups[start : start + window]
            part_groups.sort(key=lambda group: int(self.leaf_count[group].max()))
            batches.extend(cut(np.concatenate(part_groups), programs_per_batch))
        return [batches[i] for i in rng.permutation(len(batches))]


def _supply(spec: DeviceSpec) -> NDArray[np.float32]:
    """Returns `LeafBatch.supply` of one device: unknown rates are nominal, other values NaN."""
    counts = (spec.l1_bytes, spec.l2_bytes, spec.l3_bytes, spec.core_count)
    values = [*device_rates(spec), *(count or np.nan for count in counts)]
    return np.log(np.array(values, np.float64)).astype(np.float32)


def samples_digest(samples: Samples) -> str:
    """Returns a hex digest of the samples' programs, devices and latencies."""
    digest = hashlib.sha256()
    digest.update(samples.programs.data_hash.encode())
    digest.update(" ".join(spec.name for spec in samples.devices).encode())
    for part in cut(samples.program, _CHUNK):
        digest.update("".join(samples.programs.program_id[part]).encode())
    for array in (samples.device, samples.latency_s):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
