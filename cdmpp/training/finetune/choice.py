"""Model selection in fine-tuning by held-out tasks, conservative for few tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.models.parts.labels import least_mape_factor

#: Candidates, the most conservative first: the unadapted model, one scale factor, halfway to the
#: full fit, the full fit.
Kept = Literal["unchanged", "one_factor", "shrunken", "full"]
KEPT: tuple[Kept, ...] = get_args(Kept)

#: Descriptions of the candidates.
SAYS: dict[Kept, str] = {
    "unchanged": "the unadapted model",
    "one_factor": "the model with one scale factor",
    "shrunken": "halfway between one scale factor and the full fit",
    "full": "the full fit",
}

#: Prior weight of factor 1, in tasks: the variance between tasks over the variance between devices
#: (set on development devices).
_PRIOR_TASKS = 1.0
_SAFE: Kept = "shrunken"
#: Minimum gain over `_SAFE` for another candidate, in standard errors of the mean over tasks.
_STANDARD_ERRORS = 1.0
#: Prior standard deviation of the gain between tasks, and its weight in tasks: three tasks that
#: agree by chance must not decide.
_PRIOR_SPREAD, _PRIOR_DRAWS = 0.15, 2.0
#: Upper bound on a program's percentage error, as a fraction.
_MOST_RELATIVE_ERROR = 3.0


@dataclass(frozen=True)
class Choice:
    """The selected candidate and the reason.

    Attributes:
        kept: name of the selected candidate.
        errors: candidate -> mean over held-out tasks of their mean percentage error (at most 300 %
            per program), a fraction.
        reason: one sentence.
    """

    kept: Kept
    errors: dict[Kept, float]
    reason: str


def choose(held_out_s: Mapping[Kept, FloatArray], measured_s: FloatArray, task: IntArray) -> Choice:
    """Selects a candidate: the shrunken fit, or the best one with a significant gain over it.

    A gain over held-out tasks is significant above one standard error. Halfway between two models
    the error is below the mean of both errors and rarely above the lower one, so it is the default
    for few tasks.

    Args:
        held_out_s: candidate -> float64 [N], cross-validated predictions in seconds.
        measured_s: float64 [N], seconds.
        task: int64 [N], task of each sample.
    """
    by_task = {name: task_errors(held_out_s[name], measured_s, task) for name in KEPT}
    errors = {name: float(values.mean()) for name, values in by_task.items()}
    count = len(by_task[_SAFE])
    better: dict[Kept, float] = {}
    for name in KEPT:
        gain = by_task[_SAFE] - by_task[name]
        if name != _SAFE and gain.mean() > _STANDARD_ERRORS * standard_error(gain):
            better[name] = float(gain.mean())
    if not better:
        return Choice(
            _SAFE, errors, f"no alternative is significantly better on {count} held-out tasks"
        )
    kept = max(better, key=lambda name: better[name])
    reason = f"{100 * better[kept]:.1f} points better than {SAYS[_SAFE]} on {count} held-out tasks"
    return Choice(kept, errors, reason)


def task_errors(predicted_s: FloatArray, measured_s: FloatArray, task: IntArray) -> FloatArray:
    """Returns float64 [task], mean percentage error of each task, tasks in ascending order."""
    error = np.minimum(np.abs(predicted_s / measured_s - 1.0), _MOST_RELATIVE_ERROR)
    _, owner = np.unique(task, return_inverse=True)
    return np.asarray(np.bincount(owner, error) / np.bincount(owner))


def standard_error(gain: FloatArray) -> float:
    """Returns the standard error of the mean of float64 [task], shrunk towards `_PRIOR_SPREAD`."""
    spread = float(np.sum((gain - gain.mean()) ** 2)) + _PRIOR_DRAWS * _PRIOR_SPREAD**2
    return math.sqrt(spread / (len(gain) - 1 + _PRIOR_DRAWS) / len(gain))


def shrunken_factor(predicted_s: FloatArray, measured_s: FloatArray, task: IntArray) -> float:
    """Returns the lowest-MAPE factor on predictions, shrunk towards 1 for few tasks."""
    return _justified(least_mape_factor(predicted_s, measured_s), task)


def centred_factor(predicted_s: FloatArray, measured_s: FloatArray, task: IntArray) -> float:
    """Returns the factor that centres predictions at the median, shrunk towards 1 for few tasks.

    It is for sums over programs: predictions of lowest MAPE are biased low if errors are large.
    """
    return _justified(math.exp(np.median(np.log(measured_s / predicted_s))), task)


def _justified(factor: float, task: IntArray) -> float:
    tasks = len(np.unique(task))
    return float(factor ** (tasks / (tasks + _PRIOR_TASKS)))
