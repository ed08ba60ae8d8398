"""Checks of the fields of calls."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cdmpp.errors import UsageError


def check_sizes(call: Any, may_be_zero: tuple[str, ...] = ()) -> None:
    """Checks that every field except text is a whole number of at least 1 (or 0 if allowed).

    Raises:
        UsageError: a field is not.
    """
    for one in fields(call):
        size = getattr(call, one.name)
        if one.type == "str":
            continue
        least = 0 if one.name in may_be_zero else 1
        if type(size) is not int or size < least:
            raise UsageError(
                f"{type(call).__name__}: {one.name} is {size!r}; expected a whole number of at "
                f"least {least}"
            )


def check_word(call: Any, name: str, known: tuple[str | int, ...]) -> None:
    """Checks that a field has one of the known values.

    Raises:
        UsageError: it has another value.
    """
    value = getattr(call, name)
    if value not in known:
        expected = ", ".join(map(str, known))
        raise UsageError(f"{type(call).__name__}: {name} is {value!r}; expected one of {expected}")


def check_divides(call: Any, name: str, *parts: str) -> None:
    """Checks that a field is a multiple of the product of other fields.

    Raises:
        UsageError: it is not a multiple.
    """
    whole, product = getattr(call, name), 1
    for part in parts:
        product *= getattr(call, part)
    if whole % product:
        raise UsageError(
            f"{type(call).__name__}: {whole} {name} do not divide among {product} "
            f"({' x '.join(parts)}); expected a multiple"
        )
