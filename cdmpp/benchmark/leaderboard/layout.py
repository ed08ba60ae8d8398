"""Pages of tables, once laid out and then written as Markdown or HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.files.places import package_folder
from cdmpp.metrics import mean_and_interval
from cdmpp.report.tables import Cell, Column, Row, format_value, metric_group


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: heading.
        note: sentence above it: n, split, seeds.
        header: titles of the columns after the first.
        rows: its lines.
    """

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: heading.
        note: what was split how, on how much.
        verdict: sentences that follow from the numbers.
        plots: (caption, SVG).
        tables: its tables.
    """

    title: str
    note: str
    verdict: tuple[str, ...]
    plots: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class LeaderboardPage:
    """A page.

    Attributes:
        title: heading.
        lead: one sentence below it.
        warnings: what limits the numbers: missing cells, data sets left out.
        sections: data sets and splits, or families.
        notes: how to read it.
        problems: table of cells without numbers; None when there are none.
        command: the command that made it.
        facts: (name, value) pairs.
    """

    title: str
    lead: str
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]
    problems: Table | None
    command: str
    facts: tuple[tuple[str, str], ...]


def metrics_table(
    title: str,
    note: str,
    lines: Mapping[str, Mapping[int, Mapping[str, Any]]],
    *,
    subject: str,
    references: Sequence[str],
    columns: Sequence[Column],
) -> Table:
    """Returns mean and 95 % interval of every metric over the seeds of every line.

    Args:
        lines: line -> seed -> metrics object.
    """
    counted = {
        name: [{**seed, "seeds": len(seeds)} for seed in seeds.values()]
        for name, seeds in lines.items()
    }
    group = metric_group(title, counted, model=subject, references=references, columns=columns)
    return Table(title, note, tuple(column.title for column in columns), group.rows)


def matrix_table(
    title: str,
    note: str,
    lines: Sequence[str],
    groups: Mapping[str, Mapping[str, Mapping[int, Mapping[str, Any]]]],
    *,
    subject: str,
    references: Sequence[str],
) -> Table:
    """Returns one cell a line and group: MAPE ± interval, and mean Spearman within a task.

    The lowest MAPE of a group is marked.

    Args:
        lines: rows, in order.
        groups: column title -> line -> seed -> metrics object.
    """
    means: dict[tuple[str, str], tuple[float | None, float | None, float | None]] = {}
    for group, by_line in groups.items():
        for line in lines:
            seeds = list(by_line.get(line, {}).values())
            mape, half = _over_seeds(seeds, "mape")
            means[line, group] = (mape, half, _over_seeds(seeds, "spearman_by_task")[0])
    rows = []
    for line in lines:
        role = "model" if line == subject else "oracle" if line in references else "baseline"
        cells = []
        for group in groups:
            mape, half, rank = means[line, group]
            rivals = [
                value
                for other in lines
                if other not in references and (value := means[other, group][0]) is not None
            ]
            text = "-"
            if mape is not None:
                spread = "" if half is None else f" ± {format_value(half, 'percent')}"
                text = f"{format_value(mape, 'percent')}{spread} / {_rank(rank)}"
            is_best = line not in references and mape is not None and mape == min(rivals)
            cells.append(Cell(text, best=is_best))
        rows.append(Row(line, role, tuple(cells)))
    return Table(title, note, tuple(groups), tuple(rows))


def markdown(page: LeaderboardPage) -> str:
    """Returns the page as Markdown; without plots."""
    lines = [f"# {page.title}", "", page.lead, ""]
    for warning in page.warnings:
        lines += [f"**{warning}**", ""]
    lines += ["## Verdict", "", "Generated from the numbers below.", ""]
    for section in page.sections:
        if section.verdict:
            lines += [f"**{section.title}**", "", *(f"- {text}" for text in section.verdict), ""]
    for section in page.sections:
        lines += [f"## {section.title}", "", section.note, ""]
        for table in section.tables:
            lines += [f"### {table.title}", "", table.note, "", _markdown_table(table), ""]
    if page.problems is not None:
        lines += [f"## {page.problems.title}", "", page.problems.note, ""]
        lines += [_markdown_table(page.problems), ""]
    lines += ["## How to read it", "", *(f"- {note}" for note in page.notes), ""]
    lines += ["## How it was made", "", "```", page.command, "```", ""]
    lines += [f"- {name}: {value}" for name, value in page.facts]
    return "\n".join(lines) + "\n"


def html(page: LeaderboardPage) -> str:
    """Returns the page as one self-contained HTML text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(
            [package_folder("cdmpp.benchmark.leaderboard"), package_folder("cdmpp.report")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("leaderboard.html").render(page=page)


def _markdown_table(table: Table) -> str:
    lines = [
        "| " + " | ".join(["", *table.header]) + " |",
        "|" + "|".join([":--"] + ["--:"] * len(table.header)) + "|",
    ]
    for row in table.rows:
        cells = [row.name]
        for cell in row.cells:
            text = f"{cell.text} {cell.interval}".strip().replace("|", "\\|")
            cells.append(f"**{text}**" if cell.best else text)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _over_seeds(
    seeds: Sequence[Mapping[str, Any]], metric: str
) -> tuple[float | None, float | None]:
    values = [seed[metric] for seed in seeds if seed.get(metric) is not None]
    return mean_and_interval(values) if values else (None, None)


def _rank(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
