"""A worker that runs trials of a study until none is left or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from cdmpp.autotune.leases import Lease
from cdmpp.autotune.objective import (
    Limits,
    Parts,
    TrialPrunedError,
    TrialPutBackError,
    run_trial,
)
from cdmpp.autotune.options import AutotuneOptions
from cdmpp.autotune.slots import (
    DIED,
    DUPLICATE,
    FAULT,
    PUT_BACK,
    REASON,
    DuplicateTrialError,
    recover,
    taken_slot,
)
from cdmpp.autotune.storage import new_sampler, open_storage, open_study

#: Called with every trial that this worker has ended.
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
    """Runs trials of the study at `place` until all are finished, including those of workers that
    die meanwhile, or time is up.

    Args:
        deadline: `time.monotonic()` at which running trials end.

    Raises:
        NotApplicableError: the kind of model cannot use the data.
    """
    storage = open_storage(str(place), lease_s=options.lease_s)
    study = open_study(options, storage)
    has_heartbeats = isinstance(storage, RDBStorage)
    while time.monotonic() < deadline and (cpu_left_s := _cpu_left_s(study, options)) > 0:
        recover(
            study,
            most_deaths=options.most_deaths,
            lease_s=options.lease_s,
            has_heartbeats=has_heartbeats,
        )
        states = {trial.state for trial in study.get_trials(deepcopy=False)}
        if TrialState.WAITING in states:
            _do_one(study, options, parts, Limits(deadline, cpu_left_s), on_trial)
        elif TrialState.RUNNING in states:
            time.sleep(min(_LONGEST_NAP_S, options.lease_s / 3))
        else:
            return


def _do_one(
    study: optuna.Study,
    options: AutotuneOptions,
    parts: Parts,
    limits: Limits,
    on_trial: OnTrial | None,
) -> None:
    """Takes a trial, runs it and stores its end, unless another worker has it by then."""
    lease: Lease | None = None

    def objective(trial: Trial) -> list[float]:
        nonlocal lease
        with Lease(trial, options.lease_s) as lease:
            try:
                study.sampler = new_sampler(options, taken_slot(study, trial))
                values = run_trial(trial, options, parts, limits, lease)
            except TrialPrunedError as error:
                trial.set_user_attr(REASON, str(error))
                raise optuna.TrialPruned from error
            except (Exception, KeyboardInterrupt) as error:
                for name, value in zip((FAULT, REASON), _fault(error), strict=True):
                    trial.set_user_attr(name, value)
                raise
        if lease.is_lost:
            raise TrialPutBackError("another worker has the trial")
        return values

    def tell(_: optuna.Study, trial: FrozenTrial) -> None:
        if on_trial and trial.user_attrs.get(FAULT) != DUPLICATE:
            on_trial(trial)

    try:
        study.optimize(
            objective, n_trials=1, catch=(TrialPutBackError, DuplicateTrialError), callbacks=[tell]
        )
    except (ValueError, UpdateFinishedTrialError):
        # Optuna refuses to end a trial that another worker has ended meanwhile.
        if lease is None or not lease.is_lost:
            raise


def _fault(error: BaseException) -> tuple[str, str]:
    """Returns the fault and the reason of a trial that an error has ended."""
    if isinstance(error, KeyboardInterrupt):
        return PUT_BACK, "interrupted"
    if isinstance(error, TrialPutBackError):
        return PUT_BACK, str(error)
    if isinstance(error, DuplicateTrialError):
        return DUPLICATE, str(error)
    return DIED, f"{type(error).__name__}: {error}"


def _cpu_left_s(study: optuna.Study, options: AutotuneOptions) -> float:
    if not options.cpu_minutes:
        return math.inf
    trials = study.get_trials(deepcopy=False)
    spent = sum(float(trial.user_attrs.get("cpu_s", 0.0)) for trial in trials)
    return 60.0 * options.cpu_minutes - spent
