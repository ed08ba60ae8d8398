"""Correction of a family's predictions by a sweep: trees on log(measured / predicted)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.files.boosted_trees import ask_trees, grow_trees, tree_rows

#: Folds of the cross-validation on a sweep.
_FOLDS = 8
#: Minimum number of calls of a family for trees; fewer calls get a single factor.
LEAST_FOR_TREES = 30


@dataclass(frozen=True)
class CorrectionOptions:
    """Options of a fit.

    Attributes:
        trees: number of trees; 0 = a single factor for all calls.
        depth: maximum depth of a tree.
        rate: learning rate.
        share: share of the rows and of the inputs that a tree is fitted to.
        least_rows: minimum number of rows in a leaf.
    """

    trees: int = 300
    depth: int = 5
    rate: float = 0.05
    share: float = 0.6
    least_rows: int = 3

    def parameters(self, seed: int) -> dict[str, Any]:
        """Returns the XGBoost parameters."""
        return {
            "objective": "reg:squarederror",
            "max_depth": self.depth,
            "eta": self.rate,
            "subsample": self.share,
            "colsample_bytree": self.share,
            "min_child_weight": self.least_rows,
            "base_score": 0.0,
            "seed": seed,
            "nthread": 1,
        }


@dataclass(frozen=True)
class SweepCorrection:
    """A fitted correction of one family on one device.

    Attributes:
        offset: median of log(measured / predicted) on the sweep.
        booster: predicts the rest of the logarithm; None = 0.
    """

    offset: float
    booster: Any

    def logs(self, inputs: FloatArray) -> FloatArray:
        """Returns float64 [N], to be added to the logarithms of N predictions.

        Args:
            inputs: float64 [N, F].
        """
        found = np.full(len(inputs), self.offset)
        if self.booster is not None:
            found = found + ask_trees(self.booster, inputs)
        return np.asarray(found, np.float64)


def fit_correction(
    inputs: FloatArray, logs: FloatArray, options: CorrectionOptions, *, seed: int = 0
) -> SweepCorrection:
    """Fits a correction to the calls of a sweep.

    Args:
        inputs: float64 [N, F], N at least 1.
        logs: float64 [N], log(measured / predicted).
    """
    offset = float(np.median(logs))
    if not options.trees or len(logs) < LEAST_FOR_TREES:
        return SweepCorrection(offset, None)
    rows = tree_rows(inputs, logs - offset, threads=1)
    return SweepCorrection(offset, grow_trees(options.parameters(seed), rows, trees=options.trees))


def left_out_logs(
    inputs: FloatArray, logs: FloatArray, options: CorrectionOptions, *, seed: int = 0
) -> FloatArray:
    """Returns float64 [N], log(measured / corrected) of every call of a sweep, each by a correction
    that was fitted without its fold.
    """
    part = np.random.default_rng(seed).permutation(len(logs)) % _FOLDS
    found = np.asarray(logs, np.float64).copy()
    for fold in range(_FOLDS):
        held = part == fold
        if held.any() and not held.all():
            rest = fit_correction(inputs[~held], logs[~held], options, seed=seed)
            found[held] = logs[held] - rest.logs(inputs[held])
    return found
