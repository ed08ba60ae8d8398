"""A worker: takes trials of a study and does them until none is left or the time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial

from cdmpp.autotune.leases import DIED, PUT_BACK, REASON, Lease, mark_failed
from cdmpp.autotune.objective import (
    Limits,
    Parts,
    TrialPrunedError,
    TrialPutBackError,
    run_trial,
)
from cdmpp.autotune.options import AutotuneOptions
from cdmpp.autotune.slots import is_anybody_at_work, recover, take
from cdmpp.autotune.storage import new_sampler, open_storage, open_study

#: Told of every trial that this worker has ended.
OnTrial = Callable[["FrozenTrial"], None]
_LONGEST_NAP_S = 5.0


def work(
    options: AutotuneOptions,
    place: Path | str,
    parts: Parts,
    *,
    deadline: float = math.inf,
    on_trial: OnTrial | None = None,
) -> None:
    """Does trials of the study at `place` until all are done, also those of workers that die
    meanwhile, or the time is up.

    Args:
        deadline: `time.monotonic()` after which no trial goes on.

    Raises:
        NotApplicableError: the kind cannot be used on the data.
    """
    study = open_study(options, open_storage(str(place), lease_s=options.lease_s))
    while time.monotonic() < deadline and (cpu_left_s := _cpu_left_s(study, options)) > 0:
        recover(study, most_deaths=options.most_deaths)
        trial = take(study, options.lease_s, lambda slot: new_sampler(options, slot))
        if trial is not None:
            _do(study, trial, options, parts, Limits(deadline, cpu_left_s))
            if on_trial:
                on_trial(study._storage.get_trial(trial._trial_id))
        elif is_anybody_at_work(study):
            time.sleep(min(_LONGEST_NAP_S, options.lease_s / 3))
        else:
            return


def _do(
    study: optuna.Study, trial: Trial, options: AutotuneOptions, parts: Parts, limits: Limits
) -> None:
    """Runs a trial and writes its end into the study, unless it is somebody else's by then."""
    storage = study._storage
    with Lease(storage, trial._trial_id, options.lease_s) as lease:
        try:
            try:
                values = run_trial(trial, options, parts, limits, lease)
            except TrialPrunedError as reason:
                trial.set_user_attr(REASON, str(reason))
                study.tell(trial, state=optuna.trial.TrialState.PRUNED, skip_if_finished=True)
            except TrialPutBackError as reason:
                if not lease.is_lost:
                    mark_failed(storage, trial._trial_id, PUT_BACK, str(reason))
            except KeyboardInterrupt:
                mark_failed(storage, trial._trial_id, PUT_BACK, "interrupted")
                raise
            except Exception as error:
                mark_failed(storage, trial._trial_id, DIED, f"{type(error).__name__}: {error}")
                raise
            else:
                study.tell(trial, values, skip_if_finished=True)
        except UpdateFinishedTrialError:
            return  # the lease was lost at the last moment


def _cpu_left_s(study: optuna.Study, options: AutotuneOptions) -> float:
    if not options.cpu_minutes:
        return math.inf
    trials = study.get_trials(deepcopy=False)
    spent = sum(float(trial.user_attrs.get("cpu_s", 0.0)) for trial in trials)
    return 60.0 * options.cpu_minutes - spent
