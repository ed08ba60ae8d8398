"""Leases of trials: workers renew them, and a trial whose lease has expired is failed.

A database uses the heartbeats of Optuna's `optimize`. A journal has no heartbeats: there, an
attribute of the trial holds the end of its lease. The clocks of machines that share a journal must
therefore agree to within one lease.
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
#: A lease that ends more lease lengths ahead than this was written by a wrong clock.
_CLOCKS_DIFFER = 2
#: Renewals per lease: two may be late.
_BEATS = 3


class Lease:
    """Renews the lease of a trial while the block runs.

    Args:
        lease_s: length of the lease in seconds.

    Attributes:
        is_lost: whether the trial was ended by another worker meanwhile.
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
            pass  # the trial's next own write reports it


def fail_abandoned(study: optuna.Study, lease_s: float, *, has_heartbeats: bool) -> None:
    """Fails the trials whose lease has expired.

    Args:
        has_heartbeats: whether the storage is a database with Optuna's heartbeats.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if has_heartbeats and _LEASE in trial.user_attrs:
            continue
        if _is_over(trial, lease_s):
            with suppress(UpdateFinishedTrialError):  # another worker has ended it
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _is_over(trial: FrozenTrial, lease_s: float) -> bool:
    """Whether a lease has ended, or ends too late to come from a correct clock."""
    until = trial.user_attrs.get(_LEASE)
    if until is None:  # no lease yet: the worker was killed, or is about to write one
        start = trial.datetime_start
        until = start.timestamp() + lease_s if start else math.inf
    left_s = float(until) - time.time()
    return left_s < 0 or left_s > _CLOCKS_DIFFER * float(trial.user_attrs.get(_LEASE_S, lease_s))
