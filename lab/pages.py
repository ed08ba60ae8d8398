"""The one page writer: NAME.md with its stamp, NAME.json and NAME.csv, and what git keeps of them.

Git keeps the pages. Of their tables it keeps one file, `pages.json`: the stamp of every page, and
the numbers that `claims.yaml` takes from its JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, write_json, write_text
from cdmpp.report.page import Page, page_html, page_markdown
from cdmpp.text import TIDY_COLUMNS, csv_text
from lab.paths import RESULTS
from lab.stamp import stamp_rows

#: In a folder of pages: page -> {"stamp": its stamp, "numbers": {path: value}}.
KEPT = "pages.json"


def filled(name: str, /, **found: str) -> str:
    """Returns a page of docs/results, without its stamp, with new text between its marks
    `<!-- KEY -->` and `<!-- /KEY -->`; the prose around them stays.

    Raises:
        DataError: the page has other marks than `found` has keys.
    """
    text = (RESULTS / f"{name}.md").read_text("utf-8").partition("\n## Stamp\n")[0]
    marked = re.compile(r"(<!-- (\w+) -->\n?).*?(\n?<!-- /\2 -->)", re.DOTALL)
    keys = {key for _, key, _ in marked.findall(text)}
    if keys != set(found):
        raise DataError(f"{name}.md has the marks {sorted(keys)}, expected {sorted(found)}")
    return marked.sub(lambda one: f"{one[1]}{found[one[2]]}{one[3]}", text)


def write_page(
    name: str,
    page: Page | str,
    values: Mapping[str, Any],
    found: Mapping[str, Any],
    *,
    rows: Iterable[Sequence[Any]] | None = None,
    has_html: bool = False,
    folder: Path = RESULTS,
) -> str:
    """Writes a page and its tables, and keeps its stamp.

    Args:
        page: a page, or its Markdown.
        values: of NAME.json.
        found: the stamp.
        rows: of `TIDY_COLUMNS`, for NAME.csv; None = the page has no such table.
        has_html: whether a `Page` is written as NAME.html too.

    Returns:
        The page as Markdown.
    """
    make_folder(folder, what="results")
    if isinstance(page, Page):
        page = replace(page, command=found["command"], facts=[*page.facts, *stamp_rows(found)])
        if has_html:
            write_text(folder / f"{name}.html", page_html(page))
        text = page_markdown(page)
    else:
        stamped = "\n".join(f"- {key}: {value}" for key, value in stamp_rows(found))
        text = f"{page.rstrip()}\n\n## Stamp\n\n{stamped}\n"
    write_text(folder / f"{name}.md", text)
    write_json(folder / f"{name}.json", {"stamp": found, **values})
    if rows is not None:
        write_text(folder / f"{name}.csv", tidy_csv(rows))
    keep(name, folder)
    return text


def tidy_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Returns rows of `TIDY_COLUMNS` as CSV, values with seven significant digits."""
    return csv_text(
        TIDY_COLUMNS,
        ((*place, None if value is None else f"{value:.7g}", n) for *place, value, n in rows),
    )


def keep(name: str, folder: Path = RESULTS) -> None:
    """Keeps the stamp of a page that was written, and the numbers that claims take from it."""
    value = json.loads((folder / f"{name}.json").read_text("utf-8"))
    numbers = {path: at(value, path, name) for path in _claimed(folder).get(name, ())}
    found = {**kept(folder), name: {"stamp": value.get("stamp"), "numbers": numbers}}
    write_json(folder / KEPT, dict(sorted(found.items())))


def kept(folder: Path = RESULTS) -> dict[str, Any]:
    """Returns what is kept of each page."""
    path = folder / KEPT
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def at(value: Any, path: str, page: str) -> Any:
    """Returns the value at a path `key/key/0` of a JSON value.

    Raises:
        DataError: nothing is there.
    """
    try:
        for key in path.split("/"):
            value = value[int(key)] if isinstance(value, list) else value[key]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise DataError(f"{page}.json has nothing at {path} ({error!r})") from None
    return value


@cache
def _claimed(folder: Path) -> Mapping[str, Sequence[str]]:
    """Returns page -> the paths in its JSON that claims name."""
    found: dict[str, list[str]] = {}
    path = folder / "claims.yaml"
    for claim in yaml.safe_load(path.read_text("utf-8")) if path.is_file() else ():
        found.setdefault(claim["page"], []).extend(_paths(claim["numbers"]))
    return found


def _paths(numbers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for number in numbers:
        if "at" in number:
            yield number["at"]
        yield from number.get("interval", ())
