"""Writes the full page of an experiment, and fills its quotations in docs/results.

`runs/results`, which git ignores, gets the full page: NAME.md, NAME.json, NAME.csv. The committed
pages in docs/results quote from it between marks:

    <!-- from NAME: heading > heading // row; row // column => new title; column -->
    <!-- stamp of NAME -->

each up to `<!-- end -->`. The first mark quotes a table below the headings: the rows that begin
with these words and the columns with these titles, or all if none are given. `heading => label +
heading => label` joins tables and adds a column of labels. `text: words` in place of rows quotes
the lines that begin with these words. The second mark gives the command, date and machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, write_json, write_text
from cdmpp.report.page import Page, page_markdown
from cdmpp.text import TIDY_COLUMNS, csv_text
from lab.paths import PAGES, RESULTS
from lab.stale import provenance
from lab.stamp import STAMPS, stamp_rows, stamps

_TEXT = "text: "
MARKED = re.compile(
    r"(<!-- (from|stamp of) ([\w-]+)(?:: (.+?))? -->\n).*?(<!-- end -->)", re.DOTALL
)


def sections(name: str, /, **found: str) -> str:
    """Returns a page with one section per text."""
    return "\n\n".join([f"# {name}", *(f"## {key}\n\n{text}" for key, text in found.items())])


def write_page(
    name: str,
    page: Page | str,
    values: Mapping[str, Any],
    found: Mapping[str, Any],
    *,
    rows: Iterable[Sequence[Any]] | None = None,
    folder: Path = RESULTS,
) -> str:
    """Writes a full page and its tables; stores its stamp and fills docs/results if quoted there.

    Args:
        page: a page, or its Markdown.
        values: content of NAME.json.
        found: the stamp.
        rows: rows of `TIDY_COLUMNS` for NAME.csv; None for no such table.
        folder: docs/results is only filled for `RESULTS`.

    Returns:
        The page as Markdown.
    """
    make_folder(folder, what="results")
    if isinstance(page, Page):
        page = replace(page, command=found["command"], facts=[*page.facts, *stamp_rows(found)])
        text = page_markdown(page)
    else:
        stamped = "\n".join(f"- {key}: {value}" for key, value in stamp_rows(found))
        text = f"{page.rstrip()}\n\n## Stamp\n\n{stamped}\n"
    write_text(folder / f"{name}.md", text)
    write_json(folder / f"{name}.json", {"stamp": found, **values})
    if rows is not None:
        write_text(folder / f"{name}.csv", tidy_csv(rows))
    if folder.resolve() == RESULTS and name in on_pages():
        write_json(PAGES / STAMPS, dict(sorted({**stamps(PAGES), name: found}.items())))
        fill(name)
    return text


def tidy_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Returns rows of `TIDY_COLUMNS` as CSV, values with seven significant digits."""
    return csv_text(
        TIDY_COLUMNS,
        ((*place, None if value is None else f"{value:.7g}", n) for *place, value, n in rows),
    )


def on_pages() -> dict[str, str]:
    """Returns name of a full page -> the committed page that quotes it."""
    marks = ((path.stem, MARKED.findall(path.read_text("utf-8"))) for path in PAGES.glob("*.md"))
    return {one[2]: stem for stem, found in marks for one in found if one[1] == "stamp of"}


def fill(only: str = "") -> None:
    """Fills the marks of the committed pages, or only those of one full page."""
    for path in PAGES.glob("*.md"):
        before = path.read_text("utf-8")
        if (text := filled(before, RESULTS, stamps(PAGES), only)) != before:
            write_text(path, text)


def filled(text: str, results: Path, known: Mapping[str, Any], only: str = "") -> str:
    """Returns a committed page with its marks filled; marks without a full page are unchanged.

    Args:
        results: folder of full pages.
        known: name -> stamp.
        only: name whose marks are filled; empty for all.

    Raises:
        DataError: a full page lacks the rows or columns.
    """

    def part(mark: re.Match[str]) -> str:
        start, kind, name, place, end = mark.groups()
        if only not in ("", name):
            return mark[0]
        path = results / f"{name}.md"
        if kind == "stamp of":
            return f"{start}{provenance(name, known.get(name))}\n{end}"
        return f"{start}{quoted(path, place)}\n{end}" if path.is_file() else mark[0]

    return MARKED.sub(part, text)


def quoted(path: Path, place: str) -> str:
    """Returns parts of a full page: `heading > heading + heading // row; row // column; column`.

    Raises:
        DataError: they are not there.
    """
    headings, rows, columns = [*re.split(" ?// ?", place), "", ""][:3]
    content = path.read_text("utf-8")
    parts = [part.partition(" => ") for part in headings.split(" + ")]
    found: list[str] = []
    for heading, _, label in parts:
        lines = _below(content, heading.split(" > "))
        if rows.startswith(_TEXT):
            wanted = tuple(rows.removeprefix(_TEXT).split("; "))
            own = [line for line in lines if line.startswith(wanted)]
            own = [re.sub("^- ", f"- {label}: ", line) if label else line for line in own]
        else:
            own = _cut(lines, rows, columns, label)
            own = own[2:] if found else own
        if not own:
            raise DataError(f"{path}: no {rows or 'table'} below {heading!r}")
        found += own
    return "\n".join(found)


def _cut(lines: Iterable[str], rows: str, columns: str, label: str) -> list[str]:
    """Returns these rows and columns of the first table that has them; empty if none has."""
    wanted = tuple(rows.split("; "))
    titles = [one.partition(" => ") for one in columns.split("; ")] if columns else []
    for head, ruler, *body in _tables(lines):
        names = titles or [(title, "", "") for title in head]
        if not {name for name, *_ in names} <= set(head):
            continue
        chosen = [row for row in body if " | ".join(row).startswith(wanted)]
        numbers = [head.index(name) for name, *_ in names] if titles else range(len(head))
        cut = [[row[number] for number in numbers] for row in (ruler, *chosen)]
        cut.insert(0, [new or name for name, _, new in names])
        if label:
            cut = [
                [one, *row]
                for one, row in zip(("", ":--", *[label] * len(chosen)), cut, strict=True)
            ]
        return [f"| {' | '.join(row)} |" for row in cut] if chosen else []
    return []


def _below(text: str, headings: Iterable[str]) -> list[str]:
    """Returns the lines below the last of nested headings; bold lines count as headings."""
    lines = iter(text.splitlines())
    for wanted in headings:
        next(
            (one for one in lines if _is_heading(one) and one.strip("#* ").startswith(wanted)), None
        )
    return list(takewhile(lambda line: not _is_heading(line), lines))


def _is_heading(line: str) -> bool:
    return line.startswith("#") or (line.startswith("**") and line.endswith("**"))


def _tables(lines: Iterable[str]) -> Iterator[list[list[str]]]:
    """Yields each table as rows of cells."""
    for is_table, group in groupby(lines, lambda line: line.startswith("|")):
        if is_table:
            yield [
                [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
                for line in group
            ]
