"""The one page of results: as Markdown, and as HTML without scripts or links, plots inline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.files.places import package_folder
from cdmpp.report.tables import Table
from cdmpp.text import markdown_table, markdown_text


@dataclass(frozen=True)
class ListingLine:
    """A line of a listing with colour.

    Attributes:
        mark: what stands before it, such as `42 %`; empty = nothing.
        heat: how strong its colour is, 0 (none) to 10.
    """

    mark: str
    text: str
    heat: int


@dataclass(frozen=True)
class Section:
    """A part of a page; what is empty is left out.

    Attributes:
        title: heading.
        note: what was split how, on how much.
        verdict: sentences that follow from the numbers; all sections' stand at the top of the page.
        folded: title and sentences that stand folded below the verdict.
        points: a list.
        code: a listing.
        painted: a listing with colours.
        plots: (caption, SVG); only in HTML.
        tables: those with a title fold in HTML.
    """

    title: str
    note: str = ""
    verdict: Sequence[str] = ()
    folded: tuple[str, Sequence[str]] = ("", ())
    points: Sequence[str] = ()
    code: str = ""
    painted: Sequence[ListingLine] = ()
    plots: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Page:
    """A page; what is empty is left out.

    Attributes:
        title: heading.
        lead: one sentence below it.
        sections: what it shows.
        warnings: sentences that limit what the numbers mean.
        tiles: (big text, what it is) of the few most important numbers.
        notes: how to read it.
        command: the command that made it.
        facts: (name, value) pairs: data hash, versions, machine.
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

    environment = Environment(
        loader=FileSystemLoader(package_folder("cdmpp.report")),
        autoescape=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html").render(page=page)


def page_markdown(page: Page) -> str:
    """Returns the page as Markdown, without plots."""
    parts = [f"# {page.title}", page.lead, *(f"**{warning}**" for warning in page.warnings)]
    parts.append(_list([f"{what}: {big}" for big, what in page.tiles]))
    judged = [section for section in page.sections if section.verdict]
    if judged:
        parts += ["## Verdict", "Generated from the numbers below."]
    for section in judged:
        parts += [f"**{section.title}**", _list(section.verdict)]
        title, sentences = section.folded
        if sentences:
            parts += [f"<details><summary>{title}</summary>", _list(sentences), "</details>"]
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
