"""Numbers and tables as text: the one look of every command, page and results file."""

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

#: Puts colour on a cell: row (0 = titles), column, padded text.
Paint = Callable[[int, int, str], str]
_GAP = "  "
#: Tables that one may become before its rows turn into lines.
_MOST_PARTS = 3

#: What steers a terminal, or hides what a text says: controls, and marks of the direction.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: What would be a tag where Markdown is shown.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
#: What a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

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
    seconds: float | None,
    low_s: float | None = None,
    high_s: float | None = None,
    *,
    digits: int = 3,
) -> str:
    """Returns e.g. `1.83 ms [1.61, 2.09]`, all in the unit of the first; without the brackets where
    an end is None or NaN; `?` for None.

    Args:
        digits: of the first; its ends have three.
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
    """Returns the verb of so many, from that of several: `was` of 1 and `were`."""
    return verb if count != 1 else _OF_ONE.get(verb) or f"{verb}s"


_OF_ONE = {"are": "is", "were": "was", "have": "has"}


def short_task(task: str, operator: str, *, width: int = 48) -> str:
    """Returns a task as few words: its operator and its key, cut to `width` characters."""
    key = shortened(task.rpartition("|")[0] or task, width)
    return f"{operator} {key}" if operator else key


def task_words(task: str, operator: str) -> str:
    """Returns a task for people: its operator and the sizes in its key, or the start of a key that
    has none.
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
    """Returns a text of at most `width` characters, with dots for what was cut."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def nearest(name: str, known: Iterable[str], *, before: str = "") -> str:
    """Returns `, did you mean ...?` for the most similar known name, else an empty text.

    Args:
        before: what stands before all these names, such as the path to a setting.
    """
    match = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {before + match[0]!r}?" if match else ""


def printable(text: str) -> str:
    """Returns a text as it may be shown: what is no character to read stands there as its code."""
    return _UNPRINTABLE.sub(lambda found: ascii(found.group())[1:-1], text)


def aligned(
    rows: Sequence[Sequence[str]],
    sides: str = "l",
    *,
    key: int = 0,
    width: int | None = None,
    paint: Paint | None = None,
) -> str:
    """Returns rows of cells as columns of plain text, no line wider than the terminal.

    Columns that do not fit go below the others, beside the key again. Where that makes more than
    three tables of one, every row turns into lines: its key, and below it titles and cells.

    Args:
        rows: the titles first.
        sides: `l` (left) or `r` (right) for each column, the last for all that follow.
        key: the column that names a row.
        width: characters of a line; None = the terminal's, 80 where there is none.
        paint: puts colour on a padded cell.
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
    """Returns the columns of each table that fits, the key in all; None where there are too many,
    or one is too wide.
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
        sides: as of `aligned`; empty = the reader's choice.
    """
    padded = sides.ljust(len(titles), sides[-1:])[: len(titles)] if sides else ""
    marks = [":--" if side == "l" else "--:" for side in padded] or [" --- "] * len(titles)
    lines = [[markdown_text(cell).replace("|", "\\|") for cell in row] for row in (titles, *rows)]
    texts = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([texts[0], f"|{'|'.join(marks)}|", *texts[1:]])


def markdown_text(text: str) -> str:
    """Returns a text as one line of Markdown in which nothing is a tag."""
    return _TAG.sub("&lt;", " ".join(printable(text).split("\n")))


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table as CSV with titles; None is empty, and no text is a formula."""
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
    """Returns significant digits, without an exponent for values of 0.0001 and more."""
    is_whole = abs(value) >= 10**digits - 0.5
    return f"{value:.0f}" if is_whole else f"{value:#.{digits}g}".rstrip(".")


def listed(words: Sequence[str]) -> str:
    """Returns words as a list to read: `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
