"""A searchable setting, and the conversion between chosen values and `TrainOptions`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.trial import Trial

from cdmpp.config import from_dict
from cdmpp.programs.added_columns import EXTRA_BLOCKS
from cdmpp.training.options import TrainOptions

Group = Literal[
    "model", "loss", "label", "optimiser", "schedule", "batch", "regulariser", "leaf-blocks"
]
#: How a setting maps to an option: `value` = the option itself; `block` = whether a tuple contains
#: that block; `count` and `width` = a tuple of equal layer widths.
Part = Literal["value", "block", "count", "width"]
#: Name of the parameter for the kind of model, in studies with several kinds.
MODEL = "model"

_log = logging.getLogger("cdmpp")


@dataclass(frozen=True)
class SettingCondition:
    """The condition under which a setting is searched.

    Attributes:
        path: path of an earlier setting in the space.
        values: values of that setting that meet the condition.
    """

    path: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Setting:
    """A number in a range, or a choice of values.

    Attributes:
        path: path as in `--set`, e.g. `transformer.loop.learning_rate`; also its name in the
            study.
        group: group that it belongs to.
        choices: the values; empty = a number from `low` to `high`.
        low: minimum.
        high: maximum.
        is_log: whether the scale is logarithmic.
        is_whole: whether the number is an integer.
        when: condition; None = always searched.
        part: see `Part`; the path of a part ends with the name of the block, `count` or `width`.
    """

    path: str
    group: Group
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    is_whole: bool = False
    when: SettingCondition | None = None
    part: Part = "value"

    def ask(self, trial: Trial) -> Any:
        """Returns the value that the study's sampler chooses."""
        if self.choices:
            labels = [_label(choice) for choice in self.choices]
            chosen: Any = trial.suggest_categorical(self.path, labels)
            return self.choices[labels.index(chosen)]
        if self.is_whole:
            return trial.suggest_int(self.path, int(self.low), int(self.high), log=self.is_log)
        return trial.suggest_float(self.path, self.low, self.high, log=self.is_log)

    def recorded(self, value: Any) -> Any:
        """Returns a value as the study stores it; a number outside the range is clipped to it.

        Returns None, with a warning, for a value that is not among the choices.
        """
        if self.choices:
            if value in self.choices:
                return _label(value)
            _log.warning(
                "%s = %s is not among the choices; the sampler chooses it", self.path, value
            )
            return None
        inside = min(max(value, self.low), self.high)
        if inside != value:
            _log.warning("%s = %s is outside the space; taken as %s", self.path, value, inside)
        return int(inside) if self.is_whole else float(inside)

    def applies(self, values: Mapping[str, Any], options: TrainOptions) -> bool:
        """Whether the setting is searched.

        Args:
            values: values of the earlier settings.
            options: values of the settings that are not searched.
        """
        if self.when is None:
            return True
        path = self.when.path
        decides = values[path] if path in values else _value_at(options, path)
        return decides in self.when.values


def chosen_values(space: Sequence[Setting], trial: Trial, options: TrainOptions) -> dict[str, Any]:
    """Returns path -> value of the settings whose condition holds, chosen in order."""
    values: dict[str, Any] = {}
    for setting in space:
        if setting.applies(values, options):
            values[setting.path] = setting.ask(trial)
    return values


def recorded_values(space: Sequence[Setting], options: TrainOptions) -> dict[str, Any]:
    """Returns path -> stored value of the settings in `options`, to start a study with."""
    values: dict[str, Any] = {}
    recorded: dict[str, Any] = {}
    for setting in space:
        if not setting.applies(values, options):
            continue
        values[setting.path] = value = _present(setting, options)
        entry = None if value is None and setting.part != "value" else setting.recorded(value)
        if entry is not None:
            recorded[setting.path] = entry
    return recorded


def with_values(
    options: TrainOptions, space: Sequence[Setting], values: Mapping[str, Any]
) -> TrainOptions:
    """Returns the options with the chosen values."""
    changes: dict[str, Any] = {}
    tuples: dict[str, Any] = {}
    for setting in space:
        if setting.path not in values:
            continue
        value = values[setting.path]
        parent, _, last = setting.path.rpartition(".")
        if setting.part == "value":
            tuples[setting.path] = list(value) if isinstance(value, tuple) else value
        elif setting.part == "block":
            tuples.setdefault(parent, [])
            if value:
                tuples[parent].append(last)
        else:
            tuples.setdefault(parent, {})[last] = value
    for path, value in tuples.items():
        if isinstance(value, dict):
            value = [value["width"]] * value["count"]
        if path.endswith("extra_blocks") and value is not None and set(value) == set(EXTRA_BLOCKS):
            value = None
        target = changes
        *folders, last = path.split(".")
        for folder in folders:
            target = target.setdefault(folder, {})
        target[last] = value
    return from_dict(TrainOptions, changes, base=options)


def _present(setting: Setting, options: TrainOptions) -> Any:
    """Returns the value of a setting in the options; None for a tuple of unequal widths."""
    path = setting.path if setting.part == "value" else setting.path.rpartition(".")[0]
    value = _value_at(options, path)
    last = setting.path.rpartition(".")[2]
    if setting.part == "block":
        return value is None or last in value
    if setting.part == "count":
        return len(value)
    if setting.part == "width":
        return value[0] if len(set(value)) == 1 else None
    return value


def _value_at(options: TrainOptions, path: str) -> Any:
    value: Any = options
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _label(choice: Any) -> str | float | int | bool:
    """Returns a choice as a type that the storage supports."""
    if isinstance(choice, str | float | int | bool):
        return choice
    return json.dumps(choice)
