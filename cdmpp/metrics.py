"""Error and ranking metrics of latency predictions, as fractions or in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray, IntArray

#: Keys of a metrics object in table order; the JSON names of `cdmpp evaluate`.
METRIC_NAMES = (
    "n", "mape", "median_ape", "mean_log_error", "median_ratio", "rmse_s", "within_5pct",
    "within_10pct", "within_20pct", "spearman_by_task", "top1_score", "top5_score",
)  # fmt: skip

#: Minimum number of programs of a (task, device) for Spearman's correlation and the regret.
MIN_PROGRAMS_TO_RANK = 4

_BOOTSTRAP_DRAWS, _BOOTSTRAP_SEED = 2000, 0
#: The range of n owners holds their median with a probability of 1 - 2 / 2^n.
_LEAST_OWNERS = 6


@dataclass(frozen=True)
class Judged:
    """Predictions and measurements of samples.

    Attributes:
        measured_s: float64 [N], seconds, positive.
        predicted_s: float64 [N], seconds, positive.
        task: int64 [N], task of each sample.
        device: int64 [N], device of each sample; programs are ranked within a (task, device).
        task_weight: float64 [T], weight of each task in the top-k score (see `task_weights`).
    """

    measured_s: FloatArray
    predicted_s: FloatArray
    task: IntArray
    device: IntArray
    task_weight: FloatArray

    def take(self, index: BoolArray) -> Judged:
        """Returns the chosen samples."""
        return Judged(
            self.measured_s[index],
            self.predicted_s[index],
            self.task[index],
            self.device[index],
            self.task_weight,
        )


def task_weights(networks: Iterable[Sequence[tuple[str, int]]]) -> FloatArray:
    """Returns float64 [T], the sum of a task's weights over its networks; 1 without a network.

    Args:
        networks: for each task its list of (network name, weight).
    """
    return np.array(
        [sum(weight for _, weight in entry) if entry else 1.0 for entry in networks], np.float64
    )


def summarise(judged: Judged) -> dict[str, float | int | None]:
    """Returns every metric of `METRIC_NAMES`; None for a metric that these samples do not define.

    The percentage error of an underestimate is at most 100 %, that of an overestimate is
    unbounded, so MAPE favours underestimates. `mean_log_error`, the mean of
    |log(predicted / measured)|, is symmetric. `median_ratio`, the median of predicted / measured,
    is below 1 if predictions are low.
    """
    n = len(judged.measured_s)
    if n == 0:
        return {name: (0 if name == "n" else None) for name in METRIC_NAMES}
    ape = absolute_percentage_error(judged.measured_s, judged.predicted_s)
    ratio = judged.predicted_s / judged.measured_s
    difference = judged.predicted_s - judged.measured_s
    groups = _groups(judged)
    values: dict[str, float | int | None] = {
        "n": n,
        "mape": float(ape.mean()),
        "median_ape": float(np.median(ape)),
        "mean_log_error": float(np.abs(np.log(ratio)).mean()),
        "median_ratio": float(np.median(ratio)),
        "rmse_s": float(np.sqrt(np.mean(difference**2))),
        "within_5pct": float(np.mean(ape <= 0.05)),
        "within_10pct": float(np.mean(ape <= 0.10)),
        "within_20pct": float(np.mean(ape <= 0.20)),
        "spearman_by_task": _spearman_by_task(judged, groups),
        "top1_score": _top_k_score(judged, groups, 1),
        "top5_score": _top_k_score(judged, groups, 5),
    }
    return {name: values[name] for name in METRIC_NAMES}


def absolute_percentage_error(measured_s: FloatArray, predicted_s: FloatArray) -> FloatArray:
    """Returns float64 [N], |predicted - measured| / measured, as a fraction."""
    return np.abs(predicted_s - measured_s) / measured_s


def spearman(first: FloatArray, second: FloatArray) -> float:
    """Returns Spearman's rank correlation with average ranks for ties; 0 if a side is constant."""
    a = average_ranks(first)
    b = average_ranks(second)
    a = a - a.mean()
    b = b - b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale > 0 else 0.0


def average_ranks(values: FloatArray) -> FloatArray:
    """Returns float64 [N], ranks from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank = last - (counts - 1) / 2.0
    return np.asarray(mean_rank[inverse], np.float64)


def spearman_by_task(judged: Judged) -> float | None:
    """Returns the mean of Spearman's correlation over all (task, device) with at least
    `MIN_PROGRAMS_TO_RANK` programs.

    A task with constant predictions counts as 0. None if no task has enough programs.
    """
    return _spearman_by_task(judged, _groups(judged))


def top_k_score(judged: Judged, k: int) -> float | None:
    """Returns sum(weight x best latency) / sum(weight x best latency among the k predicted
    fastest).

    1 is perfect. For tied predictions the score is the expectation over all orders of the tied
    programs, so it does not depend on the order of samples. None if there are no samples.
    """
    return _top_k_score(judged, _groups(judged), k)


def pairwise_accuracy(judged: Judged) -> float | None:
    """Returns the fraction of pairs within a (task, device) that are ordered correctly; a
    predicted tie counts half.

    Pairs with equal measurements do not count. None if there is no pair.
    """
    right = 0.0
    pairs = 0
    for rows in _groups(judged):
        own_right, own_pairs = _right_pairs(judged.measured_s[rows], judged.predicted_s[rows])
        right += own_right
        pairs += own_pairs
    return right / pairs if pairs else None


def top1_regret(judged: Judged) -> float | None:
    """Returns the mean over (task, device) of latency(predicted fastest) / best latency - 1.

    0 is perfect; 1 means that the selected program takes twice as long as the best. Every group has
    the same weight. For tied predictions the latency is the mean of the tied programs. Groups with
    fewer than `MIN_PROGRAMS_TO_RANK` programs are left out; None if no group is left.
    """
    regrets = []
    for rows in _groups(judged):
        if len(rows) < MIN_PROGRAMS_TO_RANK:
            continue
        measured, predicted = judged.measured_s[rows], judged.predicted_s[rows]
        picked_s = float(measured[predicted == predicted.min()].mean())
        regrets.append(picked_s / float(measured.min()) - 1.0)
    return float(np.mean(regrets)) if regrets else None


def mean_metrics(
    parts: Sequence[Mapping[str, float | int | None]],
) -> dict[str, float | int | None]:
    """Returns the unweighted mean of several metrics objects, key by key.

    `n` and `tasks` are sums. A metric is averaged over the parts that define it; None if no part
    does.
    """
    means: dict[str, float | int | None] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [value for part in parts if (value := part.get(name)) is not None]
        if name in ("n", "tasks"):
            means[name] = int(sum(values))
        else:
            means[name] = float(np.mean(values)) if values else None
    return means


def summarise_by_device(
    judged: Judged, labels: Sequence[str]
) -> tuple[dict[str, float | int | None], dict[str, dict[str, float | int | None]]]:
    """Returns the metrics of all samples, and label -> metrics for each device with samples."""
    by_device = {
        label: summarise(judged.take(judged.device == index))
        for index, label in enumerate(labels)
        if bool(np.any(judged.device == index))
    }
    return summarise(judged), by_device


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean over seeds and the half width of its 95 % interval (Student's t); None for
    the latter if there is one value.
    """
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return float(array.mean()), None
    spread = float(array.std(ddof=1)) / math.sqrt(len(array))
    return float(array.mean()), _student_t_975(len(array) - 1) * spread


def mean_over_owners(
    values: FloatArray, owner: IntArray
) -> tuple[float, tuple[float, float] | None]:
    """Returns the mean and its 95 % interval from a cluster bootstrap over owners such as tasks,
    with a fixed seed; None for the interval if there are fewer than six owners: even from the
    lowest to the highest of them is then no 95 % interval.

    Args:
        values: float64 [N], at least one.
        owner: int64 [N].
    """
    _, number = np.unique(owner, return_inverse=True)
    sums, sizes = np.bincount(number, values), np.bincount(number)
    if len(sums) < _LEAST_OWNERS:
        return float(values.mean()), None
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    means = np.empty(_BOOTSTRAP_DRAWS)
    for draw in range(_BOOTSTRAP_DRAWS):
        drawn = rng.integers(0, len(sums), len(sums))
        means[draw] = sums[drawn].sum() / sizes[drawn].sum()
    low, high = np.percentile(means, (2.5, 97.5))
    return float(values.mean()), (float(low), float(high))


def _student_t_975(degrees: int) -> float:
    table: Mapping[int, float] = {
        1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365,
        8: 2.306, 9: 2.262, 10: 2.228,
    }  # fmt: skip
    if degrees in table:
        return table[degrees]
    # Cornish-Fisher expansion of the t quantile around the normal one; the error is below 1e-3
    # from 11 degrees.
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def _groups(judged: Judged) -> list[IntArray]:
    """Returns the row numbers of each (task, device), sorted by task, then device."""
    if len(judged.task) == 0:
        return []
    order = np.lexsort((judged.device, judged.task))
    task = judged.task[order]
    device = judged.device[order]
    starts = np.flatnonzero((np.diff(task) != 0) | (np.diff(device) != 0)) + 1
    return [np.asarray(rows, np.int64) for rows in np.split(order, starts)]


def _spearman_by_task(judged: Judged, groups: list[IntArray]) -> float | None:
    values = [
        spearman(judged.measured_s[rows], judged.predicted_s[rows])
        for rows in groups
        if len(rows) >= MIN_PROGRAMS_TO_RANK
    ]
    return float(np.mean(values)) if values else None


def _right_pairs(measured: FloatArray, predicted: FloatArray) -> tuple[float, int]:
    """Returns the number of correctly ordered pairs (a predicted tie counts half) and of all pairs,
    among pairs with different measurements. A merge count: O(N log^2 N).
    """
    order = np.lexsort((predicted, measured))
    measured, predicted = measured[order], predicted[order]
    ranks = np.unique(predicted, return_inverse=True)[1]
    is_new = np.diff(measured) != 0
    differing = _pairs_of(np.array([len(order)])) - _pairs_of(_runs(is_new))
    # Predictions ascend within equal measurements, so every inversion is a wrongly ordered pair.
    both = _pairs_of(_runs(is_new | (np.diff(predicted) != 0)))
    tied = _pairs_of(np.bincount(ranks)) - both
    return differing - _inversions(ranks) - tied / 2.0, differing


def _runs(is_new: BoolArray) -> IntArray:
    """Returns the lengths of runs; `is_new` [N - 1] is true where a run starts after the first."""
    starts = np.flatnonzero(np.concatenate([[True], is_new]))
    return np.diff(np.append(starts, len(is_new) + 1))


def _pairs_of(sizes: IntArray) -> int:
    return int(np.sum(sizes * (sizes - 1) // 2))


def _inversions(ranks: IntArray) -> int:
    """Returns the number of pairs whose first rank is larger."""
    length = 1 << (len(ranks) - 1).bit_length()
    filled = np.full(length, len(ranks), np.int64)  # the padding is larger than every rank
    filled[: len(ranks)] = ranks
    blocks = filled.reshape(-1, 1)
    found = 0
    while len(blocks) > 1:
        left, right = blocks[0::2], blocks[1::2]
        base = np.arange(len(left))[:, None] * (len(ranks) + 1)
        not_larger = np.searchsorted((left + base).ravel(), (right + base).ravel(), side="right")
        own = np.arange(len(left))[:, None] * left.shape[1]
        found += left.size * left.shape[1] - int(np.sum(not_larger.reshape(right.shape) - own))
        blocks = np.sort(np.concatenate([left, right], axis=1), axis=1)
    return found


def _top_k_score(judged: Judged, groups: list[IntArray], k: int) -> float | None:
    best, found = _top_k_latencies(judged, groups, judged.task_weight, k)
    return best / found if found > 0 else None


def _top_k_latencies(
    judged: Judged, groups: list[IntArray], task_weight: FloatArray, k: int
) -> tuple[float, float]:
    best = 0.0
    found = 0.0
    for rows in groups:
        weight = float(task_weight[judged.task[rows[0]]])
        if weight > 0:
            measured = judged.measured_s[rows]
            best += weight * float(measured.min())
            found += weight * _expected_best_of_first(measured, judged.predicted_s[rows], k)
    return best, found


def _expected_best_of_first(measured: FloatArray, predicted: FloatArray, k: int) -> float:
    """Returns the expected best latency among the k predicted fastest, over all orders of tied
    predictions.
    """
    if k >= len(measured):
        return float(measured.min())
    threshold = np.sort(predicted)[k - 1]
    sure = measured[predicted < threshold]
    tied = np.sort(measured[predicted == threshold])
    draws = k - len(sure)
    best_sure = float(sure.min()) if len(sure) else math.inf
    ways = math.comb(len(tied), draws)
    chance = [math.comb(len(tied) - 1 - i, draws - 1) / ways for i in range(len(tied))]
    return sum(p * min(best_sure, float(value)) for p, value in zip(chance, tied, strict=True))
