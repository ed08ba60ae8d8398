"""Hyper-parameters of the models. These dataclasses are the truth; files under `configs/models`
mirror them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cdmpp.analytic.prior import PriorModelName
from cdmpp.models.nets.options import (
    ADDED_LATER,
    LoopOptions,
    LossOptions,
    NetOptions,
    PriorKind,
    TorchPeerOptions,
)

PeerLossKind = Literal["mse", "lambda_rank"]
GbdtObjective = Literal["squared_log", "absolute_log", "huber_log", "rank"]


@dataclass(frozen=True)
class TransformerOptions:
    """Everything about the transformer cost model.

    Attributes:
        network: its shape.
        loss: what it is trained for.
        loop: how it is trained.
        extra_blocks: named blocks of the added leaf columns that are used; null = all.
        prior: what an analytic model's time is to the network: `residual` = the network predicts
            the log ratio to it, `feature` = both heads see it, `both`; `none` = no analytic model
            but the anchor.
        prior_model: that analytic model, see `cdmpp.analytic.prior`.
    """

    network: NetOptions = field(default_factory=NetOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    loop: LoopOptions = field(default_factory=LoopOptions)
    extra_blocks: tuple[str, ...] | None = None
    prior: PriorKind = field(default="none", metadata=ADDED_LATER)
    prior_model: PriorModelName = field(default="auto", metadata=ADDED_LATER)


@dataclass(frozen=True)
class GbdtOptions:
    """Gradient-boosted trees on pooled leaf features.

    Attributes:
        trees: most boosting rounds.
        depth: greatest depth of a tree.
        learning_rate: shrinkage of each tree.
        subsample: share of samples each tree sees.
        column_share: share of columns each tree sees.
        min_child_weight: least number of samples in a leaf of a tree.
        patience: rounds without a better validation error after which boosting stops.
        threads: worker threads; 0 = all cores, which is slower on a busy machine.
        objective: squared, absolute or pseudo-Huber error of log seconds, or the pairwise order of
            the programs of one task on one device.
        least_mape_factor: whether predictions are scaled by the one factor that gives the least
            MAPE on the validation part (not with `rank`).
        total_columns: whether the totals of a program (sums of what the logarithmic columns stand
            for) are added to the sums and maxima of its columns.
        extra_blocks: named blocks of the added leaf columns that are used; null = all.
        prior: what an analytic model's time is to the trees, as in `TransformerOptions`; with the
            objective `rank` only `none` or `feature`.
        prior_model: that analytic model, see `cdmpp.analytic.prior`.
    """

    trees: int = 500
    depth: int = 7
    learning_rate: float = 0.05
    subsample: float = 0.8
    column_share: float = 0.5
    min_child_weight: float = 3.0
    patience: int = 50
    threads: int = 1
    objective: GbdtObjective = "squared_log"
    least_mape_factor: bool = True
    total_columns: bool = True
    extra_blocks: tuple[str, ...] | None = None
    prior: PriorKind = field(default="none", metadata=ADDED_LATER)
    prior_model: PriorModelName = field(default="auto", metadata=ADDED_LATER)


@dataclass(frozen=True)
class RankablePeerOptions(TorchPeerOptions):
    """Peers that can learn seconds or an order.

    Attributes:
        loss: `mse` on standardised log seconds, or `lambda_rank` on the order of the programs of
            one task on one device.
        least_mape_factor: whether predictions are scaled by the one factor that gives the least
            MAPE on the validation part (`mse` only).
    """

    loss: PeerLossKind = "mse"
    least_mape_factor: bool = True


@dataclass(frozen=True)
class SegmentMlpOptions(RankablePeerOptions):
    """Tenset's perceptron over the leaves of a program.

    Attributes:
        hidden: width of all layers.
    """

    hidden: int = 256
    loop: LoopOptions = field(
        default_factory=lambda: LoopOptions(
            epochs=50,
            programs_per_batch=128,
            programs_per_task=16,
            learning_rate=7e-4,
            weight_decay=1e-6,
            patience=15,
        )
    )


@dataclass(frozen=True)
class TlpOptions(RankablePeerOptions):
    """TLP: a transformer on the steps of a schedule.

    Attributes:
        hidden: width of a step's state; the paper's is 256.
        heads: attention heads; divides `hidden`.
    """

    hidden: int = 256
    heads: int = 8
    loop: LoopOptions = field(
        default_factory=lambda: LoopOptions(
            epochs=50,
            programs_per_batch=64,
            programs_per_task=16,
            learning_rate=7e-4,
            weight_decay=1e-6,
            gradient_clip=0.5,
            patience=15,
        )
    )


@dataclass(frozen=True)
class RecursiveLstmOptions(RankablePeerOptions):
    """A recursive LSTM over the tree of a program (Tiramisu).

    Attributes:
        embed: widths of the perceptron that embeds a leaf; the last one is the width of every
            state.
        dropout: share of activations dropped in training, in [0, 1).
        collapse_chains: whether a loop whose only child is a loop is merged with it.
    """

    embed: tuple[int, ...] = (600, 350, 200, 180)
    dropout: float = 0.112
    collapse_chains: bool = True
    loop: LoopOptions = field(
        default_factory=lambda: LoopOptions(
            epochs=50,
            programs_per_batch=64,
            programs_per_task=8,
            learning_rate=1e-3,
            weight_decay=0.00375,
            patience=15,
        )
    )


@dataclass(frozen=True)
class EnsembleOptions:
    """The mean of a transformer, a perceptron and trees.

    Attributes:
        transformer: its options.
        perceptron: those of the perceptron on summed leaves.
        trees: those of the trees.
        least_tasks: training tasks below which a device is left to the other two.
        default_shares: of transformer, perceptron and trees, where no validation samples can tell.
        fence: how far (in log seconds) a part's prediction may lie outside of those of the other
            two; beyond it counts as that. 0 = no fence.
        least_mape_factor: whether predictions are scaled by the one factor that gives the least
            MAPE on the validation part, not the least log error.
    """

    transformer: TransformerOptions = field(default_factory=TransformerOptions)
    perceptron: SegmentMlpOptions = field(
        default_factory=lambda: SegmentMlpOptions(least_mape_factor=False)
    )
    trees: GbdtOptions = field(
        default_factory=lambda: GbdtOptions(
            trees=250, learning_rate=0.1, patience=30, least_mape_factor=False
        )
    )
    least_tasks: int = 10
    default_shares: tuple[float, float, float] = (0.4, 0.4, 0.2)
    fence: float = field(default=0.0, metadata=ADDED_LATER)
    least_mape_factor: bool = field(default=False, metadata=ADDED_LATER)
