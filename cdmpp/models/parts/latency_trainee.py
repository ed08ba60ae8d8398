"""Samples of a training of the transformer, in the interface of the training loop."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdmpp.datasets.samples import Samples
from cdmpp.models.loop.shards import gather_samples, process_index, shares
from cdmpp.models.nets.alignment import alignment_loss
from cdmpp.models.nets.latency_net import LatencyEnsemble, LeafBatch, latency_loss
from cdmpp.models.nets.options import LossOptions
from cdmpp.models.options import TransformerOptions
from cdmpp.models.parts.leaf_batches import SampleBatches, Statistics

#: Programs per batch when no gradients are computed.
PREDICT_PROGRAMS = 256


class LatencyTrainee:
    """The transformer's `cdmpp.models.loop.loop.Trainee`.

    Attributes:
        follows_network: whether batches are moved to the network's device.
    """

    follows_network: ClassVar[bool] = True

    def __init__(
        self,
        train: Samples,
        validation: Samples,
        statistics: Statistics,
        options: TransformerOptions,
        seed: int,
    ) -> None:
        self._options = options
        self._seed = seed
        self._train = SampleBatches(train, statistics, options.extra_blocks)
        self._validation = SampleBatches(validation, statistics, options.extra_blocks)
        self._train_target = _targets(train)
        self._validation_target = _targets(validation)
        self._device_count = len(train.devices)

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        loop = self._options.loop
        return self._train.shuffled(
            loop.programs_per_batch, loop.programs_per_task, seed=self._seed, epoch=epoch
        )

    def loss(self, network: nn.Module, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        options = self._options.loss
        if options.alignment == "none":
            predicted, log_latency, group = self._forward(
                network, self._train, self._train_target, batch
            )
        else:
            ensemble = cast(LatencyEnsemble, network)
            rows = torch.from_numpy(self._train.sample_rows(batch))
            device = next(network.parameters()).device
            leaves = _on(self._train.batch(batch), device)
            predicted, embedding = ensemble.with_embedding(leaves)
            log_latency, group = (values[rows].to(device) for values in self._train_target)
        terms = _latency_terms(options)
        losses = [latency_loss(member, log_latency, group, **terms) for member in predicted]
        loss = torch.stack(losses).mean()
        if options.alignment != "none":
            by_task = options.alignment_groups == "task"
            domain = group // self._device_count if by_task else group % self._device_count
            kind = options.alignment
            distances = [alignment_loss(member, domain, kind=kind) for member in embedding]
            loss = loss + options.alignment_weight * torch.stack(distances).mean()
        return loss, len(group)

    def validate(self, network: nn.Module) -> float:
        total = 0.0
        count = 0
        # The order term depends on the batches, so validation uses only the error terms.
        options = {**_latency_terms(self._options.loss), "rank_weight": 0.0}
        for batch in self._validation.in_order(PREDICT_PROGRAMS):
            predicted, log_latency, group = self._forward(
                network, self._validation, self._validation_target, batch
            )
            mean = predicted.mean(dim=0)
            total += float(latency_loss(mean, log_latency, group, **options)) * len(group)
            count += len(group)
        return total / count

    def predict_validation(self, network: nn.Module) -> NDArray[np.float64]:
        """Returns float64 [validation sample], log of predicted seconds."""
        log_latency = np.zeros(len(self._validation_target[0]))
        with torch.no_grad():
            for batch in self._validation.in_order(PREDICT_PROGRAMS):
                device = next(network.parameters()).device
                members = network.eval()(_on(self._validation.batch(batch), device))
                mean = members.mean(dim=0).cpu().numpy()
                log_latency[self._validation.sample_rows(batch)] = mean
        return log_latency

    def centre(self, network: LatencyEnsemble) -> None:
        """Sets each member's bias so that its median error before training is zero."""
        errors = []
        with torch.no_grad():
            for batch in self._train.in_order(PREDICT_PROGRAMS):
                predicted, log_latency, _ = self._forward(
                    network.eval(), self._train, self._train_target, batch
                )
                errors.append(log_latency - predicted)
            network.shift(torch.cat(errors, dim=1).median(dim=1).values)

    def _forward(
        self,
        network: nn.Module,
        batches: SampleBatches,
        target: tuple[Tensor, Tensor],
        programs: NDArray[np.int64],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns predicted log seconds [member, sample], measured log seconds [sample] and groups.

        If several processes train together, each runs its share of the programs.
        """
        parts = shares(programs)
        own = parts[process_index()]
        counts = [len(batches.sample_rows(part)) for part in parts]
        device = next(network.parameters()).device
        # A process without a share runs one program, so that every process has gradients.
        batch = batches.batch(own if len(own) else programs[:1])
        predicted = gather_samples(network(_on(batch, device)).float(), counts)
        rows = torch.from_numpy(batches.sample_rows(programs))
        return predicted, target[0][rows].to(device), target[1][rows].to(device)


def _on(batch: LeafBatch, device: torch.device) -> LeafBatch:
    """Returns the batch on a device; on the CPU, the batch itself."""
    if device.type == "cpu":
        return batch
    moved = {part.name: getattr(batch, part.name).to(device) for part in fields(batch)}
    return replace(batch, **moved)


def _latency_terms(options: LossOptions) -> dict[str, float]:
    """Returns the keyword arguments of `latency_loss`."""
    names = ("huber_delta", "relative_weight", "relative_clip", "rank_weight")
    return {name: getattr(options, name) for name in names}


def _targets(samples: Samples) -> tuple[Tensor, Tensor]:
    """Returns log seconds (float32 [N]) and the (task, device) group of each sample (int64 [N])."""
    group = samples.task_id * len(samples.devices) + samples.device
    return (
        torch.from_numpy(np.log(samples.latency_s).astype(np.float32)),
        torch.from_numpy(group),
    )
