"""Checks of the types of arguments, with errors in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any

from cdmpp.errors import UsageError
from cdmpp.text import shortened

#: Types of a path.
PATH = str | Path


def check_type(name: str, value: object, kinds: type | UnionType, expected: str) -> None:
    """Checks that an argument has one of the types.

    Args:
        expected: description of an allowed value, for the error message.

    Raises:
        UsageError: the value has another type.
    """
    if not isinstance(value, kinds):
        raise UsageError(f"{name} is {shortened(repr(value), 60)}, expected {expected}")


def check_machine_code(value: object) -> None:
    """Checks an argument `machine_code`.

    Raises:
        UsageError: the value is not True, False or None.
    """
    check_type("machine_code", value, bool | None, "True, False or None")


def several(name: str, given: Any, kinds: type | UnionType, expected: str) -> tuple[Any, ...]:
    """Returns the values of an argument that is one value or several.

    Args:
        kinds, expected: of a single value, see `check_type`.

    Raises:
        UsageError: a value has another type.
    """
    if isinstance(given, kinds):
        return (given,)
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    for one in found:
        check_type(name, one, kinds, f"{expected}, or a list of these")
    return found


def labels_of(device: Any) -> tuple[str, ...]:
    """Returns the labels of an argument `device`.

    Raises:
        UsageError: a value is not a label.
    """
    return several("device", device, str, "a label")
