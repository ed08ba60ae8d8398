"""A worker whose trials take a moment instead of a training; started and killed by the tests."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from optuna import Trial

from cdmpp.autotune import worker
from cdmpp.autotune.objective import Parts, chosen_options
from cdmpp.autotune.options import AutotuneOptions, PrunerOptions
from cdmpp.autotune.study import Source, run_study
from cdmpp.datasets.samples import Samples
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.options import TrainOptions

TRIALS, BEGUN = 6, "begun"
OPTIONS = AutotuneOptions(
    name="shared",
    train=TrainOptions(model="gbdt"),
    trials=TRIALS,
    lease_s=3.0,
    pruner=PrunerOptions(kind="none"),
)


def main(place: str, log: Path, first_trial_s: float, other_trial_s: float) -> None:
    """Works on the study; every begun trial is a line of `log`: process, trial, slot."""
    begun = 0

    def run_trial(trial, options, parts, limits, lease):
        nonlocal begun
        train = chosen_options(trial, options)
        with log.open("a") as lines:
            lines.write(f"{os.getpid()} {trial.number} {trial.user_attrs['slot']}\n")
        begun += 1
        time.sleep(first_trial_s if begun == 1 else other_trial_s)
        return [float(train.gbdt.depth)]

    worker.run_trial = run_trial
    samples = make_samples(2, 2)
    worker.work(OPTIONS, place, Parts(samples, samples))


def load(folder: Path, devices: list[str] | None) -> Samples:
    """Returns made-up samples."""
    return make_samples(16, 4)


def endless(trial: Trial, *details: object) -> list[float]:
    """A trial that says when it has begun, and does not end by itself."""
    trial.set_user_attr(BEGUN, True)
    time.sleep(600)
    return [0.0]


if sys.argv[1:2] == ["workers"]:  # also in the processes that are started from here
    worker.run_trial = endless
    if __name__ == "__main__":
        run_study(OPTIONS, Source(load, Path()), sys.argv[2], workers=2)
elif __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
