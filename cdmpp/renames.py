"""Renamed options and JSON keys. An old name works for one more minor release."""

from __future__ import annotations

from typing import Any

#: Old option -> current option.
OPTIONS = {
    "--from-nothing": "--from-scratch",
    "--judge": "--evaluate",
    "--most-programs": "--max-programs",
    "--sample": "--task",
}
#: Old key of `--json` -> current key; both are printed.
JSON_KEYS = {"judged": "evaluated"}


def current_option(word: str) -> str:
    """Returns a word of a command line with an old option (also `--old=VALUE`) renamed."""
    name, equals, value = word.partition("=")
    return f"{OPTIONS.get(name, name)}{equals}{value}"


def with_old_keys(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a JSON object with the renamed keys under both names."""
    old = {before: row[now] for before, now in JSON_KEYS.items() if now in row}
    return {**row, **old}
