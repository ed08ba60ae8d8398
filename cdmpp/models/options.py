"""Hyper-parameters of the models; files under `configs/models` mirror these dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cdmpp.analytic.prior import PriorModelName
from cdmpp.errors import UsageError
from cdmpp.models.nets.options import (
    ADDED_LATER,
    LoopOptions,
    LossOptions,
    NetOptions,
    PriorKind,
    TorchPeerOptions,
    check_heads,
    check_ranges,
)

PeerLossKind = Literal["mse", "lambda_rank"]
GbdtObjective = Literal["squared_log", "absolute_log", "huber_log", "rank"]


@dataclass(frozen=True)
class TransformerOptions:
    """Options of the transformer cost model.

    Attributes:
        network: shape of the network.
        loss: the training loss.
        loop: options of the training loop.
        extra_blocks: named blocks of added leaf columns to use; null = all.
        prior: use of an analytic model's time: `residual` = the network predicts the log ratio to
            it, `feature` = it is an input of both heads, `both`; `none` = only the anchor.
        prior_model: the analytic model, see `cdmpp.analytic.prior`.
    """

    network: NetOptions = field(default_factory=NetOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    loop: LoopOptions = field(default_factory=LoopOptions)
    extra_blocks: tuple[str, ...] | None = None
    prior: PriorKind = field(default="none", metadata=ADDED_LATER)
    prior_model: PriorModelName = field(default="auto", metadata=ADDED_LATER)


@dataclass(frozen=True)
class GbdtOptions:
    """Options of gradient-boosted trees on pooled leaf features.

    Attributes:
        trees: maximum number of boosting rounds.
        depth: maximum depth of a tree.
        learning_rate: shrinkage of each tree.
        subsample: share of samples per tree.
        column_share: share of columns per tree.
        min_child_weight: minimum number of samples in a leaf of a tree.
        patience: rounds without a better validation error after which boosting stops.
        threads: worker threads; 0 = all cores, which is slower on a busy machine.
        objective: squared, absolute or pseudo-Huber error of log seconds, or the pairwise order of
            the programs of one task on one device.
        least_mape_factor: whether predictions are scaled by the factor with the lowest MAPE on the
            validation part (not with `rank`).
        total_columns: whether inputs include program totals (sums of the values before the
            logarithm) beside the sums and maxima of the columns.
        extra_blocks: named blocks of added leaf columns to use; null = all.
        prior: use of an analytic model's time, as in `TransformerOptions`; with the objective
            `rank` only `none` or `feature`.
        prior_model: the analytic model, see `cdmpp.analytic.prior`.

    Raises:
        UsageError: a value is out of range.
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

    def __post_init__(self) -> None:
        check_ranges(
            self,
            {
                "at least 1": ("trees", "depth", "patience"),
                "0 or more": ("min_child_weight", "threads"),
                "above 0": ("learning_rate",),
                "above 0, at most 1": ("subsample", "column_share"),
            },
        )


@dataclass(frozen=True)
class RankablePeerOptions(TorchPeerOptions):
    """Options of baselines that can learn seconds or an order.

    Attributes:
        loss: `mse` on standardised log seconds, or `lambda_rank` on the order of the programs of
            one task on one device.
        least_mape_factor: whether predictions are scaled by the factor with the lowest MAPE on the
            validation part (`mse` only).
    """

    loss: PeerLossKind = "mse"
    least_mape_factor: bool = True


@dataclass(frozen=True)
class SegmentMlpOptions(RankablePeerOptions):
    """Options of Tenset's perceptron over the leaves of a program.

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
    """Options of TLP, a transformer on the steps of a schedule.

    Attributes:
        hidden: width of a step's state; 256 in the paper.
        heads: number of attention heads; divides `hidden`.

    Raises:
        UsageError: `heads` does not divide `hidden`.
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

    def __post_init__(self) -> None:
        check_heads(self)


@dataclass(frozen=True)
class RecursiveLstmOptions(RankablePeerOptions):
    """Options of a recursive LSTM over the tree of a program (Tiramisu).

    Attributes:
        embed: widths of the perceptron that embeds a leaf; the last one is also the width of every
            state.
        dropout: share of activations dropped in training, in [0, 1).
        collapse_chains: whether a loop whose only child is a loop is merged with that child.

    Raises:
        UsageError: a value is out of range.
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

    def __post_init__(self) -> None:
        check_ranges(self, {"from 0 to below 1": ("dropout",)})
        if min(self.embed, default=0) < 1:
            raise UsageError(f"embed must have widths of at least 1, got {list(self.embed)}")


@dataclass(frozen=True)
class EnsembleOptions:
    """Options of the ensemble of a transformer, a perceptron and trees.

    Attributes:
        transformer: options of the transformer.
        perceptron: options of the perceptron on summed leaves.
        trees: options of the trees.
        least_tasks: minimum number of training tasks on a device for the trees to predict for it.
        default_shares: weights of transformer, perceptron and trees without validation samples.
        fence: distance (in log seconds) from the range of the other two parts at which a part's
            prediction is clipped. 0 = no clipping.
        least_mape_factor: whether predictions are scaled by the factor with the lowest MAPE on the
            validation part instead of the lowest log error.
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
