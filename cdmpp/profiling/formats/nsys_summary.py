"""Summaries of nsys, as text or CSV (`nsys stats --format csv`), with one or several tables.

Source: Nsight Systems user guide, statistical reports.
"""

from __future__ import annotations

import re
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.open_text import bad_line, csv_rows
from cdmpp.profiling.formats.summary_rows import summary_notes, summary_row
from cdmpp.profiling.formats.units import number, seconds
from cdmpp.profiling.schema import Kind, Profile, ProfileRow

FORMAT = "nsys summary"
_TOTAL = re.compile(r"^Total Time(?: \((\w+)\))?$")
#: Name of the count column -> kind of the table's rows.
_COUNTS: dict[str, Kind] = {
    "Instances": "kernel", "Count": "memcpy", "Num Calls": "api", "Operations": "memcpy",
}  # fmt: skip
_NAMES = ("Name", "Operation", "Range")
_PATTERNS = {
    "total": "Total Time", "mean": "Avg|Average", "low": "Min|Minimum", "high": "Max|Maximum",
}  # fmt: skip
#: The line below the header of a text table: a run of dashes per column.
_RULE = re.compile(r"^ *-+(?: +-+){5,} *$")


def is_nsys_summary(text: str) -> bool:
    """Whether a text contains a table of nsys's statistics."""
    return "Total Time" in text and any(_columns(row) is not None for row in _rows(text))


def read_nsys_summary(path: Path, text: str) -> Profile:
    """Returns the rows of all tables.

    Raises:
        DataError: an invalid line, or no row.
    """
    rows: list[ProfileRow] = []
    notes: list[str] = []
    block: list[tuple[ProfileRow, float]] = []
    columns: tuple[dict[str, int], dict[str, str], Kind] | None = None
    table = ""
    for index, cells in enumerate(_rows(text)):
        header = _columns(cells)
        if header is not None or len(cells) < 6:
            _close(table, block, rows, notes)
            columns, block = header, []
            if header is not None:
                table = f"table of {header[2]} rows"
            continue
        if columns is None:
            continue
        try:
            block.append(_row(cells, *columns))
        except (ValueError, IndexError) as error:
            raise bad_line(path, index + 1, error, "a row with the columns of the header") from None
    _close(table, block, rows, notes)
    if not rows:
        raise DataError(f"{path}: a table of nsys without rows; the file is truncated")
    return Profile(str(path), FORMAT, tuple(rows), notes=tuple(notes))


def _rows(text: str) -> list[list[str]]:
    """Returns the cells of non-empty lines; a line outside of text tables is one cell."""
    lines = text.splitlines()
    if not any(map(_RULE.match, lines)):
        return csv_rows(text)
    rows: list[list[str]] = []
    count = 1
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if _RULE.match(below):
            rows.append(re.split(" {2,}", line.strip()))
            count = len(rows[-1])
        elif not line.strip():
            count = 1
        elif not _RULE.match(line):
            rows.append(line.split(None, count - 1))  # the last column, the name, may have spaces
    return rows


def _close(
    table: str, block: list[tuple[ProfileRow, float]], rows: list[ProfileRow], notes: list[str]
) -> None:
    notes += summary_notes(table, [row for row, _ in block], [mean for _, mean in block])
    rows += [row for row, _ in block]


def _row(
    cells: list[str], columns: dict[str, int], units: dict[str, str], kind: Kind
) -> tuple[ProfileRow, float]:
    name = cells[columns["name"]]
    value = {key: seconds(cells[columns[key]], units[key]) for key in _PATTERNS}
    if kind == "memcpy" and "memset" in name.lower():
        kind = "memset"
    row = summary_row(
        kind, name, int(number(cells[columns["calls"]])), total_s=value["total"],
        min_s=value["low"], max_s=value["high"], percent=number(cells[columns["percent"]]),
    )  # fmt: skip
    return row, value["mean"]


def _columns(cells: list[str]) -> tuple[dict[str, int], dict[str, str], Kind] | None:
    """Returns (column -> index, column -> unit of time, kind) of a header; None for other rows."""
    total = next((found for cell in cells if (found := _TOTAL.match(cell))), None)
    percent = next((i for i, cell in enumerate(cells) if cell in ("Time (%)", "Time(%)")), None)
    count = next((name for name in _COUNTS if name in cells), None)
    name = next((name for name in _NAMES if name in cells), None)
    if total is None or percent is None or count is None or name is None:
        return None
    places = {"percent": percent, "calls": cells.index(count), "name": cells.index(name)}
    units = {}
    for key, prefix in _PATTERNS.items():
        place = next(
            (i for i, cell in enumerate(cells) if re.match(rf"(?:{prefix})(?: \(\w+\))?$", cell)),
            None,
        )
        if place is None:
            return None
        places[key] = place
        units[key] = cells[place].partition("(")[2].rstrip(")") or "ns"
    # NVTX ranges have an `Instances` column like kernels, and are named by their range.
    kind: Kind = "range" if name == "Range" or "Style" in cells else _COUNTS[count]
    return places, units, kind
