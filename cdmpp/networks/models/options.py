"""Options of the whole-network models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class GraphFitOptions:
    """Options of fitting a torch network.

    Attributes:
        epochs: maximum number of epochs.
        batch: samples per step.
        learning_rate: maximum learning rate.
        least_learning_rate: final learning rate.
        schedule: `plateau` halves the rate after more than `patience` epochs without improvement
            and stops at the final rate; `cosine` has a short warm-up and decays over all epochs.
        patience: number of epochs, see `schedule`.
        weight_decay: weight decay of AdamW; 0 = Adam.
        threads: threads of torch; 0 = torch's default.
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
    """Options of SeerNet, with the published defaults.

    Attributes:
        hidden: hidden width.
        blocks: number of message blocks (1, or 2 in the paper's variant).
        has_kinds: whether the node features include the one-hot kinds (the paper's final features
            do not).
        fit: options of fitting.
    """

    hidden: int = 256
    blocks: int = 1
    has_kinds: bool = True
    fit: GraphFitOptions = field(default_factory=GraphFitOptions)


@dataclass(frozen=True)
class MlpOptions:
    """Options of the perceptron on graph features."""

    hidden: int = 128
    layers: int = 3
    fit: GraphFitOptions = field(
        default_factory=lambda: GraphFitOptions(batch=64, weight_decay=1e-3)
    )


@dataclass(frozen=True)
class GraphTreeOptions:
    """Options of gradient-boosted trees.

    Attributes:
        trees: maximum number of trees; early stopping uses the validation part.
        patience: number of trees without improvement after which boosting stops.
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
        """`least_weight` under the name in other tree options."""
        return self.least_weight


@dataclass(frozen=True)
class ResidualOptions:
    """Options of the `residual` model: a sum over operators and analytic memory, with learned
    ratios.

    Attributes:
        hidden: hidden width of the operator network.
        rounds: number of message rounds between neighbours.
        dropout: dropout rate.
        members: number of networks whose logs are averaged.
        has_context: whether the network's totals are inputs of every operator.
        has_trees: whether boosted trees also correct the base.
        operator_weight: weight of the loss of measured operator times relative to that of network
            times; 0 = operator times are not used.
        trees: options of the trees.
        fit: options of fitting the networks.
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
    """Options of all models; a model uses only its own."""

    seernet: SeerNetOptions = field(default_factory=SeerNetOptions)
    seernet_multi: SeerNetOptions = field(default_factory=SeerNetOptions)
    mlp: MlpOptions = field(default_factory=MlpOptions)
    trees: GraphTreeOptions = field(default_factory=GraphTreeOptions)
    residual: ResidualOptions = field(default_factory=ResidualOptions)
