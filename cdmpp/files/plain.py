"""Dataclasses of numbers, text and arrays as JSON values, and back: what models keep of a fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

Value = TypeVar("Value")


def to_plain(value: Any) -> Any:
    """Returns a dataclass, array, mapping or sequence as JSON values; a number that is not finite
    is None.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(cls: type[Value], value: Mapping[str, Any]) -> Value:
    """Returns the dataclass that `to_plain` was given, with NaN for None in an array; entries that
    are no field are left out.

    Raises:
        KeyError: a field is missing.
        TypeError: a value is of another type; likewise ValueError.
    """
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    return cls(**{name: _converted(hints[name], value[name]) for name in names})


def _converted(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return from_plain(hint, value)  # type: ignore[arg-type]
    if origin is np.ndarray:
        (number_type,) = get_args(arguments[1])
        return np.array(value, number_type)
    if origin is tuple:
        each = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_converted(one, item) for one, item in zip(each, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _converted(arguments[1], item) for key, item in value.items()}
    return float(value) if hint is float else value
