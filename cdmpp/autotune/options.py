"""Options of a study; the files in `configs/autotune` mirror them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cdmpp.autotune.settings import Group, Setting
from cdmpp.autotune.spaces import space_of
from cdmpp.config import from_dict, load_config, to_dict
from cdmpp.errors import UsageError
from cdmpp.text import nearest
from cdmpp.training.options import TrainOptions

ObjectiveKind = Literal["mape", "error-and-order", "error-and-time"]
SamplerKind = Literal["tpe", "random"]
PrunerKind = Literal["none", "percentile", "hyperband"]


@dataclass(frozen=True)
class ObjectiveOptions:
    """The objective that a study minimises, on the validation part.

    Attributes:
        kind: `mape`; `error-and-order`: MAPE after the best common factor (independent of the scale
            of the latencies) + `order_weight` (1 - Spearman within tasks); `error-and-time`: two
            objectives, MAPE and the seconds per prediction. Optuna prunes only studies with one
            objective.
        order_weight: see `kind`.
    """

    kind: ObjectiveKind = "mape"
    order_weight: float = 0.5


@dataclass(frozen=True)
class PrunerOptions:
    """Early stopping of bad trials.

    Attributes:
        kind: `percentile` ends a trial whose best value so far is worse than the `keep_percent`
            percentile of earlier trials at the same epoch; `hyperband` runs many trials for few
            epochs and few trials to the end.
        keep_percent: see `kind`, in (0, 100).
        first_epoch: first epoch at which a trial may be ended; `hyperband`: the lowest rung.
        startup_trials: finished trials before `percentile` starts.
    """

    kind: PrunerKind = "percentile"
    keep_percent: float = 50.0
    first_epoch: int = 2
    startup_trials: int = 4


@dataclass(frozen=True)
class AutotuneOptions:
    """Options of a study.

    Attributes:
        name: name of the study in its storage.
        train: data, split, seed and initial settings; settings that are not searched keep these
            values.
        kinds: kinds of models to choose from; empty = `train.model`.
        presets: YAML files of `configs/models` that are tried right after `train`.
        groups: groups of settings to search; empty = all.
        exclude: prefixes of paths that are not searched, e.g. `transformer.network.members`.
        trial_settings: `a.b=c`, for the trials but not for the training of the winner, e.g. fewer
            epochs.
        objective: quantity to minimise.
        sampler: `tpe`, or `random` for comparison.
        startup_trials: random trials before `tpe` starts.
        pruner: early stopping of trials.
        seed: seed of the sampler; a trial's random state depends only on it and the trial's slot.
        trials: total number of trials, including presets.
        minutes: wall time limit; running trials are put back and rerun by the next run.
            0 = no limit.
        cpu_minutes: limit of the CPU time of all trials together; 0 = no limit.
        most_parameters: larger networks are not trained (for the ensemble, its transformer
            counts); 0 = no limit.
        most_trial_cpu_s: CPU seconds of a trial, including evaluation; 0 = no limit.
        lease_s: seconds without a renewal after which a worker counts as dead and its trial is
            rerun.
        most_deaths: number of worker deaths after which a trial is not rerun.
    """

    name: str = "autotune"
    train: TrainOptions = field(default_factory=TrainOptions)
    kinds: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    exclude: tuple[str, ...] = ()
    trial_settings: tuple[str, ...] = ()
    objective: ObjectiveOptions = field(default_factory=ObjectiveOptions)
    sampler: SamplerKind = "tpe"
    startup_trials: int = 8
    pruner: PrunerOptions = field(default_factory=PrunerOptions)
    seed: int = 0
    trials: int = 50
    minutes: float = 0.0
    cpu_minutes: float = 0.0
    most_parameters: int = 0
    most_trial_cpu_s: float = 0.0
    lease_s: float = 60.0
    most_deaths: int = 3

    def tuned_kinds(self) -> tuple[str, ...]:
        """Returns the kinds of models to choose from."""
        return self.kinds or (self.train.model,)

    def space(self, kind: str) -> tuple[Setting, ...]:
        """Returns the settings of a kind to search.

        Raises:
            UsageError: there are none.
        """
        return space_of(kind, groups=self.groups, exclude=self.exclude)

    def is_two_objectives(self) -> bool:
        """Whether the result is a Pareto front instead of one best trial."""
        return self.objective.kind == "error-and-time"


def check_options(options: AutotuneOptions) -> None:
    """Checks constraints between the options.

    Raises:
        UsageError: an invalid value, or values that exclude each other.
    """
    if options.is_two_objectives() and options.pruner.kind != "none":
        raise UsageError(
            f"pruner.kind is {options.pruner.kind} with the two objectives of error-and-time; "
            "Optuna prunes studies with one objective only; expected --set pruner.kind=none"
        )
    if options.train.model not in options.tuned_kinds():
        raise UsageError(
            f"train.model is {options.train.model!r}, expected one of the kinds "
            f"{', '.join(options.tuned_kinds())}, to start with; give --set train.model="
        )
    for name, least in (("trials", 1), ("most_deaths", 1), ("startup_trials", 1)):
        if getattr(options, name) < least:
            raise UsageError(f"{name} is {getattr(options, name)}, expected at least {least}")
    for name, least in (("first_epoch", 1), ("startup_trials", 0)):
        value = getattr(options.pruner, name)
        if value < least:
            raise UsageError(f"pruner.{name} is {value}, expected at least {least}")
    for name in ("minutes", "cpu_minutes", "most_parameters", "most_trial_cpu_s"):
        if not 0 <= getattr(options, name) < math.inf:
            raise UsageError(
                f"{name} is {getattr(options, name)}, expected a number from 0 (no limit) up"
            )
    if not options.lease_s > 0:
        raise UsageError(f"lease_s is {options.lease_s}, expected seconds above 0, e.g. 60")
    if not 0 < options.pruner.keep_percent < 100:
        raise UsageError(
            f"pruner.keep_percent is {options.pruner.keep_percent}, expected a number between 0 "
            "and 100"
        )
    trees = [kind for kind in options.tuned_kinds() if kind.startswith("gbdt")]
    if options.most_parameters and trees:
        raise UsageError(
            f"most_parameters is {options.most_parameters}, but {trees[0]} has no parameter "
            "count before training; limit it with most_trial_cpu_s, or leave the kind out"
        )
    paths = [setting.path for kind in options.tuned_kinds() for setting in space_of(kind)]
    for name in options.exclude:
        if not any(f"{path}.".startswith(f"{name}.") for path in paths):
            raise UsageError(
                f"exclude has {name!r}, expected the beginning of a searched setting"
                f"{nearest(name, paths)}; they are {', '.join(paths)}"
            )
    for kind in options.tuned_kinds():
        options.space(kind)
    beginnings(options)
    for kind in options.tuned_kinds():
        trial_options(options, replace(options.train, model=kind))


def beginnings(options: AutotuneOptions) -> list[TrainOptions]:
    """Returns the settings to try first: those of `train`, then the presets.

    Raises:
        UsageError: a preset cannot be read, or its kind is not searched.
    """
    found = [options.train]
    for name in options.presets:
        preset = load_config(TrainOptions, Path(name), base=options.train)
        if preset.model not in options.tuned_kinds():
            raise UsageError(
                f"the preset {name} is of model {preset.model}, expected one of "
                f"{', '.join(options.tuned_kinds())}; add its kind to kinds"
            )
        found.append(preset)
    return found


def trial_options(options: AutotuneOptions, train: TrainOptions) -> TrainOptions:
    """Returns the options of a trial's training: `train` with the trial settings.

    Raises:
        UsageError: a setting is unknown or has the wrong type.
    """
    return load_config(TrainOptions, overrides=options.trial_settings, base=train)


def preset_values(train: TrainOptions) -> dict[str, Any]:
    """Returns the content of a file for `configs/models` with these options: the kind of model, and
    its settings that differ from the defaults.
    """
    part = train.model.replace("-", "_")
    values: dict[str, Any] = {"model": train.model}
    default = from_dict(TrainOptions, {})
    changed = _difference(to_dict(getattr(train, part)), to_dict(getattr(default, part)))
    return {**values, part: changed} if changed else values


def _difference(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        default = defaults[name]
        if isinstance(value, dict):
            inner = _difference(value, default)
            if inner:
                found[name] = inner
        elif value != default:
            found[name] = value
    return found


def fixed_facts(options: AutotuneOptions) -> dict[str, Any]:
    """Returns the options that a continued study must not change: all but limits and name."""
    free: Sequence[str] = (
        "name", "trials", "minutes", "cpu_minutes", "lease_s", "most_deaths",
    )  # fmt: skip
    return {name: value for name, value in to_dict(options).items() if name not in free}
