"""Numbers and tables as text: the one look of every command, page and results file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

#: Columns of every results file: one value a row.
TIDY_COLUMNS = (
    "suite", "dataset", "split", "device", "group", "model", "seed", "metric", "value", "n",
)  # fmt: skip


def seconds_text(seconds: float | None, *, digits: int = 3, none: str = "-") -> str:
    """Returns e.g. `1.25 ms`, with so many significant digits; `none` for None."""
    if seconds is None:
        return none
    if not seconds:
        return "0 s"
    scale, unit = _unit(seconds)
    return f"{_significant(seconds / scale, digits)} {unit}"


def interval_text(
    seconds: float | None, low_s: float | None = None, high_s: float | None = None
) -> str:
    """Returns e.g. `1.83 ms [1.61, 2.09]`, all in the unit of the first; without the brackets where
    an end is None or NaN; `?` for None.
    """
    text = seconds_text(seconds, none="?")
    if not seconds or any(end is None or math.isnan(end) for end in (low_s, high_s)):
        return text
    scale, _ = _unit(seconds)
    low, high = (_significant((end or 0.0) / scale, 3) for end in (low_s, high_s))
    return f"{text} [{low}, {high}]"


def percent_text(fraction: float | None, digits: int = 1, *, none: str = "-") -> str:
    """Returns a fraction as e.g. `12.3 %`; `none` for None."""
    return none if fraction is None else f"{100 * fraction:.{digits}f} %"


def short_task(task: str, operator: str, *, width: int = 48) -> str:
    """Returns a task as few words: its operator and its key, cut to `width` characters."""
    key = shortened(task.rpartition("|")[0] or task, width)
    return f"{operator} {key}" if operator else key


def shortened(text: str, width: int) -> str:
    """Returns a text of at most `width` characters, with dots for what was cut."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def aligned(rows: Sequence[Sequence[str]], sides: str = "l") -> str:
    """Returns rows of cells as columns of plain text, as wide as they have to be.

    Args:
        rows: the titles too.
        sides: `l` (left) or `r` (right) for each column, the last for all that follow.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = sides.ljust(len(widths), sides[-1])
    return "\n".join(
        "  ".join(
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(row, widths, sides, strict=False)
        ).rstrip()
        for row in rows
    )


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]], sides: str = "") -> str:
    """Returns a Markdown table.

    Args:
        sides: as of `aligned`; empty = the reader's choice.
    """
    padded = sides.ljust(len(titles), sides[-1:])[: len(titles)] if sides else ""
    marks = [":--" if side == "l" else "--:" for side in padded] or [" --- "] * len(titles)
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (titles, *rows)]
    texts = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([texts[0], f"|{'|'.join(marks)}|", *texts[1:]])


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table as CSV with titles; None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def tidy_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Returns rows of `TIDY_COLUMNS` as CSV, values with seven significant digits."""
    return csv_text(
        TIDY_COLUMNS,
        ((*place, None if value is None else f"{value:.7g}", n) for *place, value, n in rows),
    )


def _unit(seconds: float) -> tuple[float, str]:
    return next((unit for unit in _UNITS if abs(seconds) >= unit[0]), _UNITS[-1])


def _significant(value: float, digits: int) -> str:
    """Returns significant digits, without an exponent for values of 0.0001 and more."""
    is_whole = abs(value) >= 10**digits - 0.5
    return f"{value:.0f}" if is_whole else f"{value:#.{digits}g}".rstrip(".")
