"""Metric tables as structured rows, HTML-ready and as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.text import aligned, percent_text, seconds_text


@dataclass(frozen=True)
class Column:
    """A column of the metric tables.

    Attributes:
        key: name in a metrics object.
        title: heading.
        unit: `count`, `percent` (of a fraction), `ratio` or `seconds`.
        better: which end is better; None for a column that is no judgement.
    """

    key: str
    title: str
    unit: str
    better: str | None


COLUMNS = (
    Column("n", "n", "count", None),
    Column("tasks", "tasks", "count", None),
    Column("mape", "MAPE", "percent", "low"),
    Column("median_ape", "median APE", "percent", "low"),
    Column("rmse_s", "RMSE", "seconds", "low"),
    Column("within_5pct", "≤ 5 %", "percent", "high"),
    Column("within_10pct", "≤ 10 %", "percent", "high"),
    Column("within_20pct", "≤ 20 %", "percent", "high"),
    Column("spearman_by_task", "Spearman", "ratio", "high"),
    Column("top1_score", "top-1", "ratio", "high"),
    Column("top5_score", "top-5", "ratio", "high"),
)


@dataclass(frozen=True)
class Cell:
    """Text of a table cell; `interval` is the half width of the 95 % interval, if there is one."""

    text: str
    interval: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        name: name of the model.
        role: `model`, `baseline` or `oracle` (which looks at the answers and is never marked as
            best).
        cells: one per column of the table.
    """

    name: str
    role: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Group:
    """The rows of one device, or of all together."""

    title: str
    rows: tuple[Row, ...]


def metric_group(
    title: str,
    lines: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    model: str,
    references: Collection[str] = ("oracle",),
    columns: Sequence[Column] = COLUMNS,
) -> Group:
    """Returns a table group.

    Args:
        lines: line name -> one metrics object per seed, in the order of the table.
        model: the line that is the subject of the table.
        references: lines that are out of competition.
        columns: of the table.
    """
    from cdmpp.metrics import mean_and_interval

    means: dict[str, list[float | None]] = {}
    halves: dict[str, list[float | None]] = {}
    for name, seeds in lines.items():
        means[name] = []
        halves[name] = []
        for column in columns:
            values = [seed[column.key] for seed in seeds if seed.get(column.key) is not None]
            mean, half = mean_and_interval(values) if values else (None, None)
            means[name].append(mean)
            halves[name].append(half if column.better else None)
    rows = []
    for name in lines:
        role = "model" if name == model else "oracle" if name in references else "baseline"
        cells = []
        for index, column in enumerate(columns):
            rivals = [
                value
                for other in lines
                if other not in references and (value := means[other][index]) is not None
            ]
            value, half = means[name][index], halves[name][index]
            cells.append(
                Cell(
                    text=format_value(value, column.unit),
                    interval="" if half is None else f"± {format_value(half, column.unit)}",
                    best=name not in references
                    and value is not None
                    and _is_best(value, rivals, column),
                )
            )
        rows.append(Row(name, role, tuple(cells)))
    return Group(title, tuple(rows))


def format_value(value: float | None, unit: str) -> str:
    """Returns a number as people read it; `-` for None."""
    if value is None:
        return "-"
    if unit == "count":
        return f"{value:,.0f}"
    if unit == "percent":
        return percent_text(value)
    if unit == "seconds":
        return seconds_text(value)
    return f"{value:.3f}"


def text_table(group: Group) -> str:
    """Returns the table as aligned plain text."""
    grid = [["", *(column.title for column in COLUMNS)]]
    return aligned(grid + [[row.name, *(c.text for c in row.cells)] for row in group.rows], "lr")


def _is_best(value: float, rivals: Sequence[float], column: Column) -> bool:
    if column.better is None:
        return False
    return value == (min(rivals) if column.better == "low" else max(rivals))
