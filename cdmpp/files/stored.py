"""Conversion of fitted models to JSON and back: the dataclass is the format.

A field becomes an entry of the same name, or of the name `entry` in its metadata. An array becomes
a list, a number that is not finite becomes null, and an enum member its name. A field whose value
and default are None is omitted. A class can define its own form with `to_json` and a class method
`from_json`.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json

Model = TypeVar("Model")


def to_json(value: Any) -> Any:
    """Returns a value as plain JSON types."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        found = ((one, getattr(value, one.name)) for one in fields(value))
        return {
            _entry(one): to_json(own)
            for one, own in found
            if own is not None or one.default is not None
        }
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.ndarray):
        return to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {_key(name): to_json(own) for name, own in value.items()}
    if isinstance(value, frozenset):
        return [to_json(own) for own in sorted(value)]
    return [to_json(own) for own in value] if isinstance(value, tuple | list) else value


def from_json(kind: type[Model], value: Any) -> Model:
    """Returns the object that `to_json` converted to `value`.

    Args:
        kind: a dataclass.

    Raises:
        KeyError, ValueError, TypeError: an entry is missing or has another form.
    """
    return cast(Model, _build(kind, value))


def read_model(
    kind: type[Model],
    path: Path,
    *,
    what: str,
    again: str,
    format: str | int,
    entry: str = "format",
) -> Model:
    """Returns the model of a JSON file.

    Args:
        kind: a dataclass.
        what: description of the model, for the error texts.
        again: how to create such a file, for the error texts.
        format: expected value of the file's `entry`.

    Raises:
        DataError: the file is missing, damaged or of another format.
    """
    value = read_json(path, what=what, hint=again)
    got = value.get(entry) if isinstance(value, dict) else type(value).__name__
    if got != format:
        raise DataError(f"{path} has {entry} {got!r:.80}, expected {format!r} ({what}); {again}")
    try:
        return from_json(kind, value)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: cannot read the {what} ({error!r:.200}); {again}") from None


def _entry(field: Any) -> str:
    return str(field.metadata.get("entry", field.name))


def _key(name: Any) -> str:
    return name.name if isinstance(name, Enum) else str(name)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _build(hint: Any, value: Any) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if hasattr(origin, "__value__"):  # numpy 2.5: NDArray is a generic type alias
        hint = origin.__value__[parts]
        origin, parts = get_origin(hint), get_args(hint)
    if hint is Any or (value is None and types.NoneType in parts):
        return value
    if origin in (Union, types.UnionType):
        return _build_one_of([part for part in parts if part is not types.NoneType], value)
    if origin is np.ndarray:
        return np.array(value, get_args(parts[1])[0])
    if hasattr(hint, "from_json"):
        return hint.from_json(value)
    if is_dataclass(hint):
        hints = _hints(cast(type, hint))
        return cast(Any, hint)(
            **{
                one.name: _build(hints[one.name], value[_entry(one)])
                for one in fields(hint)
                if _entry(one) in value or one.default is one.default_factory is MISSING
            }
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint[value]
    if origin in (dict, Mapping):
        return {_build(parts[0], name): _build(parts[1], own) for name, own in value.items()}
    if origin is tuple and parts[-1] is not ...:
        return tuple(_build(part, own) for part, own in zip(parts, value, strict=True))
    if origin in (tuple, list, frozenset):
        return origin(_build(parts[0], own) for own in value)
    if origin is Literal and value not in parts:
        raise ValueError(f"{value!r} is unknown; expected one of {', '.join(map(repr, parts))}")
    return hint(value) if hint in (int, float, str) else value


def _build_one_of(kinds: list[Any], value: Any) -> Any:
    for kind in kinds[:-1]:
        try:
            return _build(kind, value)
        except (KeyError, ValueError, TypeError):
            continue
    return _build(kinds[-1], value)
