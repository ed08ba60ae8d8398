"""The trials that a study is to have: one slot each, so that none is lost and none done twice.

Slots are queued as waiting trials. A worker takes one in a single step of the storage. When its
worker dies the trial fails, and whoever sees a slot without a trial that is waiting, running or
done queues it again, with the settings that were chosen; where they were not chosen to the end, the
sampler of the slot chooses the same once more. (Optuna's retry callback keeps half-chosen settings,
which would give others, and loses a slot when the worker that calls it dies.) Two may do that at
once: the trial with the lower number counts, the other is marked as a duplicate when its turn
comes, and not trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from cdmpp.autotune.leases import fail_abandoned
from cdmpp.errors import CdmppError

#: The slot of a trial, as an attribute of it.
SLOT = "slot"
#: The kind of model of a trial, as an attribute of it: there when all its settings are chosen.
CHOSEN = "model"
#: Numbers of the trials of the same slot that did not end.
RETRY_OF = "retry_of"
#: Why a trial was not finished, as an attribute of it.
REASON = "reason"
#: What a trial that failed is, as an attribute of it: one of the next three.
FAULT = "fault"
#: Its worker died; it is done again, a limited number of times. Also where nobody could write it.
DIED = "died"
#: It was put back, because the time was up or somebody pressed Ctrl-C; it is done again.
PUT_BACK = "put-back"
#: Somebody else does the same trial.
DUPLICATE = "duplicate"


class DuplicateTrialError(CdmppError):
    """A trial that somebody else does, or nobody is to do."""


def fill_slots(study: optuna.Study, count: int, beginnings: Sequence[Mapping[str, Any]]) -> None:
    """Queues the slots that are not there yet; the first ones begin with the given settings."""
    known = {trial.user_attrs.get(SLOT) for trial in study.get_trials(deepcopy=False)}
    for slot in range(count):
        if slot not in known:
            settings = dict(beginnings[slot]) if slot < len(beginnings) else {}
            study.enqueue_trial(settings, user_attrs={SLOT: slot})


def recover(
    study: optuna.Study, *, most_deaths: int, lease_s: float, has_heartbeats: bool = False
) -> None:
    """Queues the trials again whose worker died or that were put back."""
    fail_abandoned(study, lease_s, has_heartbeats=has_heartbeats)
    by_slot: dict[int, list[FrozenTrial]] = defaultdict(list)
    for trial in study.get_trials(deepcopy=False):
        if SLOT in trial.user_attrs:
            by_slot[trial.user_attrs[SLOT]].append(trial)
    for slot, trials in by_slot.items():
        if any(_counts(trial) for trial in trials):
            continue
        lost = [trial for trial in trials if fault_of(trial) != DUPLICATE]
        if sum(fault_of(trial) == DIED for trial in lost) >= most_deaths:
            continue
        last = lost[-1]
        chosen = last.params if CHOSEN in last.user_attrs else None
        study.enqueue_trial(
            chosen or last.system_attrs.get("fixed_params", {}),
            user_attrs={SLOT: slot, RETRY_OF: [trial.number for trial in lost]},
        )


def taken_slot(study: optuna.Study, trial: Trial) -> int:
    """Returns the slot of a trial that was taken; of one that a user queued, its number.

    Raises:
        DuplicateTrialError: it is not to be done.
    """
    trials = study.get_trials(deepcopy=False)
    slot = trial.user_attrs.get(SLOT)
    if slot is None:
        if "fixed_params" not in trials[trial.number].system_attrs:  # Optuna made it
            raise DuplicateTrialError("another worker took the last waiting trial")
        return trial.number
    same = [other for other in trials[: trial.number] if other.user_attrs.get(SLOT) == slot]
    if any(_counts(other) for other in same):
        raise DuplicateTrialError("another worker has the same trial")
    return int(slot)


def fault_of(trial: FrozenTrial) -> str:
    """Returns what a failed trial is; empty = it did not fail."""
    return "" if _counts(trial) else str(trial.user_attrs.get(FAULT, DIED))


def _counts(trial: FrozenTrial) -> bool:
    """Whether the trial is done or will be."""
    return trial.state != TrialState.FAIL
