"""Parses the values of `--batch` and `--input`."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.errors import UsageError

#: Maximum number of digits of a number, so that it fits into a float.
_MOST_DIGITS = 300


def parse_numbers(text: str | None, option: str) -> list[int]:
    """Returns the unique numbers of a text such as `1,8,32`; empty for None.

    Raises:
        UsageError: a part is not an integer of at least 1.
    """
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(map(_is_size, parts)):
        raise UsageError(f"{option} {text!r}, expected whole numbers from 1 up, e.g. 1,8,32")
    return list(dict.fromkeys(int(part) for part in parts))


def parse_shape(text: str) -> tuple[int, ...] | None:
    """Returns the shape of a text such as `3x224x224`; None if the text is not a shape."""
    parts = text.lower().split("x")
    return tuple(int(part) for part in parts) if all(map(_is_size, parts)) else None


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) >= 1


def parse_input_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Returns name -> full shape of inputs such as `images=1x3x224x224`; a missing name is "".

    Raises:
        UsageError: a text has another form, or a name occurs twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sides = text.rpartition("=")
        shape = parse_shape(sides)
        if shape is None:
            raise UsageError(
                f"--input {text!r}, expected NAME=SHAPE with the batch, e.g. images=1x3x224x224"
            )
        if name in found:
            raise UsageError(f"--input {text!r}: the input is given twice, expected once")
        found[name] = shape
    return found
