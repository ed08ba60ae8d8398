"""The learned part of a family: boosted trees on the ratio of time to nominal time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.account.work import Columns, KernelWork, flags, logs
from cdmpp.analytic.gpu_kernels.calls import Family
from cdmpp.analytic.gpu_kernels.families import work_on
from cdmpp.analytic.gpu_kernels.nearest import NearRows
from cdmpp.arrays import FloatArray, TextArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.files.boosted_trees import ask_trees, grow_trees, tree_rows

#: Software that the trees distinguish.
_FLAGGED = ("trtllm", "vllm", "vllm_xpu", "sglang")
#: Iterations of the reweighted least squares; relative errors below the second are treated alike.
_REWEIGHTINGS = 6
_LEAST_ERROR = 0.1


@dataclass(frozen=True)
class EfficiencyOptions:
    """Options of the trees. The loss is the absolute error of the logarithm: close to the mean
    absolute percentage error, without its bias towards low predictions.

    Attributes:
        trees: number of trees.
        depth: maximum depth of a tree.
        rate: learning rate.
        share: share of the rows and of the inputs that a tree is fitted to.
        least_rows: minimum number of rows in a leaf.
        most_rows: maximum number of rows of a fit, drawn at random.
        prior_share: weight of the prior of the nominal time, as a share of the rows.
    """

    trees: int = 150
    depth: int = 8
    rate: float = 0.1
    share: float = 0.7
    least_rows: int = 20
    most_rows: int = 48_000
    prior_share: float = 0.1

    def parameters(self, seed: int) -> dict[str, Any]:
        """Returns the XGBoost parameters."""
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
    """Efficiency of one family's kernels on any GPU.

    Attributes:
        booster: XGBoost model of log(time / nominal time).
        launch_s: software in the fit, most rows first -> seconds of its launch; other software uses
            the first.
        weights: term of the nominal time -> weight.
        largest: size of the largest call in the fit.
        near: calls of the fit, which correct the trees; None if they are not stored.
    """

    booster: Any
    launch_s: Mapping[str, float]
    weights: Mapping[str, float]
    largest: float
    near: NearRows | None = None

    def latency_s(
        self, work: KernelWork, software: TextArray, correction: FloatArray | float = 0.0
    ) -> FloatArray:
        """Returns float64 [N], seconds, at least the lower bound.

        Args:
            software: text [N].
            correction: float64 [N], added to the logarithm.
        """
        nominal_s = self.nominal_s(work, software)
        found = nominal_s * np.exp(self._effort(work, software, nominal_s) + correction)
        return np.asarray(np.maximum(found, work.floor_s), np.float64)

    def near_s(
        self, work: KernelWork, family: Family, columns: Columns, whose: TextArray,
        device: DeviceSpec,
    ) -> FloatArray:  # fmt: skip
        """Returns float64 [N], `latency_s` of calls on one GPU, corrected by measured neighbours.

        Args:
            work: work of the calls.
            columns: fields of the calls.
            whose: text [N], software.
        """
        if self.near is None:
            return self.latency_s(work, whose)

        def effort(there: Columns, software: TextArray) -> FloatArray:
            work_there = work_on(family, there, device)
            return self._effort(work_there, software, self.nominal_s(work_there, software))

        correction = self.near.correction(family, columns, whose, device, effort)
        return self.latency_s(work, whose, correction)

    def nominal_s(self, work: KernelWork, software: TextArray) -> FloatArray:
        """Returns float64 [N], nominal time in seconds."""
        weights = [*self.launch_s.values(), *(self.weights[name] for name in work.terms)]
        whose = self._known(software)
        return np.asarray(_columns(work, whose, list(self.launch_s)) @ np.array(weights))

    def _effort(self, work: KernelWork, software: TextArray, nominal_s: FloatArray) -> FloatArray:
        """Returns float64 [N], log(time / nominal time) predicted by the trees."""
        matrix = _matrix(work, self._known(software), nominal_s)
        kept = np.minimum(1.0, self.largest / work.size) ** work.fade
        return np.asarray(kept * ask_trees(self.booster, matrix), np.float64)

    def _known(self, software: TextArray) -> TextArray:
        names = list(self.launch_s)
        return np.where(np.isin(software, names), software, names[0])


def fit_efficiency(
    work: KernelWork,
    software: TextArray,
    latency_s: FloatArray,
    *,
    seed: int,
    options: EfficiencyOptions | None = None,
) -> Efficiency:
    """Fits weights and trees to N measured calls.

    Args:
        software: text [N].
        latency_s: float64 [N].
    """
    options = options or EfficiencyOptions()
    names, counts = np.unique(software, return_counts=True)
    ordered = [str(names[i]) for i in np.argsort(-counts, kind="stable")]
    columns = _columns(work, software, ordered)
    prior = np.array([*(work.launch_s for _ in ordered), *work.prior.values()])
    drawn = np.random.default_rng(seed).permutation(len(latency_s))[: options.most_rows]
    weights = _nominal_weights(columns[drawn], latency_s[drawn], prior, options.prior_share)
    nominal_s = columns @ weights
    inputs = _matrix(work, software, nominal_s)[drawn]
    rows = tree_rows(inputs, np.log(latency_s[drawn] / nominal_s[drawn]), threads=1)
    values = [float(weight) for weight in weights]
    return Efficiency(
        grow_trees(options.parameters(seed), rows, trees=options.trees),
        dict(zip(ordered, values, strict=False)),
        dict(zip(work.prior, values[len(ordered) :], strict=True)),
        float(work.size.max()),
    )


def _nominal_weights(
    columns: FloatArray, latency_s: FloatArray, prior: FloatArray, share: float
) -> FloatArray:
    """Returns float64 [C], non-negative weights of least absolute relative error, by reweighted
    least squares with the prior as additional rows.

    Args:
        share: number of the prior's rows over the number of rows.
    """
    from scipy.optimize import nnls

    relative = columns / latency_s[:, None]
    strength = np.full(len(prior), np.sqrt(share * len(latency_s)))
    weights, row_weight = prior, np.ones(len(latency_s))
    for _ in range(_REWEIGHTINGS):
        told = np.vstack([relative * prior * row_weight[:, None], np.diag(strength)])
        weights = prior * nnls(told, np.concatenate([row_weight, strength]))[0]
        error = np.abs(relative @ weights - 1.0)
        row_weight = 1.0 / np.sqrt(np.maximum(error, _LEAST_ERROR))
    return np.asarray(weights, np.float64)


def _columns(work: KernelWork, software: TextArray, names: Sequence[str]) -> FloatArray:
    """Returns float64 [N, software + terms]; the nominal time is their weighted sum."""
    launches = [np.asarray(software == name, np.float64) for name in names]
    return np.stack([*launches, *work.terms.values()], axis=1)


def _matrix(work: KernelWork, software: TextArray, nominal_s: FloatArray) -> NDArray[np.float32]:
    times = {**work.terms, **work.times}
    columns: Sequence[FloatArray] = [
        *logs(**{name: time / nominal_s for name, time in times.items()}).values(),
        *work.inputs.values(),
        *flags(software, _FLAGGED).values(),
    ]
    return np.stack(columns, axis=1).astype(np.float32)
