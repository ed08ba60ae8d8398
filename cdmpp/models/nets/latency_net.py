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
    """Programs padded to the same number of leaves, and their samples.

    Attributes:
        leaves: float32 [batch, leaf, feature], normalised leaf vectors, zeros in padding; or rows
            without padding, in the order of `mask`.
        position: int64 [batch, leaf], position in the serialised tree.
        mask: bool [batch, leaf], True for leaves, False for padding.
        demand: float32 [batch, leaf, 4], log of floating-point operations, distinct bytes, touched
            bytes and parallel iterations of each leaf.
        traffic: float32 [batch, leaf, C], log of the bytes that caches of `CAPACITIES` fetch; NaN
            if unknown.
        program: int64 [sample], row of each sample's program in the batch, ascending; every
            program has a sample.
        device: float32 [sample, device_feature], normalised device vectors; one row if all samples
            are of one device, as in `supply`.
        supply: float32 [sample, 6], log of FLOP/s, of bytes/s, of the bytes of the three cache
            levels and of the cores of each sample's device; NaN if unknown.
        prior: float32 [sample, 2], log seconds of an analytic model, raw and standardised; zeros
            if the network has no prior.
    """

    leaves: Tensor | AlikeRows
    position: Tensor
    mask: Tensor
    demand: Tensor
    traffic: Tensor
    program: Tensor
    device: Tensor
    supply: Tensor
    prior: Tensor

    def per_sample(self, values: Tensor) -> Tensor:
        """Returns [sample, ...] of the programs' values [batch, ...]."""
        return values if len(values) == len(self.program) else values[self.program]


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
        """Returns float32 [sample, leaf, column], ratios of leaf demand to device supply.

        They are the same for all networks of these options; None if the options exclude them.
        """
        if not self._options.ratios:
            return None
        supply = batch.supply[:, None, :]
        columns = [_ratios(batch.per_sample(batch.demand), supply)]
        if self._options.traffic:
            columns.append(_miss_times(batch.per_sample(batch.traffic), supply))
        return torch.cat(columns, dim=-1)

    def with_embedding(self, batch: LeafBatch, needs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the result of `forward`, and the embedding of each sample.

        The embedding is float32 [sample, 2 hidden].

        Args:
            needs: the result of `self.needs(batch)`.
        """
        on_device, mask = self._on_device(batch)
        score, share = self._leaf_scores(batch, needs, on_device, mask)
        total = torch.logsumexp(score, dim=1)
        if self._has_base:
            whole = torch.logsumexp(share.masked_fill(~mask, -torch.inf), dim=1)
            total = batch.prior[:, 0] + (total - whole)
        summed = on_device.sum(dim=1)
        count = mask.sum(dim=1, keepdim=True)
        pooled = torch.cat([summed / count, summed / torch.sqrt(count.float())], dim=-1)
        program = torch.cat([pooled, batch.prior[:, 1:]], -1) if self._has_prior_feature else pooled
        log_latency: Tensor = total + self.program_head(program).squeeze(-1) + self.bias
        return log_latency, pooled

    def leaf_shares(self, batch: LeafBatch) -> Tensor:
        """Returns float32 [sample, leaf], each leaf's share of the latency; 0 in padding.

        The learned term of the whole program scales all leaves equally.
        """
        score, _ = self._leaf_scores(batch, self.needs(batch), *self._on_device(batch))
        return torch.softmax(score, dim=1)

    def _on_device(self, batch: LeafBatch) -> tuple[Tensor, Tensor]:
        """Returns float32 [sample, leaf, hidden], each leaf's state modulated by the device, and
        the mask bool [sample, leaf].
        """
        state = through(self.project, batch.leaves)
        if isinstance(batch.leaves, AlikeRows):
            padded = state.new_zeros((*batch.mask.shape, state.shape[-1]))
            padded[batch.mask] = state
            state = padded
        if self._options.position != "none":
            code = encode_position(
                batch.position, self._options.hidden, kind=self._options.position
            )
            state = state + self.position_scale * code
        state = self.encoder(state, batch.mask)
        scale, shift = self.device_mlp(batch.device).chunk(2, dim=-1)
        mask = batch.per_sample(batch.mask)
        on_device = batch.per_sample(state) * (1.0 + scale[:, None, :]) + shift[:, None, :]
        return on_device * mask[:, :, None], mask

    def _leaf_scores(
        self, batch: LeafBatch, needs: Tensor | None, on_device: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns scores and the log roofline times in them, both float32 [sample, leaf].

        Scores are -inf in padding; roofline times are zeros without an anchor.
        """
        demand = batch.per_sample(batch.demand)
        seen = on_device if needs is None else torch.cat([on_device, needs], dim=-1)
        if self._has_prior_feature:
            column = batch.prior[:, None, 1:].expand(-1, seen.shape[1], -1)
            seen = torch.cat([seen, column], dim=-1)
        score = self.leaf_head(seen).squeeze(-1)
        share = torch.zeros_like(score)
        if self._options.anchor == "leaf_roofline":
            share = torch.amax(demand[..., :2] - batch.supply[:, None, :2], dim=-1)
            score = score + share
        return score.masked_fill(~mask, -torch.inf), share

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
    """Returns float32 [sample, leaf, 7], log ratios of a leaf's demand to the device's supply.

    Times of operations, distinct bytes and touched bytes; distinct bytes over each cache level;
    parallel iterations over cores. Constants scale them to about [-2, 2]; 0 if unknown.

    Args:
        demand: float32 [sample, leaf, 4], see `LeafBatch`.
        supply: float32 [sample, 1, 6], see `LeafBatch`.
    """
    times = _scaled_time(demand[..., [0, 1, 2]], supply[..., [0, 1, 1]])
    fills = (demand[..., [1, 1, 1]] - supply[..., 2:5]) / 5.0
    waves = (demand[..., 3:4] - supply[..., 5:6]) / 4.0
    return torch.nan_to_num(torch.cat([times, fills, waves], dim=-1))


def _miss_times(traffic: Tensor, supply: Tensor) -> Tensor:
    """Returns float32 [sample, leaf, 3], log time to fetch each cache level's misses from memory.

    0 if unknown.

    Args:
        traffic: float32 [sample, leaf, C], see `LeafBatch`; interpolated between `CAPACITIES`.
        supply: float32 [sample, 1, 6], see `LeafBatch`.
    """
    least, step = math.log(CAPACITIES[0]), math.log(CAPACITIES[1] / CAPACITIES[0])
    place = (supply[..., 2:5] - least) / step
    place = torch.nan_to_num(place).clamp(0.0, len(CAPACITIES) - 1.001)
    lower = place.floor()
    share = place - lower
    at = lower.long().expand(*traffic.shape[:2], 3)
    log_bytes = traffic.gather(2, at) * (1.0 - share) + traffic.gather(2, at + 1) * share
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
