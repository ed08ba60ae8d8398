"""A positional FILE of a command, which replaces an option according to the file's content."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from cdmpp.replay.file_kind import FileKind, file_kind


def add_file(parser: argparse._ActionsContainer, takes: Mapping[FileKind, str]) -> None:
    """Adds FILE to a mutually exclusive group of options.

    Args:
        takes: kind of file -> the option that it replaces.
    """
    options = ", ".join(f"--{name}" for name in dict.fromkeys(takes.values()))
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help=f"instead of {options}; its kind is read from its content",
    )


def taken_file(file: str | None, takes: Mapping[FileKind, str]) -> dict[str, Path]:
    """Returns the option that FILE replaces, with its value; empty without a file.

    Raises:
        DataError: the file is missing or its kind is unknown.
        UsageError: another command reads files of this kind.
    """
    if file is None:
        return {}
    path = Path(file)
    return {takes[file_kind(path, tuple(takes))]: path}
