"""Formatting of numbers and tables for commands, pages and results files."""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

#: (row, column, padded text of a cell) -> coloured text; row 0 has the titles.
Paint = Callable[[int, int, str], str]
_GAP = "  "
#: Maximum number of tables into which a wide table is split.
_MOST_PARTS = 3

#: Characters that control a terminal or hide text: control characters, direction marks, surrogates.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: Start of an HTML tag in Markdown.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
#: First characters of a formula in a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

#: Columns of a tidy results file, one value per row.
TIDY_COLUMNS = (
    "suite", "dataset", "split", "device", "group", "model", "seed", "metric", "value", "n",
)  # fmt: skip


def seconds_text(seconds: float | None, *, digits: int = 3, none: str = "-") -> str:
    """Returns e.g. `1.25 ms`, with `digits` significant digits; `none` for None."""
    if seconds is None:
        return none
    if not seconds:
        return "0 s"
    scale, unit = _unit(seconds)
    return f"{_significant(seconds / scale, digits)} {unit}"


def interval_text(
    seconds: float | None,
    low_s: float | None = None,
    high_s: float | None = None,
    *,
    digits: int = 3,
) -> str:
    """Returns e.g. `1.83 ms [1.61, 2.09]`, all in the same unit; without brackets if an end is None
    or NaN; `?` for None.

    Args:
        digits: significant digits of `seconds`; the ends have three.
    """
    text = seconds_text(seconds, digits=digits, none="?")
    if not seconds or any(end is None or math.isnan(end) for end in (low_s, high_s)):
        return text
    scale, _ = _unit(seconds)
    low, high = (_significant((end or 0.0) / scale, 3) for end in (low_s, high_s))
    return f"{text} [{low}, {high}]"


def percent_text(fraction: float | None, digits: int = 1, *, none: str = "-") -> str:
    """Returns a fraction as e.g. `12.3 %`; `none` for None."""
    return none if fraction is None else f"{100 * fraction:.{digits}f} %"


def counted(count: int, noun: str, verb: str = "") -> str:
    """Returns e.g. `1 task`, `2,000 tasks`; with the verb `were` `1 task was`."""
    return f"{count:,} {noun}{'s' * (count != 1)}" + (f" {agreed(count, verb)}" if verb else "")


def agreed(count: int, verb: str) -> str:
    """Returns the verb that agrees with a count, from its plural form: `were` -> `was` for 1."""
    return verb if count != 1 else _OF_ONE.get(verb) or f"{verb}s"


_OF_ONE = {"are": "is", "were": "was", "have": "has"}


def short_task(task: str, operator: str, *, width: int = 48) -> str:
    """Returns a task's operator and its key, cut to `width` characters."""
    key = shortened(task.rpartition("|")[0] or task, width)
    return f"{operator} {key}" if operator else key


def task_words(task: str, operator: str) -> str:
    """Returns a readable name of a task: its operator and the sizes in its key, or the start of the
    key if it has no sizes.
    """
    key = task.rpartition("|")[0] or task
    try:
        parts = json.loads(key)
    except ValueError:
        parts = [key]
    if not isinstance(parts, list) or not parts:
        parts = [key]
    sizes = " ".join(str(one) for one in parts[1:] if isinstance(one, int))
    if sizes:
        return f"{operator or 'task'} of {shortened(sizes, 48)}"
    return f"{operator} ({str(parts[0])[:8]})" if operator else shortened(key, 48)


def shortened(text: str, width: int) -> str:
    """Returns a text cut to at most `width` characters, `...` included."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def nearest(name: str, known: Iterable[str], *, before: str = "") -> str:
    """Returns `, did you mean ...?` with the most similar known name; empty if none is similar.

    Args:
        before: common prefix of the names, such as the path of a setting.
    """
    match = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {before + match[0]!r}?" if match else ""


def printable(text: str) -> str:
    """Returns a text with unprintable characters as escapes."""
    return _UNPRINTABLE.sub(lambda found: ascii(found.group())[1:-1], text)


def aligned(
    rows: Sequence[Sequence[str]],
    sides: str = "l",
    *,
    key: int = 0,
    width: int | None = None,
    paint: Paint | None = None,
) -> str:
    """Returns a table as plain text, no line wider than the terminal.

    Columns that do not fit go into further tables below, each with the key column. If that makes
    more than three tables, every row becomes lines instead: its key, then titles and cells.

    Args:
        rows: the first row has the titles.
        sides: alignment of each column, `l` (left) or `r` (right); the last letter is repeated.
        key: column that identifies a row.
        width: characters per line; None = the terminal's width, or 80 without a terminal.
        paint: colours a padded cell.
    """
    width = shutil.get_terminal_size().columns if width is None else width
    rows = [[" ".join(printable(cell).split("\n")) for cell in row] for row in rows]
    key %= len(rows[0])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    parts = _parts(widths, key, width)
    if parts is None:
        return _as_lines(rows, key, width)
    sides = sides.ljust(len(widths), sides[-1])
    return "\n\n".join(
        "\n".join(_line(number, row, part, widths, sides, paint) for number, row in enumerate(rows))
        for part in parts
    )


def _parts(widths: Sequence[int], key: int, width: int) -> list[list[int]] | None:
    """Returns the columns of each table, each with the key; None if there are too many tables or a
    column is too wide.
    """
    if sum(widths) + len(_GAP) * (len(widths) - 1) <= width:
        return [list(range(len(widths)))]
    parts: list[list[int]] = []
    left = 0
    for column, size in enumerate(widths):
        needed = size + len(_GAP)
        if column == key:
            continue
        if needed > left or not parts:
            parts.append([key])
            left = width - widths[key]
        parts[-1].append(column)
        left -= needed
        if left < 0:
            return None
    return parts if len(parts) <= _MOST_PARTS else None


def _line(
    number: int, row: Sequence[str], part: Sequence[int], widths: Sequence[int], sides: str,
    paint: Paint | None,
) -> str:  # fmt: skip
    texts = [row[c].ljust(widths[c]) if sides[c] == "l" else row[c].rjust(widths[c]) for c in part]
    texts[-1] = texts[-1].rstrip()
    if paint is not None:
        texts = [paint(number, column, text) for column, text in zip(part, texts, strict=True)]
    return _GAP.join(texts).rstrip()


def _as_lines(rows: Sequence[Sequence[str]], key: int, width: int) -> str:
    titles, *others = rows
    found = []
    for row in others:
        cells = ", ".join(
            f"{title} {cell}".strip()
            for column, (title, cell) in enumerate(zip(titles, row, strict=True))
            if column != key and cell
        )
        found += textwrap.wrap(row[key] or "-", width)
        found += textwrap.wrap(
            cells, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    return "\n".join(found)


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]], sides: str = "") -> str:
    """Returns a Markdown table.

    Args:
        sides: see `aligned`; empty = no alignment.
    """
    padded = sides.ljust(len(titles), sides[-1:])[: len(titles)] if sides else ""
    marks = [":--" if side == "l" else "--:" for side in padded] or [" --- "] * len(titles)
    lines = [[markdown_text(cell).replace("|", "\\|") for cell in row] for row in (titles, *rows)]
    texts = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([texts[0], f"|{'|'.join(marks)}|", *texts[1:]])


def markdown_text(text: str) -> str:
    """Returns a text as one line of Markdown with HTML tags escaped."""
    return _TAG.sub("&lt;", " ".join(printable(text).split("\n")))


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table as CSV with titles; None is an empty cell, formulas are quoted."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def _plain_cell(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    cell = printable(cell)
    try:
        float(cell)
    except ValueError:
        return f"'{cell}" if cell.startswith(_FORMULA) else cell
    return cell


def _unit(seconds: float) -> tuple[float, str]:
    return next((unit for unit in _UNITS if abs(seconds) >= unit[0]), _UNITS[-1])


def _significant(value: float, digits: int) -> str:
    """Returns a value with `digits` significant digits, without an exponent from 0.0001."""
    is_whole = abs(value) >= 10**digits - 0.5
    return f"{value:.0f}" if is_whole else f"{value:#.{digits}g}".rstrip(".")


def listed(words: Sequence[str]) -> str:
    """Returns words as prose: `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
