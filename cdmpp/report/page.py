"""Pages of results as Markdown and as self-contained HTML.

The HTML has inline plots and one script, which shows the names of the plots' marks.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.atomic import check_replaceable
from cdmpp.files.places import package_folder
from cdmpp.report.tables import Cell, Table
from cdmpp.text import markdown_table, markdown_text

#: Start of a cell with a number.
_NUMBER = re.compile(r"[-+±$<>≤≥~*=\[ ]*\d[\d.,]*+(?![A-Z])|-?$")
_WITH_UNIT = re.compile(r"[-+]?[\d.,]+ (%|[nµm]?s|x|J|W|[MG]i?B)")


@dataclass(frozen=True)
class ListingLine:
    """A coloured line of a listing.

    Attributes:
        mark: prefix such as `42 %`; may be empty.
        text: the line.
        heat: colour intensity, 0 (none) to 10.
    """

    mark: str
    text: str
    heat: int


@dataclass(frozen=True)
class Section:
    """A section of a page; empty parts are left out.

    Attributes:
        title: heading.
        note: paragraph below the heading: data, split, sample sizes.
        verdict: conclusions from the numbers, shown at the top of the Markdown.
        points: bullet list.
        code: listing.
        painted: coloured listing.
        plots: (caption, SVG), only in HTML.
        tables: HTML folds tables with a title, except the first.
        is_folded: whether HTML folds the section below its title and note.
    """

    title: str
    note: str = ""
    verdict: Sequence[str] = ()
    points: Sequence[str] = ()
    code: str = ""
    painted: Sequence[ListingLine] = ()
    plots: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    is_folded: bool = False


@dataclass(frozen=True)
class Page:
    """A page; empty parts are left out.

    Attributes:
        title: heading.
        lead: sentence below the heading.
        sections: content.
        warnings: limitations of the numbers.
        tiles: (value, description) of the most important numbers.
        notes: explanations of the metrics.
        command: command that made the page.
        facts: (name, value): data hash, versions, machine.
    """

    title: str
    lead: str
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    tiles: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    command: str = ""
    facts: Sequence[tuple[str, str]] = ()


def page_html(page: Page) -> str:
    """Returns the page as one self-contained HTML text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from cdmpp.report.plots import svg_in_page

    environment = Environment(
        loader=FileSystemLoader(package_folder("cdmpp.report")),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "in_page": svg_in_page,
        "units_above": _units_above,
        "of_words": _of_words,
    }
    return environment.get_template("page.html").render(page=page, script=_script())


def check_page_file(path: Path | None, *, option: str = "--html") -> None:
    """Checks that the path of a page is unused or has an earlier page, and that its folder exists.

    Raises:
        UsageError: the path has something else.
        DataError: the folder does not exist.
    """
    if path is not None and not path.parent.is_dir():
        raise DataError(f"cannot write {path}: no folder {path.parent}; create it ({option})")
    check_replaceable(path, "<!doctype html>", what="an HTML page", option=option)


def script_hash() -> str:
    """Returns the sha256 of the pages' script in base64, for a content security policy."""
    return base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()


def _script() -> str:
    return (package_folder("cdmpp.report") / "marks.js").read_text("utf-8").strip()


def _units_above(table: Table) -> Table:
    """Returns a table in which a column's unit, if all its cells share one, is in the header."""
    header, columns = [table.header[0]], list[Sequence[Cell]]()
    for title, cells in zip(table.header[1:], _columns(table), strict=True):
        found = {_WITH_UNIT.fullmatch(cell.text) for cell in cells if cell.text not in ("", "-")}
        units = {match and match[1] for match in found}
        unit = units.pop() if len(units) == 1 else None
        if unit and unit not in title:
            header.append(f"{title} ({unit})".strip())
            end = f" {unit}"
            columns.append([
                replace(cell, text=cell.text.removesuffix(end),
                        interval=cell.interval.removesuffix(end)) for cell in cells
            ])  # fmt: skip
        else:
            header.append(title)
            columns.append(cells)
    lines = zip(*columns, strict=True)
    rows = [replace(row, cells=next(lines)) if row.cells else row for row in table.rows]
    return replace(table, header=tuple(header), rows=tuple(rows))


def _of_words(table: Table) -> list[bool]:
    """Returns for every column whether it has words (aligned left) instead of numbers."""
    others = (
        2 * sum(not _NUMBER.match(cell.text) for cell in cells) > len(cells)
        for cells in _columns(table)
    )
    return [True, *others]


def _columns(table: Table) -> Sequence[Sequence[Cell]]:
    """Returns the cells of every column except the first."""
    found = list(zip(*(row.cells for row in table.rows if row.cells), strict=True))
    return found or [()] * (len(table.header) - 1)


def page_markdown(page: Page) -> str:
    """Returns the page as Markdown, without plots."""
    parts = [f"# {page.title}", page.lead, *(f"**{warning}**" for warning in page.warnings)]
    parts.append(_list([f"{what}: {big}" for big, what in page.tiles]))
    judged = [section for section in page.sections if section.verdict]
    if judged:
        parts += ["## Verdict", "Generated from the numbers below."]
    for section in judged:
        parts += [f"**{section.title}**", _list(section.verdict)]
    for section in page.sections:
        parts += [f"## {section.title}", section.note, _list(section.points)]
        code = "\n".join([section.code, *map(_marked, section.painted)]).strip("\n")
        parts.append(f"```\n{code}\n```" if code else "")
        for table in section.tables:
            parts += [f"### {table.title}" if table.title else "", table.note, _table(table)]
    if page.notes:
        parts += ["## How to read it", _list(page.notes)]
    if page.command:
        parts += ["## How it was made", f"```\n{page.command}\n```"]
    parts.append(_list([f"{name}: {value}" for name, value in page.facts]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _marked(line: ListingLine) -> str:
    return f"{line.mark:>6} | {line.text}"


def _list(points: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(point)}" for point in points)


def _table(table: Table) -> str:
    rows = []
    for row in table.rows:
        texts = [(f"{cell.text} {cell.interval}".strip(), cell.best) for cell in row.cells]
        rows.append([row.name, *(f"**{text}**" if best else text for text, best in texts)])
    return markdown_table(table.header, rows, "lr")
