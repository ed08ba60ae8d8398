"""Equal tuning of the peers: a random search on validation parts, the same CPU minutes for each.

`make tune-peers` runs it; every trial is a row of docs/results/peer-tuning.csv, the best settings
of a kind become its preset configs/models/KIND.yaml.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cdmpp.config import from_dict, load_config
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.judge import judge
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import split
from cdmpp.errors import CdmppError, NotApplicableError, UsageError
from cdmpp.files.atomic import write_text
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import new_model

#: Settings that a search may choose for each kind; the first of each is the default.
SPACES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "gbdt": {
        "objective": ("squared_log", "absolute_log"),
        "depth": (7, 5, 9),
        "learning_rate": (0.05, 0.03, 0.1),
        "column_share": (0.5, 0.25, 1.0),
        "min_child_weight": (3.0, 1.0, 10.0),
        "total_columns": (True, False),
    },
    "gbdt-rank": {
        "depth": (7, 5, 9),
        "learning_rate": (0.05, 0.03, 0.1),
        "column_share": (0.5, 0.25, 1.0),
        "min_child_weight": (3.0, 1.0, 10.0),
        "total_columns": (True, False),
    },
    "segment-mlp": {
        "hidden": (256, 128, 512),
        "loop.learning_rate": (7e-4, 3e-4, 2e-3),
        "loop.weight_decay": (1e-6, 1e-2, 1e-1),
        "loop.programs_per_batch": (128, 64, 256),
    },
    "tlp": {
        "hidden": (256, 128, 64),
        "loop.learning_rate": (7e-4, 3e-4, 2e-3),
        "loop.weight_decay": (1e-6, 1e-2, 1e-1),
        "loop.programs_per_batch": (64, 32, 128),
    },
    "tlp-rank": {
        "hidden": (256, 128, 64),
        "loop.learning_rate": (7e-4, 3e-4, 2e-3),
        "loop.weight_decay": (1e-6, 1e-2, 1e-1),
        "loop.programs_per_batch": (64, 32, 128),
    },
    "recursive-lstm": {
        "embed": ((600, 350, 200, 180), (256, 128), (128, 64)),
        "dropout": (0.112, 0.0, 0.2),
        "collapse_chains": (True, False),
        "loop.learning_rate": (1e-3, 5e-4, 2e-3),
        "loop.weight_decay": (0.00375, 0.05),
    },
    "cdmpp-paper": {
        "extra_blocks": ((), None),
        "loop.programs_per_batch": (32, 16, 64),
        "loop.learning_rate": (1.6765674942e-5, 8e-6, 4e-5),
        "loop.half_period": (100, 50, 200),
    },
}
COLUMNS = (
    "kind", "trial", "dataset", "settings", "mape", "median_ape", "spearman_by_task", "cpu_s",
    "chosen",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One choice of settings on one data set, judged on its validation part.

    Attributes:
        metrics: mape, median_ape and spearman_by_task of the validation part.
        cpu_s: process CPU seconds of training and judging.
    """

    kind: str
    trial: int
    dataset: str
    settings: dict[str, Any]
    metrics: dict[str, float]
    cpu_s: float


def tune(
    kind: str,
    datasets: Mapping[str, Samples],
    *,
    cpu_seconds: float,
    trial_seconds: float,
    seed: int,
    base: TrainOptions | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> tuple[list[Trial], dict[str, Any]]:
    """Returns the trials of one kind and the settings that did best.

    The first trial is the default; the others draw every setting at random. Best is the least
    geometric mean, over the data sets the kind can be used on, of the validation MAPE (kinds that
    rank: of one minus the mean rank correlation within tasks). No test sample is looked at.

    Args:
        datasets: name -> samples; split by task with `seed`.
        cpu_seconds: no trial begins after that much process CPU time.
        trial_seconds: CPU budget of one training of a torch model.

    Raises:
        UsageError: the kind has no space, or can be used on none of the data sets.
    """
    if kind not in SPACES:
        raise UsageError(f"no settings to tune for {kind!r}; expected one of {', '.join(SPACES)}")
    rng = np.random.default_rng([seed, sorted(SPACES).index(kind)])
    parts = {name: split(samples, "task", seed=seed) for name, samples in datasets.items()}
    started = time.process_time()
    trials: list[Trial] = []
    scores: list[tuple[float, dict[str, Any]]] = []
    while not scores or time.process_time() - started < cpu_seconds:
        space = SPACES[kind]
        settings = {
            name: choices[int(rng.integers(len(choices))) if scores else 0]
            for name, choices in space.items()
        }
        done: list[Trial] = []
        for name, samples in datasets.items():
            options = _with(base or TrainOptions(), kind, settings, trial_seconds)
            before = time.process_time()
            model = new_model(kind, options)
            train, validation = (samples.take(part) for part in _two(parts[name]))
            try:
                model.fit(train, validation, seed=seed)
            except NotApplicableError:
                continue
            values = judge(validation, model.predict(validation))
            metrics = {
                key: float(values[key]) for key in ("mape", "median_ape", "spearman_by_task")
            }
            cpu_s = time.process_time() - before
            done.append(Trial(kind, len(scores), name, settings, metrics, cpu_s))
            if on_trial:
                on_trial(done[-1])
        if not done:
            raise UsageError(
                f"{kind} can be used on none of {', '.join(datasets)}; give another data set with "
                "--data NAME=DIR"
            )
        trials.extend(done)
        scores.append((_score(kind, done), settings))
    return trials, min(scores, key=lambda entry: entry[0])[1]


def write_trials(path: Path, trials: Iterable[Trial], best: Mapping[str, dict[str, Any]]) -> None:
    """Writes the trials as CSV; `chosen` is 1 for the best settings of a kind."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trial in trials:
        values = [f"{trial.metrics[key]:.6g}" for key in COLUMNS[4:7]]
        chosen = int(best.get(trial.kind) == trial.settings)
        settings = json.dumps(trial.settings, sort_keys=True)
        writer.writerow(
            [
                trial.kind,
                trial.trial,
                trial.dataset,
                settings,
                *values,
                f"{trial.cpu_s:.1f}",
                chosen,
            ]
        )
    write_text(path, text.getvalue())


def write_preset(path: Path, kind: str, settings: Mapping[str, Any]) -> None:
    """Writes a preset that changes only these settings, on top of one that is there."""
    values: dict[str, Any] = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}
    values["model"] = kind
    for name, value in settings.items():
        target = values.setdefault(kind.replace("-", "_"), {})
        *folders, last = name.split(".")
        for folder in folders:
            target = target.setdefault(folder, {})
        target[last] = list(value) if isinstance(value, tuple) else value
    head = "# Chosen on validation parts by `make tune-peers`; see docs/results/peer-tuning.csv.\n"
    write_text(path, head + yaml.safe_dump(values, sort_keys=False))


def _with(
    options: TrainOptions, kind: str, settings: Mapping[str, Any], trial_seconds: float
) -> TrainOptions:
    """Returns the options with the settings of one kind and the budget of a trial."""
    field = kind.replace("-", "_")
    values: dict[str, Any] = {}
    for name, value in settings.items():
        target = values
        *folders, last = name.split(".")
        for folder in folders:
            target = target.setdefault(folder, {})
        target[last] = value
    own = getattr(options, field)
    if hasattr(own, "loop"):
        values.setdefault("loop", {})["cpu_seconds"] = trial_seconds
    return replace(options, **{field: from_dict(type(own), values, base=own)})


def _two(parts: Any) -> tuple[Any, Any]:
    return parts.train, parts.validation


def _score(kind: str, trials: Sequence[Trial]) -> float:
    """Returns the geometric mean of what a kind should have little of."""
    if kind.endswith("-rank"):
        losses = [1.0 - trial.metrics["spearman_by_task"] for trial in trials]
    else:
        losses = [trial.metrics["mape"] for trial in trials]
    return float(np.exp(np.mean(np.log(np.maximum(losses, 1e-9)))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Tunes the kinds and writes the trials and the presets; returns the exit code."""
    parser = argparse.ArgumentParser(description="tune the peers on validation parts")
    parser.add_argument("--data", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--kinds", default=",".join(SPACES))
    parser.add_argument("--minutes", type=float, default=10.0, help="CPU minutes for each kind")
    parser.add_argument("--trial-seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/peer-tuning.csv"))
    parser.add_argument("--configs", type=Path, default=Path("configs/models"))
    chosen = parser.parse_args(arguments)
    try:
        datasets = {}
        for entry in chosen.data:
            name, separator, folder = entry.partition("=")
            if not separator:
                raise UsageError(f"--data {entry!r}: expected NAME=DIR")
            datasets[name] = load_samples(Path(folder))
        trials: list[Trial] = []
        best: dict[str, dict[str, Any]] = {}
        for kind in chosen.kinds.split(","):
            preset = chosen.configs / f"{kind}.yaml"
            done, best[kind] = tune(
                kind,
                datasets,
                cpu_seconds=60.0 * chosen.minutes,
                trial_seconds=chosen.trial_seconds,
                seed=chosen.seed,
                base=load_config(TrainOptions, preset) if preset.exists() else None,
                on_trial=_print_trial,
            )
            trials.extend(done)
            write_trials(chosen.out, trials, best)
            write_preset(preset, kind, best[kind])
    except CdmppError as error:
        print(f"error: {error}")
        return error.exit_code
    return 0


def _print_trial(trial: Trial) -> None:
    values = " ".join(f"{name} {value:.3f}" for name, value in trial.metrics.items())
    print(f"{trial.kind} {trial.trial} {trial.dataset}: {values} {trial.settings}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
