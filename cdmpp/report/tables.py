"""Tables of metrics as structured rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdmpp.metrics import mean_and_interval
from cdmpp.text import Paint, aligned, percent_text, seconds_text


@dataclass(frozen=True)
class Column:
    """A column of the metric tables.

    Attributes:
        key: name in a metrics object.
        title: heading.
        unit: `count`, `percent` (of a fraction), `ratio` or `seconds`.
        better: `low` or `high`; None if neither is better.
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
    Column("mean_log_error", "log error", "ratio", "low"),
    Column("median_ratio", "median ratio", "ratio", None),
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
    """A table cell.

    Attributes:
        text: the value.
        interval: `±` and the half width of the 95 % interval; may be empty.
        best: whether it is the best value of its column.
    """

    text: str
    interval: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: first cell, such as the name of the model.
        role: `model` (the evaluated model), `baseline`, `oracle` (a reference that may use the
            measurements and is never marked as best) or `group` (a heading without cells).
        cells: the other cells, one per column.
    """

    name: str
    role: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: heading; may be empty.
        note: sentence above the table: n, split, seeds.
        header: titles of the columns, the first column included.
        rows: rows of the table.
    """

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]


def plain_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", note: str = ""
) -> Table:
    """Returns a table of texts in which no cell is marked as best."""
    lines = (Row(name, "baseline", tuple(map(Cell, cells))) for name, *cells in rows)
    return Table(title, note, tuple(header), tuple(lines))


def metric_table(
    title: str,
    lines: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    model: str,
    references: Collection[str] = ("oracle",),
    columns: Sequence[Column] = COLUMNS,
    note: str = "",
) -> Table:
    """Returns a table of every line's metrics: mean and 95 % interval over seeds.

    Args:
        lines: line name -> one metrics object per seed, in the order of the rows.
        model: line of the evaluated model.
        references: lines that are never marked as best.
        columns: columns of the table; the key `seeds` has the number of seeds.
    """
    found: dict[str, list[tuple[float | None, float | None]]] = {}
    for name, seeds in lines.items():
        counted = [{**seed, "seeds": len(seeds)} for seed in seeds]
        found[name] = [over_seeds(counted, column.key) for column in columns]
    rows = []
    for name, values in found.items():
        cells = []
        for index, (column, (value, half)) in enumerate(zip(columns, values, strict=True)):
            rivals = [found[other][index][0] for other in lines if other not in references]
            interval = "" if half is None or not column.better else format_value(half, column.unit)
            is_best = name not in references and _is_best(value, rivals, column.better)
            text = format_value(value, column.unit)
            cells.append(Cell(text, interval and f"± {interval}", is_best))
        rows.append(Row(name, role_of(name, model, references), tuple(cells)))
    return Table(title, note, ("", *(column.title for column in columns)), tuple(rows))


def keyed(tables: Iterable[Table], line: str) -> list[Table]:
    """Returns metric tables with the errors of a line in their titles, readable when folded."""
    found = []
    for table in tables:
        row = next(row for row in table.rows if row.name == line)
        cells = dict(zip(table.header[1:], row.cells, strict=True))
        errors = ", ".join(f"{name} {cells[name].text}" for name in ("median APE", "MAPE"))
        found.append(replace(table, title=f"{table.title}: {errors}"))
    return found


def over_seeds(
    seeds: Iterable[Mapping[str, Any]], metric: str
) -> tuple[float | None, float | None]:
    """Returns the mean of a metric and the half width of its 95 % interval; None if unknown."""
    values = [seed[metric] for seed in seeds if seed.get(metric) is not None]
    return mean_and_interval(values) if values else (None, None)


def role_of(line: str, model: str, references: Collection[str]) -> str:
    """Returns the role of a row, see `Row`."""
    return "model" if line == model else "oracle" if line in references else "baseline"


def format_value(value: float | None, unit: str) -> str:
    """Returns a value formatted in its unit; `-` for None."""
    if value is None:
        return "-"
    if unit == "count":
        return f"{value:,.0f}"
    if unit == "percent":
        return percent_text(value)
    return seconds_text(value) if unit == "seconds" else f"{value:.3f}"


def text_table(table: Table, *, paint: Paint | None = None) -> str:
    """Returns the table as aligned plain text, without intervals.

    Args:
        paint: see `aligned`.
    """
    rows = [[row.name, *(cell.text for cell in row.cells)] for row in table.rows]
    return aligned([table.header, *rows], "lr", paint=paint)


def _is_best(value: float | None, rivals: Sequence[float | None], better: str | None) -> bool:
    known = [rival for rival in rivals if rival is not None]
    return bool(better and known) and value == (min(known) if better == "low" else max(known))
