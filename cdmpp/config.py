"""Configuration: frozen dataclasses, to which YAML files map one to one.

Values come from the dataclass defaults, then a YAML file, then `a.b=c` overrides.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cdmpp.errors import UsageError
from cdmpp.files.places import given_or_shipped
from cdmpp.files.yaml_text import parse_yaml
from cdmpp.text import nearest, shortened

Config = TypeVar("Config")

#: Largest seed that numpy's and Optuna's generators accept.
_MOST_SEED = 2**32 - 1


def load_config(
    cls: type[Config],
    yaml_path: Path | None = None,
    *,
    overrides: Iterable[str] = (),
    base: Config | None = None,
    given: Mapping[str, Any] | None = None,
) -> Config:
    """Returns a configuration from, in rising priority, the defaults (or `base`), the YAML file,
    `overrides` and `given`.

    Args:
        cls: a dataclass; fields may be nested dataclasses.
        yaml_path: file with a mapping; None = no file.
        overrides: texts `name=value` or `name.part=value`; the value is parsed as YAML.
        base: configuration to use instead of the defaults.
        given: field name -> value; a None value is ignored.

    Raises:
        UsageError: an unknown name (the message has the nearest one), a value of the wrong type, a
            seed below 0, a missing value, an unreadable file or a malformed override.
    """
    values: dict[str, Any] = {}
    if yaml_path is not None:
        values = read_yaml(yaml_path)
    for override in overrides:
        _apply_override(values, override)
    config = from_dict(cls, values, base=base)
    own = {name: value for name, value in (given or {}).items() if value is not None}
    return from_dict(cls, own, base=config)


def from_dict(
    cls: type[Config], values: Mapping[str, Any], *, base: Config | None = None
) -> Config:
    """Returns an instance of the dataclass with these values; other fields come from `base` or the
    defaults.

    Raises:
        UsageError: see `load_config`.
    """
    return typing.cast(Config, _build(cls, values, base, where=""))


def given_fields(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that are fields of a dataclass and neither None nor an empty list; lists
    become tuples.
    """
    names = {field.name for field in dataclasses.fields(cls)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in names and value is not None and value != []
    }


def named_values(text: str, option: str, expected: str) -> dict[str, str]:
    """Returns name -> value of `NAME=VALUE,...`.

    Args:
        option: name of the option, for the error message.
        expected: description of a valid value, for the error message.

    Raises:
        UsageError: the text has another form, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, separator, value = (word.strip() for word in part.partition("="))
        if not (name and separator):
            raise UsageError(f"{option} {part!r}: expected {expected}")
        if name in found:
            raise UsageError(f"{option} {text!r} has {name} twice; expected {expected}")
        found[name] = value
    return found


def to_dict(config: Any) -> dict[str, Any]:
    """Returns a dataclass as plain values for YAML and JSON."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def dump_text(config: Any) -> str:
    """Returns a configuration as YAML text, fields in order of declaration."""
    # No allow_unicode: it writes U+0085 unescaped, which is read back as a space.
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the mapping in a YAML file (the user's or a shipped one); empty for an empty file.

    Raises:
        UsageError: the file cannot be read, is not YAML or is not a mapping.
    """
    try:
        value = parse_yaml(given_or_shipped(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: cannot read the configuration ({error.strerror}); give an existing YAML file"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path}: not YAML ({error}); correct the file") from None
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(
            f"{path}: expected a mapping of names to values, got {type(value).__name__}"
        )
    return value


def _apply_override(values: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    parts = name.strip().split(".")
    if not separator or not all(parts):
        raise UsageError(f"override {override!r}: expected NAME=VALUE, e.g. --set training.seed=1")
    try:
        value = parse_yaml(text)
    except ValueError:
        value = text
    target = values
    for part in parts[:-1]:
        inner = target.get(part)
        if not isinstance(inner, dict):
            inner = {}
            target[part] = inner
        target = inner
    target[parts[-1]] = value


def _build(cls: Any, values: Any, base: Any, *, where: str) -> Any:
    """Returns an instance of `cls`; `where` is the dotted name with a final dot, for messages."""
    if not isinstance(values, Mapping):
        raise UsageError(
            f"{where.rstrip('.') or 'configuration'}: expected a mapping of names to values, "
            f"got {_show(values)}"
        )
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in fields:
            known = ", ".join(where + field for field in fields)
            near = nearest(str(name), fields, before=where)
            raise UsageError(f"unknown setting {where}{name}{near} (known: {known})")
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        default = getattr(base, name) if base is not None else _default(field)
        if name in values:
            value = _convert(hints[name], values[name], default, where=f"{where}{name}")
            if name == "seed" and isinstance(value, int) and not 0 <= value <= _MOST_SEED:
                raise _wrong(f"{where}{name}", value, f"a whole number from 0 to {_MOST_SEED}")
            arguments[name] = value
        elif default is not dataclasses.MISSING:
            arguments[name] = default
        else:
            raise UsageError(
                f"setting {where}{name} has no default; give it with --set {where}{name}="
            )
    return cls(**arguments)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _convert(hint: Any, value: Any, default: Any, *, where: str) -> Any:
    """Returns the value converted to the type of the hint.

    Raises:
        UsageError: the value has another type.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        base = default if dataclasses.is_dataclass(default) else None
        return _build(hint, value, base, where=f"{where}.")
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, default, where=where)
    if origin is typing.Literal:
        if value in arguments:
            return value
        names = [str(argument) for argument in arguments]
        near = nearest(str(value), names)
        raise UsageError(
            f"setting {where} is {_show(value)}, expected one of {', '.join(names)}{near}"
        )
    if origin in (list, tuple) or hint in (list, tuple):
        return _convert_sequence(hint, value, where=where)
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise _wrong(where, value, "a mapping")
        inner = arguments[1] if arguments else Any
        return {
            str(key): _convert(inner, item, dataclasses.MISSING, where=f"{where}.{key}")
            for key, item in value.items()
        }
    return _convert_scalar(hint, value, where=where)


def _convert_union(options: tuple[Any, ...], value: Any, default: Any, *, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    for option in options[:-1]:
        try:
            return _convert(option, value, default, where=where)
        except UsageError:
            continue  # the user sees the message of the last option
    return _convert(options[-1], value, default, where=where)


def _convert_sequence(hint: Any, value: Any, *, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _wrong(where, value, "a list")
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise _wrong(where, value, f"a list of {len(arguments)}")
        inner = list(arguments)
    else:
        inner = [arguments[0] if arguments else Any] * len(value)
    items = [
        _convert(item_hint, item, dataclasses.MISSING, where=f"{where}[{position}]")
        for position, (item_hint, item) in enumerate(zip(inner, value, strict=True))
    ]
    return tuple(items) if origin is tuple else items


def _convert_scalar(hint: Any, value: Any, *, where: str) -> Any:
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is float and not isinstance(value, bool):
        try:
            number = float(value)  # YAML parses 1e-3 as text
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    if hint is str and isinstance(value, str):
        return value
    if isinstance(hint, type) and issubclass(hint, Path) and isinstance(value, (str, Path)):
        return Path(value)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    raise _wrong(where, value, names.get(hint, getattr(hint, "__name__", str(hint))))


def _wrong(where: str, value: Any, expected: str) -> UsageError:
    return UsageError(f"setting {where} is {_show(value)}, expected {expected}")


def _show(value: Any) -> str:
    return shortened(repr(value), 60)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value
