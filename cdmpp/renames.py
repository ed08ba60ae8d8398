"""Old names and those that replace them; an old one works for one minor release."""

from __future__ import annotations

from typing import Any

#: Option of a command -> the option that replaces it.
OPTIONS = {
    "--from-nothing": "--from-scratch",
    "--judge": "--evaluate",
    "--most-programs": "--max-programs",
}
#: Key of `--json` -> the key that replaces it; both are printed.
JSON_KEYS = {"judged": "evaluated"}


def current_option(word: str) -> str:
    """Returns a word of a command line, an old option (also `--old=VALUE`) by its current name."""
    name, equals, value = word.partition("=")
    return f"{OPTIONS.get(name, name)}{equals}{value}"


def with_old_keys(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a JSON object with the old name of every key beside the current one."""
    old = {before: row[now] for before, now in JSON_KEYS.items() if now in row}
    return {**row, **old}
