"""Everything that decides a study; files under `configs/autotune` mirror it."""

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
from cdmpp.training.options import TrainOptions

ObjectiveKind = Literal["mape", "error-and-order", "error-and-time"]
SamplerKind = Literal["tpe", "random"]
PrunerKind = Literal["none", "percentile", "hyperband"]


@dataclass(frozen=True)
class ObjectiveOptions:
    """What a trial has least of; always on the validation part.

    Attributes:
        kind: `mape`; `error-and-order`, the MAPE after the best common factor (which does not
            depend on the scale of the latencies) + `order_weight` (1 - Spearman within tasks);
            `error-and-time`, two objectives: MAPE and the seconds that a prediction takes. Optuna
            prunes studies with one objective only.
        order_weight: see above.
    """

    kind: ObjectiveKind = "mape"
    order_weight: float = 0.5


@dataclass(frozen=True)
class PrunerOptions:
    """When a trial that does badly is ended early.

    Attributes:
        kind: `percentile` ends a trial whose best value so far is worse than that of `keep_percent`
            of the earlier trials at the same epoch; `hyperband` gives many trials few epochs and
            few trials all.
        keep_percent: see above, in (0, 100).
        first_epoch: no trial is ended before this epoch; the least rung of `hyperband`.
        startup_trials: finished trials before `percentile` begins.
    """

    kind: PrunerKind = "percentile"
    keep_percent: float = 50.0
    first_epoch: int = 2
    startup_trials: int = 4


@dataclass(frozen=True)
class AutotuneOptions:
    """A study.

    Attributes:
        name: of the study in its storage.
        train: data, split, seed, and the settings that the study begins with; what is not searched
            stays as it is here.
        kinds: kinds of models to choose from; empty = `train.model`.
        presets: YAML files of `configs/models` that are tried right after `train`.
        groups: parts that are searched; empty = all.
        exclude: beginnings of paths that are not searched, e.g. `transformer.network.members`.
        trial_settings: `a.b=c`, for the trials but not for the training of the winner, e.g. fewer
            epochs.
        objective: what is to be small.
        sampler: `tpe`, or `random` to compare with.
        startup_trials: trials drawn at random before `tpe` begins.
        pruner: when a trial is ended early.
        seed: of the sampler; each trial's draw depends on it and on the trial's number alone.
        trials: how many, presets included.
        minutes: wall time after which no trial goes on; it is put back and done by the next run.
            0 = no limit.
        cpu_minutes: the same for the CPU time of all trials together.
        most_parameters: a network with more is not trained (of the ensemble, its transformer
            counts); 0 = no limit.
        most_trial_cpu_s: CPU seconds of a trial, judging included; 0 = no limit.
        lease_s: seconds without a sign of life after which a worker counts as dead and its trial
            is done again.
        most_deaths: a trial whose worker dies that often is given up.
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
        """Returns the kinds of models that are chosen from."""
        return self.kinds or (self.train.model,)

    def space(self, kind: str) -> tuple[Setting, ...]:
        """Returns the settings of a kind that are searched.

        Raises:
            UsageError: there is none.
        """
        return space_of(kind, groups=self.groups, exclude=self.exclude)

    def is_two_objectives(self) -> bool:
        """Whether there is a front of best trials instead of one."""
        return self.objective.kind == "error-and-time"


def check_options(options: AutotuneOptions) -> None:
    """Checks what a dataclass cannot say.

    Raises:
        UsageError: values that do not go together.
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
    for kind in options.tuned_kinds():
        options.space(kind)
    beginnings(options)
    for kind in options.tuned_kinds():
        trial_options(options, replace(options.train, model=kind))


def beginnings(options: AutotuneOptions) -> list[TrainOptions]:
    """Returns the settings that are tried first: those of `train`, then the presets'.

    Raises:
        UsageError: a preset cannot be read or is of a kind that is not searched.
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
    """Returns the options of a trial's training: those given, with the trial settings.

    Raises:
        UsageError: a setting is unknown or of another type.
    """
    return load_config(TrainOptions, overrides=options.trial_settings, base=train)


def preset_values(train: TrainOptions) -> dict[str, Any]:
    """Returns what a file of `configs/models` says to get the model of these options: its kind, and
    its settings where they are not the default.
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
    """Returns what must be equal when a study is continued: all but limits and name."""
    free: Sequence[str] = (
        "name", "trials", "minutes", "cpu_minutes", "lease_s", "most_deaths",
    )  # fmt: skip
    return {name: value for name, value in to_dict(options).items() if name not in free}
