"""A bare FILE of a command: what is in it says which of the command's options it stands for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from cdmpp.replay.file_kind import FileKind, file_kind


def add_file(parser: argparse._ActionsContainer, takes: Mapping[FileKind, str]) -> None:
    """Adds FILE to a group of options of which one is given.

    Args:
        takes: kind of file -> the option that it stands for.
    """
    options = ", ".join(f"--{name}" for name in dict.fromkeys(takes.values()))
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help=f"instead of {options}; its kind is read from its content",
    )


def taken_file(file: str | None, takes: Mapping[FileKind, str]) -> dict[str, Path]:
    """Returns the option that a bare FILE stands for, with its value; nothing without a file.

    Raises:
        DataError: there is no such file, or nothing is known of its kind.
        UsageError: it is of a kind that another command takes.
    """
    if file is None:
        return {}
    path = Path(file)
    return {takes[file_kind(path, tuple(takes))]: path}
