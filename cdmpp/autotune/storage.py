"""Storage of a study: a journal file, or a PostgreSQL server by URL."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage

from cdmpp.autotune.journal import StudyJournal
from cdmpp.autotune.options import AutotuneOptions, fixed_facts, trial_options
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder

#: Attribute of a study: its options, except limits and name.
FACTS = "options"
_DRIVER = "postgresql+psycopg"


def open_storage(place: str, *, lease_s: float) -> BaseStorage:
    """Returns the storage at a journal path or a URL `postgresql://...`.

    A journal serves processes on one machine or a shared disk; PostgreSQL serves many machines.
    Heartbeats are enabled for a database; a journal has none (see `leases`).

    Raises:
        UsageError: another URL, including SQLite (it fails with several writers).
        DataError: the server does not respond, or the file cannot be written.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # no warnings about trials put back
    if "://" not in place:
        path = Path(place)
        make_folder(path.parent, what="journal of the study")
        try:
            return JournalStorage(StudyJournal(str(path)))
        except (OSError, ValueError) as error:
            raise DataError(
                f"cannot open the journal {path} ({error}); expected a journal of `cdmpp "
                "autotune`, or a new file"
            ) from error
    scheme, _, rest = place.partition("://")
    if scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise UsageError(
            f"storage is {place!r}; expected a path of a journal file, or a URL "
            "postgresql://USER@HOST/DATABASE"
        )
    url = f"{_DRIVER if '+' not in scheme else scheme}://{rest}"
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with warnings.catch_warnings():
            # Optuna marks heartbeats as experimental.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return RDBStorage(
                url,
                heartbeat_interval=max(1, round(lease_s / 3)),
                grace_period=max(2, round(lease_s)),
            )
    except ImportError as error:
        raise UsageError(
            f"PostgreSQL needs a driver ({error}); install one with: pip install 'cdmpp[autotune]'"
        ) from error
    except SQLAlchemyError as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"the PostgreSQL server does not answer ({reason}); check the URL with "
            "`psql URL -c 'select 1'`"
        ) from error


def open_study(options: AutotuneOptions, storage: BaseStorage) -> optuna.Study:
    """Returns the study, new or continued.

    Raises:
        UsageError: a study of this name has other options.
    """
    minimize = optuna.study.StudyDirection.MINIMIZE
    study = optuna.create_study(
        study_name=options.name,
        storage=storage,
        directions=[minimize] * (2 if options.is_two_objectives() else 1),
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=options.seed),
        pruner=new_pruner(options),
    )
    facts = fixed_facts(options)
    known = study.user_attrs.get(FACTS)
    if known is None:
        study.set_user_attr(FACTS, facts)
    elif known != facts:
        names = [name for name in facts if known.get(name) != facts[name]]
        raise UsageError(
            f"the study {options.name!r} has other options ({', '.join(names)}); give another "
            "--out or --storage, or another --set name="
        )
    return study


def existing_study(place: str, name: str | None) -> optuna.Study:
    """Returns a study for reading.

    Raises:
        DataError: the study does not exist.
    """
    if "://" not in place and not Path(place).is_file():
        raise DataError(f"no journal at {place}; expected the --out of `cdmpp autotune`")
    storage = open_storage(place, lease_s=60.0)
    names = [entry.study_name for entry in optuna.get_all_study_summaries(storage)]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        raise DataError(
            f"{place} has the studies {', '.join(names) or '(none)'}, got {name!r}; give --study "
            "NAME with one of them"
        )
    return optuna.load_study(study_name=name, storage=storage)


def new_sampler(options: AutotuneOptions, slot: int) -> optuna.samplers.BaseSampler:
    """Returns the sampler of one slot's trials. Its seed depends on the study's seed and the slot:
    workers and continued studies repeat no draws, and a rerun slot repeats its own.
    """
    seed = int(np.random.SeedSequence([options.seed, slot]).generate_state(1)[0])
    if options.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(n_startup_trials=options.startup_trials, seed=seed)


def new_pruner(options: AutotuneOptions) -> optuna.pruners.BasePruner:
    """Returns the pruner; it counts in epochs, from 1."""
    pruner = options.pruner
    if pruner.kind == "percentile":
        return optuna.pruners.PercentilePruner(
            pruner.keep_percent,
            n_startup_trials=pruner.startup_trials,
            n_warmup_steps=pruner.first_epoch,
        )
    if pruner.kind == "hyperband":
        return optuna.pruners.HyperbandPruner(
            min_resource=pruner.first_epoch, max_resource=most_epochs(options)
        )
    return optuna.pruners.NopPruner()


def most_epochs(options: AutotuneOptions) -> int:
    """Returns the maximum epochs of a trial of kind `train.model`; 1 for kinds without epochs."""
    train = trial_options(options, options.train)
    own = getattr(train, train.model.replace("-", "_"))
    loop = getattr(getattr(own, "transformer", own), "loop", None)
    return int(loop.epochs) if loop is not None else 1
