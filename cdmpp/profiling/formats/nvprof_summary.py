"""nvprof's summary: both text layouts, and `--csv`.

Source: CUDA profiler user's guide, summary mode.
"""

from __future__ import annotations

import re
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.open_text import bad_line, csv_rows
from cdmpp.profiling.formats.summary_rows import device_kind, summary_notes, summary_row
from cdmpp.profiling.formats.units import number, seconds
from cdmpp.profiling.schema import Kind, Profile, ProfileRow

FORMAT = "nvprof summary"
_BANNER = re.compile(r"^==\d+==\s*(.*)$")
_LABEL = re.compile(r"^\s*([A-Za-z][\w ()]*?):\s+(?=[\d.]+%)")
_ROW = re.compile(r"^\s*([\d.]+)%\s+(\S+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s*$")
_HEADER = re.compile(r"^\s*(Type\s+)?Time\(%\)\s+Time\s+Calls\s+Avg\s+Min\s+Max\s+Name\s*$")
_EXPECTED = "percent, time, calls, avg, min, max and name, e.g. `26.07%  9.0957ms  1 ...`"


def is_nvprof_summary(text: str) -> bool:
    """Whether a text contains nvprof's summary table."""
    return any(_HEADER.match(line) for line in text.splitlines())


def is_nvprof_summary_csv(text: str) -> bool:
    """Whether a text contains nvprof's summary table as CSV."""
    return "Time(%)" in text and any(_is_csv_header(row) for row in csv_rows(text))


def read_nvprof_summary(path: Path, text: str) -> Profile:
    """Reads the text; a truncated last line is left out with a note.

    Raises:
        DataError: an invalid line, or no row.
    """
    lines = text.splitlines()
    blocks: dict[str, list[tuple[ProfileRow, float]]] = {}
    block, notes, is_table = "Profiling result", [], False
    for index, line in enumerate(lines):
        banner = _BANNER.match(line)
        if banner is not None:
            title = banner[1].rstrip(":").strip()
            if title in ("Profiling result", "API calls"):
                block = title
            elif title.lower().startswith(("warning", "error")):
                notes.append(title)
            continue
        if _HEADER.match(line):
            is_table = True
            continue
        if not line.strip() or not is_table or "No kernels were profiled" in line:
            continue
        label = _LABEL.match(line)
        if label is not None:
            block = label[1]
            line = line[label.end() :]
        found = _ROW.match(line)
        try:
            if found is None:
                raise ValueError(repr(line.strip()[:80]))
            rows = blocks.setdefault(block, [])
            rows.append(_row(block, found))
        except ValueError as error:
            if index == len(lines) - 1 and any(blocks.values()):
                notes.append(f"line {index + 1} is truncated and left out")
                break
            raise bad_line(path, index + 1, error, _EXPECTED) from None
    return _profile(path, FORMAT, blocks, notes)


def read_nvprof_summary_csv(path: Path, text: str) -> Profile:
    """Reads the CSV: blocks of a header, a row of units, and values.

    Raises:
        DataError: an invalid line, or no row.
    """
    blocks: dict[str, list[tuple[ProfileRow, float]]] = {}
    notes: list[str] = []
    block, columns, units = "Profiling result", dict[str, int](), dict[str, str]()
    for index, cells in enumerate(csv_rows(text)):
        banner = _BANNER.match(cells[0])
        if banner is not None:
            if banner[1].rstrip(":") in ("Profiling result", "API calls"):
                block = banner[1].rstrip(":")
            columns = {}
            continue
        if _is_csv_header(cells):
            columns, units = {name: i for i, name in enumerate(cells)}, {}
            continue
        if not columns:
            continue
        try:
            if not units:
                units = {name: cells[i] for name, i in columns.items()}
                seconds("1", units["Time"])
                continue
            if "Type" in columns and cells[columns["Type"]]:
                block = cells[columns["Type"]]
            value = {name: cells[i] for name, i in columns.items()}
            mean_s = seconds(value["Avg"], units["Avg"])
            row = summary_row(
                _kind(block, value["Name"]), value["Name"], int(number(value["Calls"])),
                total_s=seconds(value["Time"], units["Time"]),
                min_s=seconds(value["Min"], units["Min"]),
                max_s=seconds(value["Max"], units["Max"]), percent=number(value["Time(%)"]),
            )  # fmt: skip
            blocks.setdefault(block, []).append((row, mean_s))
        except (ValueError, IndexError) as error:
            raise bad_line(path, index + 1, error, "a row of units, then values") from None
    return _profile(path, f"{FORMAT} (CSV)", blocks, notes)


def _profile(
    path: Path, name: str, blocks: dict[str, list[tuple[ProfileRow, float]]], notes: list[str]
) -> Profile:
    if not any(blocks.values()):
        raise DataError(
            f"{path}: a table of nvprof without rows; expected kernels or API calls; the program "
            "may have used no GPU, or the file is truncated"
        )
    for block, found in blocks.items():
        notes += summary_notes(block, [row for row, _ in found], [mean for _, mean in found])
    rows = tuple(row for found in blocks.values() for row, _ in found)
    return Profile(str(path), name, rows, notes=tuple(notes))


def _row(block: str, found: re.Match[str]) -> tuple[ProfileRow, float]:
    percent, total, calls, mean, low, high, name = found.groups()
    row = summary_row(
        _kind(block, name), name, int(calls), total_s=seconds(total), min_s=seconds(low),
        max_s=seconds(high), percent=float(percent),
    )  # fmt: skip
    return row, seconds(mean)


def _kind(block: str, name: str) -> Kind:
    return device_kind(name) if block in ("Profiling result", "GPU activities") else "api"


def _is_csv_header(cells: list[str]) -> bool:
    return {"Time(%)", "Time", "Calls", "Avg", "Min", "Max", "Name"} <= set(cells)
