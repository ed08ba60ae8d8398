"""The learned part of a family: what its kernels reach of the nominal time, by boosted trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.calls import SOFTWARE
from cdmpp.analytic.gpu_kernels.work import KernelWork, flags
from cdmpp.files.boosted_trees import grow_trees, tree_rows

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class EfficiencyOptions:
    """How the trees grow. The error is that of the logarithm, absolute: near the mean absolute
    percentage error, without its pull towards low answers.

    Attributes:
        trees: how many.
        depth: of each.
        rate: of what is left that a tree takes away.
        share: of the rows and of the inputs that a tree sees.
        least_rows: of a leaf.
        most_rows: of a fit; more are drawn from.
    """

    trees: int = 150
    depth: int = 8
    rate: float = 0.1
    share: float = 0.7
    least_rows: int = 20
    most_rows: int = 48_000

    def parameters(self, seed: int) -> dict[str, Any]:
        """Returns the parameters of XGBoost."""
        return {
            "objective": "reg:absoluteerror",
            "max_depth": self.depth,
            "eta": self.rate,
            "subsample": self.share,
            "colsample_bytree": self.share,
            "min_child_weight": self.least_rows,
            "seed": seed,
            "nthread": 1,
        }


@dataclass(frozen=True)
class Efficiency:
    """What one family's kernels reach on any GPU.

    Attributes:
        booster: of XGBoost; gives log(time / nominal time).
        software: that the fit has seen, most rows first; other software counts as the first.
    """

    booster: Any
    software: tuple[str, ...]

    def latency_s(self, work: KernelWork, software: NDArray[np.str_]) -> FloatArray:
        """Returns float64 [N], seconds; never below the floor, so that the floor over it, the
        efficiency, is in (0, 1].

        Args:
            software: text [N].
        """
        known = np.where(np.isin(software, self.software), software, self.software[0])
        logs = self.booster.predict(tree_rows(_matrix(work, known), threads=1))
        return np.maximum(work.nominal_s * np.exp(np.asarray(logs, np.float64)), work.floor_s)


def fit_efficiency(
    work: KernelWork,
    software: NDArray[np.str_],
    latency_s: FloatArray,
    *,
    seed: int,
    options: EfficiencyOptions | None = None,
) -> Efficiency:
    """Returns the trees of N measured calls.

    Args:
        software: text [N].
        latency_s: float64 [N].
    """
    names, counts = np.unique(software, return_counts=True)
    options = options or EfficiencyOptions()
    count = len(latency_s)
    drawn = np.random.default_rng(seed).permutation(count)[: options.most_rows]
    inputs = _matrix(work, software)[drawn]
    labels = np.log(latency_s[drawn] / work.nominal_s[drawn])
    rows = tree_rows(inputs, labels, threads=1)
    booster = grow_trees(options.parameters(seed), rows, trees=options.trees)
    ordered = [str(names[i]) for i in np.argsort(-counts, kind="stable")]
    return Efficiency(booster, tuple(ordered))


def _matrix(work: KernelWork, software: NDArray[np.str_]) -> NDArray[np.float32]:
    columns: Sequence[FloatArray] = [*work.inputs.values(), *flags(software, SOFTWARE).values()]
    return np.stack(columns, axis=1).astype(np.float32)
