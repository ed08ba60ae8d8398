"""Reading and writing the small files of a run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.atomic import write_atomic


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically.

    Raises:
        DataError: the file cannot be written.
    """

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomic(path, write)


def write_json(path: Path, value: Any) -> None:
    """Writes one JSON value atomically, keys in the order given.

    Raises:
        DataError: the file cannot be written.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path, *, what: str, hint: str) -> Any:
    """Returns the JSON value of a file.

    Args:
        what: what the file is, for the error text.
        hint: what to do when it is missing or damaged.

    Raises:
        DataError: the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"no {what} at {path} ({error.strerror or error}); {hint}") from error
    except ValueError as error:
        raise DataError(f"the {what} {path} is damaged ({error}); {hint}") from error
