"""Hyper-parameters of the models. These dataclasses are the truth; files under `configs/models`
mirror them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PositionKind = Literal["sinusoidal", "original", "none"]
AnchorKind = Literal["leaf_roofline", "none"]


@dataclass(frozen=True)
class NetworkOptions:
    """Shape of the transformer.

    Attributes:
        hidden: width of a leaf's state.
        layers: encoder layers.
        heads: attention heads; divides `hidden`.
        feed_forward: width inside the perceptron of an encoder layer.
        head_hidden: width inside the heads that turn states into latencies.
        dropout: share of activations dropped in training, in [0, 1).
        position: encoding of a leaf's place in the tree.
        anchor: `leaf_roofline` predicts how much slower than its roofline each leaf is; `none`
            predicts the logarithm of seconds directly.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    feed_forward: int = 128
    head_hidden: int = 64
    dropout: float = 0.1
    position: PositionKind = "sinusoidal"
    anchor: AnchorKind = "leaf_roofline"
    members: int = 2


@dataclass(frozen=True)
class LossOptions:
    """Loss on d = log(predicted) - log(measured).

    Attributes:
        huber_delta: |d| up to which the main term is quadratic.
        relative_weight: weight of the term min(|exp(d) - 1|, relative_clip), the percentage error
            itself.
        relative_clip: bound of that term.
        rank_weight: weight of the pairwise order term among programs of one task on one device.
    """

    huber_delta: float = 0.5
    relative_weight: float = 1.0
    relative_clip: float = 3.0
    rank_weight: float = 0.4


@dataclass(frozen=True)
class LoopOptions:
    """How a torch model is trained.

    Attributes:
        epochs: most passes over the training part.
        programs_per_batch: programs in one step; each comes with all its devices.
        programs_per_task: programs of one task kept together in a batch (gives the order term its
            pairs).
        learning_rate: peak; linear warm-up, then cosine to zero at the last epoch.
        warmup_fraction: share of all steps spent on the warm-up.
        weight_decay: decoupled, on matrices only.
        gradient_clip: largest norm of the gradient.
        average_decay: decay of the moving average of the weights, which is what is judged and kept.
        patience: epochs without a better validation loss after which training stops.
        checkpoint_every: steps between checkpoints.
        threads: CPU threads of the training; 0 = all cores. Small matrices gain little from more
            than one, and one gives the same bytes on every number of cores.
    """

    epochs: int = 30
    programs_per_batch: int = 48
    programs_per_task: int = 4
    learning_rate: float = 1e-3
    warmup_fraction: float = 0.05
    weight_decay: float = 0.05
    gradient_clip: float = 1.0
    average_decay: float = 0.995
    patience: int = 10
    checkpoint_every: int = 200
    threads: int = 1


@dataclass(frozen=True)
class TransformerOptions:
    """Everything about the transformer cost model."""

    network: NetworkOptions = field(default_factory=NetworkOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    loop: LoopOptions = field(default_factory=LoopOptions)


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
        threads: worker threads; 0 = all cores.
    """

    trees: int = 500
    depth: int = 7
    learning_rate: float = 0.05
    subsample: float = 0.8
    column_share: float = 0.5
    min_child_weight: float = 3.0
    patience: int = 50
    threads: int = 0
