"""Adds options to a parser from a table that reads like its help.

One option per line, with two spaces before its help; indented lines continue the help:

    --force                      flag without a value
    --out DIR: Path              value of a type (default: str)
    --seed N: int = 0            default value
    --policy fifo|lifo           choices
    --set NAME=VALUE...          may be repeated: a list
    --data DIR: Path required    required option
    --task TASK+ = []            one or more values, may be repeated: one list
    --from RUN as from_run       name of the attribute, if it differs from the option's

A line without an option that ends with a colon starts a group with this title.
"""

from __future__ import annotations

import argparse
import ast
import re
import textwrap
from pathlib import Path
from typing import Any

_TYPES = {"Path": Path, "int": int, "float": float}
_LINE = re.compile(
    r"(?P<flag>--[\w-]+)(?: (?P<value>\S+?)(?P<repeated>(?<!,)\.\.\.|\+)?(?:: (?P<type>\w+))?)?"
    r"(?: (?P<required>required))?(?: as (?P<dest>\w+))?(?: = (?P<default>\S+))?  +(?P<help>.*)"
)


def add_table(parser: argparse._ActionsContainer, table: str) -> argparse._ActionsContainer:
    """Adds the options of a table to a parser or group; returns the one that got the last option.

    Raises:
        ValueError: a line has another form.
    """
    place = parser
    for line in _joined(table):
        if line.endswith(":") and not line.startswith("--"):
            place = parser.add_argument_group(line[:-1])
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"no option: {line!r}")
        _add(place, **found.groupdict())
    return place


def _joined(table: str) -> list[str]:
    """Returns one line per option, with its continuation lines appended."""
    lines: list[str] = []
    for text in textwrap.dedent(table).splitlines():
        if text[:1].strip():
            lines.append(text)
        elif text.strip():
            lines[-1] += f" {text.strip()}"
    return lines


def _add(
    parser: argparse._ActionsContainer,
    flag: str,
    value: str | None,
    repeated: str | None,
    type: str | None,
    required: str | None,
    dest: str | None,
    default: str | None,
    help: str,
) -> None:
    given: dict[str, Any] = {"help": help}
    if default is not None:
        given["default"] = _literal(default)
    if dest is not None:
        given["dest"] = dest
    if value is None:
        parser.add_argument(flag, action="store_true", **given)
        return
    if re.fullmatch(r"[a-z][\w-]*(\|[a-z0-9][\w-]*)*", value):
        given["choices"] = tuple(value.split("|"))
    else:
        given["metavar"] = value
    convert = _TYPES.get(type or "", str)
    if isinstance(given.get("default"), str):
        given["default"] = convert(given["default"])
    if repeated:
        given |= {"action": "extend", "nargs": "+"} if repeated == "+" else {"action": "append"}
    parser.add_argument(flag, type=convert, required=required is not None, **given)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
