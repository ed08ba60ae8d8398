"""Files of a search's folder: their names, and readers that need no TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.json_text import parse_json

SEARCH_FILE = "search.json"
FINAL_FILE = "final.json"
SUMMARY_FILE = "summary.json"
MODULE_FILE = "module.so"
SCHEDULES_FOLDER = "schedules"


def read_search(folder: Path) -> dict[str, Any]:
    """Returns the content of a search's settings file.

    Raises:
        DataError: there is no search, or its file is damaged.
    """
    return _read(folder / SEARCH_FILE, "fixed")


def read_final(folder: Path) -> dict[str, Any] | None:
    """Returns the timings of the final module; None if there are none.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / FINAL_FILE
    return _read(path, "trials") if path.is_file() else None


def _read(path: Path, needed: str) -> dict[str, Any]:
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
        value[needed]
    except FileNotFoundError:
        raise DataError(
            f"{path.parent}: not a search ({path.name} is missing); expected a folder of `cdmpp "
            "search --out`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: is damaged ({type(error).__name__}); expected a file of `cdmpp search`"
        ) from None
    found: dict[str, Any] = value
    return found
