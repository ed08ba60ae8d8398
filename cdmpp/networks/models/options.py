"""Options of the whole-network models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class GraphFitOptions:
    """How a torch network is fitted.

    Attributes:
        epochs: at most.
        batch: samples of a step.
        learning_rate: at the start.
        least_learning_rate: where it ends.
        schedule: `plateau` halves after `patience` epochs without improvement and stops at the
            least rate; `cosine` falls smoothly over all epochs.
        patience: epochs, see `schedule`.
        weight_decay: of AdamW; 0 = Adam.
        threads: of torch; 0 = as many as torch takes.
    """

    epochs: int = 500
    batch: int = 128
    learning_rate: float = 1e-3
    least_learning_rate: float = 1e-6
    schedule: Literal["plateau", "cosine"] = "plateau"
    patience: int = 5
    weight_decay: float = 0.0
    threads: int = 1


@dataclass(frozen=True)
class SeerNetOptions:
    """SeerNet as published.

    Attributes:
        hidden: width.
        blocks: message blocks (1, or 2 in the variant).
        has_kinds: whether the one-hot kinds are among the node features (the paper's final set is
            without).
    """

    hidden: int = 256
    blocks: int = 1
    has_kinds: bool = True
    fit: GraphFitOptions = field(default_factory=GraphFitOptions)


@dataclass(frozen=True)
class MlpOptions:
    """A perceptron on the 18 graph features."""

    hidden: int = 128
    layers: int = 3
    fit: GraphFitOptions = field(
        default_factory=lambda: GraphFitOptions(batch=64, weight_decay=1e-3)
    )


@dataclass(frozen=True)
class GraphTreeOptions:
    """Gradient-boosted trees.

    Attributes:
        trees: at most; the number is chosen on the validation part.
        patience: trees without improvement after which boosting stops.
    """

    trees: int = 1500
    depth: int = 5
    learning_rate: float = 0.05
    subsample: float = 0.8
    column_share: float = 0.8
    least_weight: float = 3.0
    patience: int = 60
    threads: int = 1

    @property
    def min_child_weight(self) -> float:
        """`least_weight`, by the name that other trees have for it."""
        return self.least_weight


@dataclass(frozen=True)
class ResidualOptions:
    """Our model: a sum over operators and analytic memory, with learned ratios.

    Attributes:
        hidden: width of the operator network.
        rounds: message rounds between neighbours.
        dropout: share of hidden values that are dropped in training.
        members: networks whose logarithms are averaged.
        has_context: whether an operator sees the network's totals.
        has_trees: whether boosted trees correct the same base too.
        operator_weight: how much measured times of operators count in the loss beside the times of
            networks, where there are any; 0 = not at all.
    """

    hidden: int = 64
    rounds: int = 1
    dropout: float = 0.0
    members: int = 3
    has_context: bool = True
    has_trees: bool = True
    operator_weight: float = 2.0
    trees: GraphTreeOptions = field(
        default_factory=lambda: GraphTreeOptions(trees=300, depth=4, learning_rate=0.06)
    )
    fit: GraphFitOptions = field(
        default_factory=lambda: GraphFitOptions(
            epochs=60, batch=32, learning_rate=3e-3, schedule="cosine", weight_decay=1e-2
        )
    )


@dataclass(frozen=True)
class NetworkOptions:
    """Options of all models; each model reads its own."""

    seernet: SeerNetOptions = field(default_factory=SeerNetOptions)
    seernet_multi: SeerNetOptions = field(default_factory=SeerNetOptions)
    mlp: MlpOptions = field(default_factory=MlpOptions)
    trees: GraphTreeOptions = field(default_factory=GraphTreeOptions)
    residual: ResidualOptions = field(default_factory=ResidualOptions)
