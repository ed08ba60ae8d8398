"""Signs of life of the workers, and which trials have lost theirs.

A database has the heartbeats that Optuna's `optimize` sends. A journal has none: there, a trial's
attribute says until when its worker answers for it, so the clocks of machines that share a journal
must agree to within the lease.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from contextlib import suppress

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from cdmpp.errors import DataError

_LEASE, _LEASE_S = "lease_until", "lease_s"
#: Leases ahead of us to which a clock that is right to within a lease may give one.
_CLOCKS_DIFFER = 2
#: Signs of life in one lease: two may be late.
_BEATS = 3


class Lease:
    """Keeps a trial from being taken for abandoned while the block runs.

    Args:
        lease_s: seconds that the worker may be silent.

    Attributes:
        is_lost: whether the trial was given to somebody else meanwhile.
    """

    def __init__(self, trial: Trial, lease_s: float) -> None:
        self._trial = trial
        self._lease_s = lease_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.is_lost = False

    def __enter__(self) -> Lease:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._beat()

    def _run(self) -> None:
        while not self.is_lost and not self._stop.wait(self._lease_s / _BEATS):
            self._beat()

    def _beat(self) -> None:
        try:
            self._trial.set_user_attr(_LEASE_S, self._lease_s)
            self._trial.set_user_attr(_LEASE, time.time() + self._lease_s)
        except UpdateFinishedTrialError:
            self.is_lost = True
        except DataError:
            pass  # what the trial itself writes next says it


def fail_abandoned(study: optuna.Study, lease_s: float, *, has_heartbeats: bool) -> None:
    """Marks the trials as failed whose worker gave no sign of life for a lease.

    Args:
        has_heartbeats: whether the storage is a database that has Optuna's heartbeats.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if has_heartbeats and _LEASE in trial.user_attrs:
            continue
        if _is_over(trial, lease_s):
            with suppress(UpdateFinishedTrialError):  # another worker was first
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _is_over(trial: FrozenTrial, lease_s: float) -> bool:
    """Whether a lease has ended, or ends so late that the clock was wrong when it was given."""
    until = trial.user_attrs.get(_LEASE)
    if until is None:  # its worker has not come to give one: killed, or about to
        start = trial.datetime_start
        until = start.timestamp() + lease_s if start else math.inf
    left_s = float(until) - time.time()
    return left_s < 0 or left_s > _CLOCKS_DIFFER * float(trial.user_attrs.get(_LEASE_S, lease_s))
