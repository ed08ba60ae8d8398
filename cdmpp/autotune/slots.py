"""Slots of a study: one per requested trial, so that no trial is lost or run twice.

Slots are queued as waiting trials, which workers take in one atomic step of the storage. When a
worker dies, its trial fails. Any worker that finds a slot without a waiting, running or finished
trial queues the slot again, with the chosen settings; if the choice was incomplete, the sampler of
the slot repeats it. (Optuna's retry callback keeps incomplete settings, which would change the
rest, and loses a slot if the calling worker dies.) If two workers queue a slot at once, the trial
with the lower number counts; the other is marked as a duplicate when taken, and not trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from cdmpp.autotune.leases import fail_abandoned
from cdmpp.errors import CdmppError

#: Attribute of a trial: its slot.
SLOT = "slot"
#: Attribute of a trial: its kind of model; set after all its settings are chosen.
CHOSEN = "model"
#: Attribute of a trial: numbers of the failed trials of the same slot.
RETRY_OF = "retry_of"
#: Attribute of a trial: why it was not finished.
REASON = "reason"
#: Attribute of a failed trial: one of the next three values.
FAULT = "fault"
#: The worker died; the trial is rerun, a limited number of times. Default if nothing is written.
DIED = "died"
#: The trial was put back because time was up or by Ctrl-C; it is rerun.
PUT_BACK = "put-back"
#: Another worker has the same trial.
DUPLICATE = "duplicate"


class DuplicateTrialError(CdmppError):
    """A trial that another worker runs, or that is not needed."""


def fill_slots(study: optuna.Study, count: int, beginnings: Sequence[Mapping[str, Any]]) -> None:
    """Queues the missing slots; the first ones start with the given settings."""
    known = {trial.user_attrs.get(SLOT) for trial in study.get_trials(deepcopy=False)}
    for slot in range(count):
        if slot not in known:
            settings = dict(beginnings[slot]) if slot < len(beginnings) else {}
            study.enqueue_trial(settings, user_attrs={SLOT: slot})


def recover(
    study: optuna.Study, *, most_deaths: int, lease_s: float, has_heartbeats: bool = False
) -> None:
    """Queues trials again that were put back or whose worker died."""
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
    """Returns the slot of a taken trial; for a trial that a user queued, its number.

    Raises:
        DuplicateTrialError: the trial must not be run.
    """
    trials = study.get_trials(deepcopy=False)
    slot = trial.user_attrs.get(SLOT)
    if slot is None:
        if "fixed_params" not in trials[trial.number].system_attrs:  # created by Optuna
            raise DuplicateTrialError("another worker took the last waiting trial")
        return trial.number
    same = [other for other in trials[: trial.number] if other.user_attrs.get(SLOT) == slot]
    if any(_counts(other) for other in same):
        raise DuplicateTrialError("another worker has the same trial")
    return int(slot)


def fault_of(trial: FrozenTrial) -> str:
    """Returns the fault of a failed trial; empty if it did not fail."""
    return "" if _counts(trial) else str(trial.user_attrs.get(FAULT, DIED))


def _counts(trial: FrozenTrial) -> bool:
    """Whether the trial is finished, running or waiting."""
    return trial.state != TrialState.FAIL
