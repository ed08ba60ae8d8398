"""Runs a study from its options to the best settings as a preset."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial

from cdmpp.autotune.objective import chosen_options, study_parts
from cdmpp.autotune.options import (
    AutotuneOptions,
    beginnings,
    check_options,
    preset_values,
)
from cdmpp.autotune.settings import MODEL, recorded_values
from cdmpp.autotune.slots import fill_slots
from cdmpp.autotune.storage import open_storage, open_study
from cdmpp.autotune.worker import OnTrial, work
from cdmpp.datasets.samples import Samples
from cdmpp.errors import CdmppError, DataError
from cdmpp.files.atomic import write_text
from cdmpp.models.loop.one_thread import one_thread_each
from cdmpp.processes.pool import end_with_parent

#: Replacements of killed workers, per worker.
_MOST_REPLACEMENTS = 3
_SECONDS_TO_PUT_BACK = 10.0


@dataclass(frozen=True)
class Source:
    """Source of the samples for every worker.

    Attributes:
        load: a module-level function, so that a new process can call it.
        folder: its first argument.
        devices: labels; None = all.
    """

    load: Callable[[Path, list[str] | None], Samples]
    folder: Path
    devices: list[str] | None = None

    def samples(self) -> Samples:
        """Loads the samples."""
        return self.load(self.folder, self.devices)


def run_study(
    options: AutotuneOptions,
    source: Source,
    place: Path | str,
    *,
    workers: int = 1,
    on_trial: OnTrial | None = None,
) -> optuna.Study:
    """Runs the unfinished trials of a study and returns the study.

    Several runs, on one machine or many, may work on a study at the same time. A killed worker is
    replaced; its trial is rerun after the lease.

    Args:
        place: path of the journal, or URL of the database.
        workers: number of single-threaded processes; 1 = this process.
        on_trial: called after every trial in the worker's process; with several workers it must be
            a module-level function.

    Raises:
        UsageError: invalid options, or a study of this name has other options.
        DataError: the data or the storage cannot be used.
    """
    check_options(options)
    study = open_study(options, open_storage(str(place), lease_s=options.lease_s))
    fill_slots(study, options.trials, first_settings(options))
    deadline = time.monotonic() + 60.0 * options.minutes if options.minutes else math.inf
    if workers == 1:
        parts = study_parts(options.train, source.samples())
        work(options, place, parts, deadline=deadline, on_trial=on_trial)
    else:
        _run_processes(options, source, str(place), workers, deadline, on_trial)
    return study


def first_settings(options: AutotuneOptions) -> list[dict[str, Any]]:
    """Returns the stored values of the settings to try first."""
    found = []
    for train in beginnings(options):
        values = recorded_values(options.space(train.model), train)
        found.append({MODEL: train.model, **values} if len(options.tuned_kinds()) > 1 else values)
    return found


def best_trial(study: optuna.Study) -> FrozenTrial:
    """Returns the finished trial with the lowest error, also of a Pareto front.

    Raises:
        DataError: no trial has finished.
    """
    done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if not done:
        reasons = sorted(
            {
                str(trial.user_attrs["reason"])
                for trial in study.trials
                if "reason" in trial.user_attrs
            }
        )
        raise DataError(
            f"no trial of the study {study.study_name!r} finished "
            f"({'; '.join(reasons[:3]) or 'none was begun'}); give it more time or wider limits"
        )
    return min(done, key=lambda trial: (trial.values[0], trial.number))


def winner_options(options: AutotuneOptions, trial: FrozenTrial) -> Any:
    """Returns the `TrainOptions` of a finished trial, without the trial settings."""
    return chosen_options(trial, options)  # type: ignore[arg-type]


def write_preset(path: Path, options: AutotuneOptions, trial: FrozenTrial) -> None:
    """Writes the settings of a trial as a file for `configs/models`.

    Raises:
        DataError: the file cannot be written.
    """
    train = winner_options(options, trial)
    head = (
        f"# Trial {trial.number} of the study {options.name!r} (`cdmpp autotune`), chosen on the\n"
        f"# validation part: {options.objective.kind} {trial.values[0]:.6g}.\n"
    )
    write_text(path, head + yaml.safe_dump(preset_values(train), sort_keys=False))


def _run_processes(
    options: AutotuneOptions,
    source: Source,
    place: str,
    workers: int,
    deadline: float,
    on_trial: OnTrial | None,
) -> None:
    """Runs `workers` processes and replaces killed ones.

    Raises:
        CdmppError: a worker ended with an error, which it has printed.
    """
    context = get_context("spawn")

    def start() -> Any:
        process = context.Process(
            target=_work_in_process, args=(options, source, place, deadline, on_trial)
        )
        process.start()
        return process

    replacements = _MOST_REPLACEMENTS * workers
    with one_thread_each():
        processes = [start() for _ in range(workers)]
        failed = 0
        try:
            while processes:
                processes[0].join(timeout=0.5)
                for process in [entry for entry in processes if not entry.is_alive()]:
                    processes.remove(process)
                    code = process.exitcode or 0
                    if code < 0 and replacements:
                        replacements -= 1
                        died = f"worker {process.pid} died (signal {-code})"
                        print(f"{died}; replaced", file=sys.stderr)
                        processes.append(start())
                    elif code:
                        failed = failed or code
        finally:
            _interrupt(processes)
    if failed:
        error = CdmppError(
            f"a worker ended with exit code {failed}, see its message above; finished trials are "
            "kept: rerun the same command to continue"
        )
        error.exit_code = failed if failed > 0 else 1
        raise error


def _interrupt(processes: Sequence[Any]) -> None:
    """Interrupts the remaining processes, which put their trials back."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
    for process in processes:
        process.join(timeout=_SECONDS_TO_PUT_BACK)
        process.kill()
        process.join()


def _work_in_process(
    options: AutotuneOptions,
    source: Source,
    place: str,
    deadline: float,
    on_trial: OnTrial | None,
) -> None:
    """Runs `work` in a new process; a `CdmppError` becomes a line on stderr and an exit code."""
    end_with_parent()
    try:
        parts = study_parts(options.train, source.samples())
        work(options, place, parts, deadline=deadline, on_trial=on_trial)
    except CdmppError as error:
        print(f"cdmpp: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
