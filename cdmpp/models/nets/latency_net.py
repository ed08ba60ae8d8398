"""The transformer network: maps the leaves of a program and a device to log latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from cdmpp.models.nets.alike_rows import AlikeRows, through
from cdmpp.models.nets.encoder import Encoder
from cdmpp.models.nets.options import NetOptions, PriorKind, is_base, is_feature
from cdmpp.models.nets.positional import encode_position
from cdmpp.programs.added_columns import CAPACITIES


@dataclass(frozen=True)
class LeafBatch:
    """Leaves of programs, in the order of the programs, and the programs' samples.

    Attributes:
        leaves: float32 [leaf, feature], normalised leaf vectors.
        position: int64 [leaf], position in the serialised tree.
        demand: float32 [leaf, 4], log of floating-point operations, distinct bytes, touched bytes
            and parallel iterations.
        traffic: float32 [leaf, C], log of the bytes that caches of `CAPACITIES` fetch; NaN if
            unknown.
        mask: bool [program, most leaves], True for as many places as the program has leaves.
        program: int64 [sample], each sample's program, ascending; every program has a sample.
        pair: int64 [pair], leaf of each pair of a sample and a leaf of its program, by sample.
        owner: int64 [pair], sample of each pair.
        device: float32 [sample, device_feature], normalised device vectors; one row if all samples
            are of one device, as in `supply`.
        supply: float32 [sample, 6], log of FLOP/s, of bytes/s, of the bytes of the three cache
            levels and of the cores of each sample's device; NaN if unknown.
        prior: float32 [sample, 2], log seconds of an analytic model, raw and standardised; zeros
            if the network has no prior.
    """

    leaves: Tensor | AlikeRows
    position: Tensor
    demand: Tensor
    traffic: Tensor
    mask: Tensor
    program: Tensor
    pair: Tensor
    owner: Tensor
    device: Tensor
    supply: Tensor
    prior: Tensor

    def of_leaves(self, values: Tensor) -> Tensor:
        """Returns [pair, ...] of values [leaf, ...]."""
        return values if len(values) == len(self.pair) else values[self.pair]

    def of_samples(self, values: Tensor) -> Tensor:
        """Returns [pair or 1, ...] of values [sample, ...], or of one row for all samples."""
        return values if len(values) == 1 else values[self.owner]

    def padded(self, values: Tensor) -> Tensor:
        """Returns [sample, most leaves] of values [pair], -inf in padding."""
        mask = self.mask if len(self.mask) == len(self.program) else self.mask[self.program]
        found = values.new_full(mask.shape, -torch.inf)
        found[mask] = values
        return found


class LatencyNet(nn.Module):
    """Encodes each program once, then combines its leaves with each requested device.

    Latency adds over leaves: log latency = log of the sum over leaves of exp(score) + a learned
    term of the whole program. A leaf's score is its log roofline time on the device (or 0) plus a
    learned term. With an analytic prior as base, the first part is the prior plus the log of the
    mean of exp(learned term), weighted by the leaves' roofline times (or equally).
    """

    def __init__(
        self,
        options: NetOptions,
        *,
        feature_count: int,
        device_feature_count: int,
        prior: PriorKind = "none",
    ) -> None:
        super().__init__()
        hidden = options.hidden
        self._options = options
        self._has_base = is_base(prior)
        self._has_prior_feature = is_feature(prior)
        prior_count = int(self._has_prior_feature)
        self.project = nn.Linear(feature_count, hidden)
        self.position_scale = nn.Parameter(torch.full((hidden,), 0.1))
        self.encoder = Encoder(
            hidden=hidden,
            layers=options.layers,
            heads=options.heads,
            feed_forward=options.feed_forward,
            dropout=options.dropout,
        )
        self.device_mlp = nn.Sequential(
            nn.Linear(device_feature_count, options.head_hidden),
            nn.GELU(),
            nn.Linear(options.head_hidden, 2 * hidden),
        )
        self.leaf_head = nn.Sequential(
            nn.Linear(hidden + _ratio_count(options) + prior_count, options.head_hidden),
            nn.GELU(),
            nn.Dropout(options.dropout),
            nn.Linear(options.head_hidden, 1),
        )
        self.program_head = nn.Sequential(
            nn.Linear(2 * hidden + prior_count, options.head_hidden),
            nn.GELU(),
            nn.Dropout(options.dropout),
            nn.Linear(options.head_hidden, 1),
        )
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, batch: LeafBatch) -> Tensor:
        """Returns float32 [sample], log of the predicted latency in seconds."""
        return self.with_embedding(batch, self.needs(batch))[0]

    def needs(self, batch: LeafBatch) -> Tensor | None:
        """Returns float32 [pair, column], ratios of leaf demand to device supply.

        They are the same for all networks of these options; None if the options exclude them.
        """
        if not self._options.ratios:
            return None
        supply = batch.of_samples(batch.supply)
        columns = [_ratios(batch.of_leaves(batch.demand), supply)]
        if self._options.traffic:
            columns.append(_miss_times(batch.of_leaves(batch.traffic), supply))
        return torch.cat(columns, dim=-1)

    def with_embedding(self, batch: LeafBatch, needs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the result of `forward`, and the embedding of each sample.

        The embedding is float32 [sample, 2 hidden].

        Args:
            needs: the result of `self.needs(batch)`.
        """
        on_device = self._on_device(batch)
        score, share = self._leaf_scores(batch, needs, on_device)
        total = torch.logsumexp(batch.padded(score), dim=1)
        if self._has_base:
            whole = torch.logsumexp(batch.padded(share), dim=1)
            total = batch.prior[:, 0] + (total - whole)
        summed = on_device.new_zeros((len(batch.program), on_device.shape[1]))
        summed = summed.index_add(0, batch.owner, on_device)
        count = batch.mask.sum(dim=1, keepdim=True)[batch.program]
        pooled = torch.cat([summed / count, summed / torch.sqrt(count.float())], dim=-1)
        program = torch.cat([pooled, batch.prior[:, 1:]], -1) if self._has_prior_feature else pooled
        log_latency: Tensor = total + self.program_head(program).squeeze(-1) + self.bias
        return log_latency, pooled

    def leaf_shares(self, batch: LeafBatch) -> Tensor:
        """Returns float32 [sample, most leaves], each leaf's share of the latency; 0 in padding.

        The learned term of the whole program scales all leaves equally.
        """
        score, _ = self._leaf_scores(batch, self.needs(batch), self._on_device(batch))
        return torch.softmax(batch.padded(score), dim=1)

    def _on_device(self, batch: LeafBatch) -> Tensor:
        """Returns float32 [pair, hidden], each leaf's state modulated by the device."""
        state = through(self.project, batch.leaves)
        if self._options.position != "none":
            code = encode_position(
                batch.position, self._options.hidden, kind=self._options.position
            )
            state = state + self.position_scale * code
        state = batch.of_leaves(self.encoder(state, batch.mask))
        scale, shift = batch.of_samples(self.device_mlp(batch.device)).chunk(2, dim=-1)
        return state * (1.0 + scale) + shift

    def _leaf_scores(
        self, batch: LeafBatch, needs: Tensor | None, on_device: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns scores and the log roofline times in them, both float32 [pair].

        Roofline times are zeros without an anchor.
        """
        seen = on_device if needs is None else torch.cat([on_device, needs], dim=-1)
        if self._has_prior_feature:
            seen = torch.cat([seen, batch.prior[:, 1:][batch.owner]], dim=-1)
        score = self.leaf_head(seen).squeeze(-1)
        share = torch.zeros_like(score)
        if self._options.anchor == "leaf_roofline":
            supply = batch.of_samples(batch.supply)
            share = torch.amax(batch.of_leaves(batch.demand)[:, :2] - supply[:, :2], dim=-1)
            score = score + share
        return score, share

    @torch.no_grad()
    def take_device_for(self, device: Tensor, other: Tensor) -> None:
        """Shifts the device embedding so that `device` gets the embedding of `other`.

        What the network learned of `other` becomes the start for `device`. The embeddings of all
        devices shift equally.

        Args:
            device: float32 [device_feature], normalised.
            other: float32 [device_feature], normalised.
        """
        last = self.device_mlp[-1]
        assert isinstance(last, nn.Linear)
        last.bias.add_(self.device_mlp(other) - self.device_mlp(device))


#: Number of columns of `_ratios` and of `_miss_times`.
_RATIO_COUNT, _MISS_COUNT = 7, 3


def _ratio_count(options: NetOptions) -> int:
    """Returns the number of demand-to-supply columns of a leaf."""
    if not options.ratios:
        return 0
    return _RATIO_COUNT + (_MISS_COUNT if options.traffic else 0)


def _scaled_time(log_demand: Tensor, log_rate: Tensor) -> Tensor:
    """Returns the log time of a demand at a rate, scaled to about [-2, 2]."""
    return (log_demand - log_rate + 8.0) / 4.0


def _ratios(demand: Tensor, supply: Tensor) -> Tensor:
    """Returns float32 [pair, 7], log ratios of a leaf's demand to the device's supply.

    Times of operations, distinct bytes and touched bytes; distinct bytes over each cache level;
    parallel iterations over cores. Constants scale them to about [-2, 2]; 0 if unknown.

    Args:
        demand: float32 [pair, 4], see `LeafBatch`.
        supply: float32 [pair or 1, 6], see `LeafBatch`.
    """
    times = _scaled_time(demand[..., [0, 1, 2]], supply[..., [0, 1, 1]])
    fills = (demand[..., [1, 1, 1]] - supply[..., 2:5]) / 5.0
    waves = (demand[..., 3:4] - supply[..., 5:6]) / 4.0
    return torch.nan_to_num(torch.cat([times, fills, waves], dim=-1))


def _miss_times(traffic: Tensor, supply: Tensor) -> Tensor:
    """Returns float32 [pair, 3], log time to fetch each cache level's misses from memory.

    0 if unknown.

    Args:
        traffic: float32 [pair, C], see `LeafBatch`; interpolated between `CAPACITIES`.
        supply: float32 [pair or 1, 6], see `LeafBatch`.
    """
    least, step = math.log(CAPACITIES[0]), math.log(CAPACITIES[1] / CAPACITIES[0])
    place = (supply[..., 2:5] - least) / step
    place = torch.nan_to_num(place).clamp(0.0, len(CAPACITIES) - 1.001)
    lower = place.floor()
    share = place - lower
    at = lower.long().expand(len(traffic), 3)
    log_bytes = traffic.gather(1, at) * (1.0 - share) + traffic.gather(1, at + 1) * share
    times = _scaled_time(log_bytes, supply[..., 1:2])
    return torch.nan_to_num(times.masked_fill(supply[..., 2:5].isnan(), 0.0))


class LatencyEnsemble(nn.Module):
    """Several networks of one shape, trained on the same batches from different random starts.

    The mean of the members has a lower error than each member, mainly on small datasets.
    """

    def __init__(
        self,
        options: NetOptions,
        *,
        feature_count: int,
        device_feature_count: int,
        prior: PriorKind = "none",
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            LatencyNet(
                options,
                feature_count=feature_count,
                device_feature_count=device_feature_count,
                prior=prior,
            )
            for _ in range(options.members)
        )

    def forward(self, batch: LeafBatch) -> Tensor:
        """Returns float32 [member, sample], each member's log latency in seconds."""
        return self.with_embedding(batch)[0]

    def with_embedding(self, batch: LeafBatch) -> tuple[Tensor, Tensor]:
        """Returns the result of `forward`, and float32 [member, sample, 2 hidden], embeddings."""
        members = [cast(LatencyNet, member) for member in self.members]
        needs = members[0].needs(batch)
        pairs = [member.with_embedding(batch, needs) for member in members]
        return torch.stack([log for log, _ in pairs]), torch.stack([state for _, state in pairs])

    def leaf_shares(self, batch: LeafBatch) -> Tensor:
        """Returns float32 [sample, leaf], the mean leaf shares of the members."""
        members = [cast(LatencyNet, member).leaf_shares(batch) for member in self.members]
        return torch.stack(members).mean(dim=0)

    @torch.no_grad()
    def shift(self, log_factor: Tensor) -> None:
        """Adds a constant to each member's log latency.

        Args:
            log_factor: float32 [member].
        """
        for member, value in zip(self.members, log_factor, strict=True):
            assert isinstance(member, LatencyNet)
            member.bias.add_(value)


def latency_loss(
    predicted_log: Tensor,
    measured_log: Tensor,
    group: Tensor,
    *,
    huber_delta: float,
    relative_weight: float,
    relative_clip: float,
    rank_weight: float,
) -> Tensor:
    """Returns the scalar training loss (see `LossOptions`).

    Args:
        predicted_log: float32 [sample], log of predicted seconds.
        measured_log: float32 [sample], log of measured seconds.
        group: int64 [sample], equal for samples of one task on one device.
    """
    difference = predicted_log - measured_log
    loss = functional.huber_loss(predicted_log, measured_log, delta=huber_delta) / huber_delta
    if relative_weight > 0:
        # Clamping the exponent keeps the gradient finite where `relative_clip` makes it zero.
        relative = torch.abs(torch.expm1(difference.clamp(max=10.0))).clamp(max=relative_clip)
        loss = loss + relative_weight * relative.mean()
    if rank_weight > 0:
        loss = loss + rank_weight * pairwise_order_loss(predicted_log, measured_log, group)
    return loss


def pairwise_order_loss(predicted_log: Tensor, measured_log: Tensor, group: Tensor) -> Tensor:
    """Returns the mean logistic loss over pairs of one group, weighted by measured log distance.

    0 if the batch has no such pair.
    """
    gap = measured_log[:, None] - measured_log[None, :]
    weight = (group[:, None] == group[None, :]) * gap.clamp(min=0.0, max=1.0)
    margin = predicted_log[:, None] - predicted_log[None, :]
    return (weight * functional.softplus(-2.0 * margin)).sum() / weight.sum().clamp(min=1e-6)
