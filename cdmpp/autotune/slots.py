"""The trials that a study is to have: one slot each, so that none is lost and none done twice.

Slots are queued as waiting trials. A worker takes one in a single step of the storage. When its
worker dies the trial fails, and whoever sees a slot without a trial that is waiting, running or
done queues it again, with the settings that were chosen; where they were not chosen to the end, the
sampler of the slot chooses the same once more. Two may do that at once: the trial with
the lower number counts, the other is marked as a duplicate when its turn comes, and not trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from cdmpp.autotune.leases import (
    DIED,
    DUPLICATE,
    FAULT,
    beat,
    fail_abandoned,
    mark_failed,
)

#: The slot of a trial, as an attribute of it.
SLOT = "slot"
#: The kind of model of a trial, as an attribute of it: there when all its settings are chosen.
CHOSEN = "model"
#: Numbers of the trials of the same slot that did not end.
RETRY_OF = "retry_of"


def fill_slots(study: optuna.Study, count: int, beginnings: Sequence[Mapping[str, Any]]) -> None:
    """Queues the slots that are not there yet; the first ones begin with the given settings."""
    known = {trial.user_attrs.get(SLOT) for trial in study.get_trials(deepcopy=False)}
    for slot in range(count):
        if slot not in known:
            settings = dict(beginnings[slot]) if slot < len(beginnings) else {}
            study.enqueue_trial(settings, user_attrs={SLOT: slot})


def recover(study: optuna.Study, *, most_deaths: int) -> None:
    """Queues the trials again whose worker died or that were put back."""
    fail_abandoned(study)
    for slot, trials in _by_slot(study.get_trials(deepcopy=False)).items():
        if any(_counts(trial) for trial in trials):
            continue
        lost = [trial for trial in trials if trial.user_attrs.get(FAULT) != DUPLICATE]
        deaths = sum(trial.user_attrs.get(FAULT) == DIED for trial in lost)
        if deaths >= most_deaths:
            continue
        last = lost[-1]
        chosen = last.params if CHOSEN in last.user_attrs else None
        study.enqueue_trial(
            chosen or last.system_attrs.get("fixed_params", {}),
            user_attrs={SLOT: slot, RETRY_OF: [trial.number for trial in lost]},
        )


def take(
    study: optuna.Study, lease_s: float, sampler_of: Callable[[int], BaseSampler]
) -> Trial | None:
    """Returns a trial that is now this worker's; None when none is waiting.

    Args:
        sampler_of: slot -> what chooses the settings of its trials.
    """
    storage = study._storage
    for waiting in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        trial_id = waiting._trial_id
        try:
            # First the sign of life: a worker that dies between the two leaves nothing behind.
            beat(storage, trial_id, lease_s)
            if not storage.set_trial_state_values(trial_id, state=TrialState.RUNNING):
                continue
            slot = waiting.user_attrs.get(SLOT)
            trials = study.get_trials(deepcopy=False)
            same = [trial for trial in trials if trial.user_attrs.get(SLOT) == slot]
            if any(_counts(trial) and trial.number < waiting.number for trial in same):
                mark_failed(storage, trial_id, DUPLICATE, "another worker has the same trial")
                continue
        except UpdateFinishedTrialError:
            continue
        study.sampler = sampler_of(waiting.number if slot is None else slot)
        return optuna.trial.Trial(study, trial_id)
    return None


def is_anybody_at_work(study: optuna.Study) -> bool:
    """Whether a trial is running or waiting."""
    states = (TrialState.RUNNING, TrialState.WAITING)
    return bool(study.get_trials(deepcopy=False, states=states))


def _counts(trial: FrozenTrial) -> bool:
    """Whether the trial is done or will be."""
    return trial.state != TrialState.FAIL


def _by_slot(trials: Iterable[FrozenTrial]) -> dict[int, list[FrozenTrial]]:
    found: dict[int, list[FrozenTrial]] = defaultdict(list)
    for trial in trials:
        if SLOT in trial.user_attrs:
            found[trial.user_attrs[SLOT]].append(trial)
    return found
