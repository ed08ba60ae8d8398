"""Which fit is kept: what held-out tasks of the budget say, and no more than so few can say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.models.parts.labels import least_mape_factor

#: What may be kept, the most cautious first: the model as it was, with one factor, half way to the
#: full fit, the full fit.
Kept = Literal["unchanged", "one_factor", "shrunken", "full"]
KEPT: tuple[Kept, ...] = get_args(Kept)

#: For a reader.
SAYS: dict[Kept, str] = {
    "unchanged": "the unadapted model",
    "one_factor": "the model with one scale factor",
    "shrunken": "halfway between one scale factor and the full fit",
    "full": "the full fit",
}

#: How far devices lie from what a model says of them, over how far tasks lie apart, squared: a
#: factor of one task is worth so many tasks of knowing nothing (development devices).
_PRIOR_TASKS = 1.0
_SAFE: Kept = "shrunken"
#: Another is kept when it is better by so many standard errors of the mean over tasks.
_STANDARD_ERRORS = 1.0
#: Spread of the gain between tasks that is assumed before any is seen, and how many tasks that is
#: worth: three tasks that agree by chance decide nothing.
_PRIOR_SPREAD, _PRIOR_DRAWS = 0.15, 2.0
#: A percentage error counts at most so much.
_MOST_RELATIVE_ERROR = 3.0


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why.

    Attributes:
        kept: the name.
        errors: name of each candidate -> mean over held-out tasks of their mean percentage error
            (at most 300 % a program), a fraction.
        reason: one sentence.
    """

    kept: Kept
    errors: dict[Kept, float]
    reason: str


def choose(held_out_s: Mapping[Kept, FloatArray], measured_s: FloatArray, task: IntArray) -> Choice:
    """Returns what to keep: the shrunken fit, unless another candidate is better than it by more
    than a standard error of the gain over held-out tasks; of several the best.

    Half way between two models errs less than the mean of both, and seldom more than the better:
    where so few tasks cannot tell, it is the safe choice.

    Args:
        held_out_s: every candidate -> float64 [N], predictions by models that had not seen the
            task.
        measured_s: float64 [N], seconds.
        task: int64 [N], owner of each sample.
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
    """Returns that of the mean of float64 [task], the spread shrunk towards `_PRIOR_SPREAD`."""
    spread = float(np.sum((gain - gain.mean()) ** 2)) + _PRIOR_DRAWS * _PRIOR_SPREAD**2
    return math.sqrt(spread / (len(gain) - 1 + _PRIOR_DRAWS) / len(gain))


def shrunken_factor(predicted_s: FloatArray, measured_s: FloatArray, task: IntArray) -> float:
    """Returns the factor on predictions that gives them the least percentage error, as far away
    from 1 as so few tasks justify (`_PRIOR_TASKS`).
    """
    return _justified(least_mape_factor(predicted_s, measured_s), task)


def centred_factor(predicted_s: FloatArray, measured_s: FloatArray, task: IntArray) -> float:
    """Returns the factor on predictions of which half are too low, as far away from 1 as so few
    tasks justify (`_PRIOR_TASKS`). Sums of such err least: the least percentage error is a low
    guess where errors are wide.
    """
    return _justified(math.exp(np.median(np.log(measured_s / predicted_s))), task)


def _justified(factor: float, task: IntArray) -> float:
    tasks = len(np.unique(task))
    return float(factor ** (tasks / (tasks + _PRIOR_TASKS)))
