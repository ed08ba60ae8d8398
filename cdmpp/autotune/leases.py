"""Signs of life of the workers, and what becomes of trials whose worker is dead.

Optuna 5 has heart-beats for databases only, and only its `optimize` sends them. Here a thread of
the worker sends them: to the database's own table where there is one, and else, for a journal, as
an attribute of the trial that says until when the worker answers for it. The clocks of machines
that share a journal must therefore agree to within the lease.
"""

from __future__ import annotations

import math
import threading
import time
from types import TracebackType
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.storages._heartbeat import BaseHeartbeat, is_heartbeat_enabled
from optuna.trial import FrozenTrial

from cdmpp.errors import DataError

_LEASE, _LEASE_S = "lease_until", "lease_s"
#: Leases ahead of us to which a clock that is right to within a lease may give one.
_CLOCKS_DIFFER = 2
#: Signs of life in one lease: two may be late.
_BEATS = 3
#: Why a trial was not finished, as an attribute of it.
REASON = "reason"
#: What a trial that failed is, as an attribute of it: see `Fault`.
FAULT = "fault"
#: Its worker died; it is done again, a limited number of times.
DIED = "died"
#: It was put back, because the time was up or somebody pressed Ctrl-C; it is done again.
PUT_BACK = "put-back"
#: Somebody else does the same trial.
DUPLICATE = "duplicate"


class Lease:
    """Keeps a trial from being taken for abandoned while the block runs.

    Args:
        lease_s: seconds that the worker may be silent.

    Attributes:
        is_lost: whether the trial was given to somebody else meanwhile.
    """

    def __init__(self, storage: BaseStorage, trial_id: int, lease_s: float) -> None:
        self._storage = storage
        self._trial_id = trial_id
        self._lease_s = lease_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.is_lost = False

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._lease_s / _BEATS):
            try:
                beat(self._storage, self._trial_id, self._lease_s)
            except UpdateFinishedTrialError:
                self.is_lost = True
                return
            except DataError:
                continue  # what the trial itself writes next says it


def beat(storage: BaseStorage, trial_id: int, lease_s: float) -> None:
    """Gives a sign of life for a trial.

    Raises:
        UpdateFinishedTrialError: somebody has ended the trial.
    """
    if is_heartbeat_enabled(storage):
        assert isinstance(storage, BaseHeartbeat)
        if storage.get_trial(trial_id).state.is_finished():
            raise UpdateFinishedTrialError(f"trial {trial_id} is finished")
        storage.record_heartbeat(trial_id)
    else:
        storage.set_trial_user_attr(trial_id, _LEASE_S, lease_s)
        storage.set_trial_user_attr(trial_id, _LEASE, time.time() + lease_s)


def fail_abandoned(study: optuna.Study) -> None:
    """Marks the trials as failed whose worker gave no sign of life for a lease."""
    storage = study._storage
    if is_heartbeat_enabled(storage):
        assert isinstance(storage, BaseHeartbeat)
        abandoned = storage._get_stale_trial_ids(study._study_id)
    else:
        running = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        abandoned = [trial._trial_id for trial in running if _is_over(trial)]
    for trial_id in abandoned:
        try:
            mark_failed(storage, trial_id, DIED, "its worker died")
        except UpdateFinishedTrialError:
            continue  # another worker was first


def mark_failed(storage: BaseStorage, trial_id: int, fault: str, reason: str) -> None:
    """Ends a trial that will not be counted.

    Raises:
        UpdateFinishedTrialError: it has been ended already.
    """
    storage.set_trial_user_attr(trial_id, FAULT, fault)
    storage.set_trial_user_attr(trial_id, REASON, reason)
    storage.set_trial_state_values(trial_id, state=optuna.trial.TrialState.FAIL)


def _is_over(trial: FrozenTrial) -> bool:
    """Whether a lease has ended, or ends so late that the clock was wrong when it was given."""
    until: Any = trial.user_attrs.get(_LEASE)
    if until is None:
        return False
    left_s, lease_s = float(until) - time.time(), float(trial.user_attrs.get(_LEASE_S, math.inf))
    return left_s < 0 or left_s > _CLOCKS_DIFFER * lease_s
