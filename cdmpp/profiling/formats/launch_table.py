"""Tables with one launch per row: nvprof's `--print-gpu-trace` and nsys's GPU trace.

Source: CUDA profiler user's guide, GPU-trace mode; Nsight Systems user guide, `cuda_gpu_trace`.
"""

from __future__ import annotations

import re
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.open_text import bad_line, csv_rows
from cdmpp.profiling.formats.builder import EventBuilder
from cdmpp.profiling.formats.summary_rows import device_kind
from cdmpp.profiling.formats.units import number, seconds, size_bytes
from cdmpp.profiling.schema import Launch, Profile

FORMAT = "nvprof GPU trace"
NSYS_FORMAT = "nsys GPU trace (CSV)"

# Columns of the text in nvprof's order, except that names with a space come first.
_TEXT_COLUMNS = (
    "Start", "Duration", "Grid Size", "Block Size", "Regs*", "SSMem*", "DSMem*", "Size",
    "Throughput", "SrcMemType", "DstMemType", "Device", "Context", "Stream", "Src Dev", "Src Ctx",
    "Dst Dev", "Dst Ctx", "Name",
)  # fmt: skip
_TOKEN = re.compile(r"\s*(\([^()]*\)|\S+)")
_TAIL = re.compile(r"\s*(?P<Device>\S.*?)\s+(?P<Context>\d+)\s+(?P<Stream>\d+)\s+(?P<Name>\S.*)$")
_LAUNCH_NUMBER = re.compile(r"\s\[\d+\]$")
_BANNER = re.compile(r"^==\d+==")
#: Column -> names in the CSV of nvprof and of nsys.
_CSV_NAMES = {
    "Start": ("Start", "Start (ns)", "Start (us)", "Start (ms)", "Start (s)"),
    "Duration": ("Duration", "Duration (ns)", "Duration (us)", "Duration (ms)", "Duration (s)"),
    "Grid X": ("Grid X", "GrdX"), "Grid Y": ("Grid Y", "GrdY"), "Grid Z": ("Grid Z", "GrdZ"),
    "Block X": ("Block X", "BlkX"), "Block Y": ("Block Y", "BlkY"),
    "Block Z": ("Block Z", "BlkZ"),
    "Registers": ("Registers Per Thread", "Regs", "Reg/Trd"),
    "Static": ("Static SMem", "SSMem", "StcSMem"), "Dynamic": ("Dynamic SMem", "DSMem", "DymSMem"),
    "Size": ("Size", "Bytes"), "Device": ("Device",), "Context": ("Context", "Ctx"),
    "Stream": ("Stream", "Strm"), "Name": ("Name",),
}  # fmt: skip


def is_launch_text(text: str) -> bool:
    """Whether a text contains nvprof's table of launches."""
    return any(_text_columns(line) is not None for line in text.splitlines())


def is_launch_csv(text: str) -> bool:
    """Whether a text contains a CSV table of launches."""
    return any(_csv_columns(row) for row in csv_rows(text))


def read_launch_text(path: Path, text: str) -> Profile:
    """Reads nvprof's table of launches.

    Raises:
        DataError: an invalid line, or no launch.
    """
    builder, notes, devices = EventBuilder(), [], set()
    columns: list[str] | None = None
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if columns is None or _BANNER.match(line):
            columns = _text_columns(line) if columns is None else columns
            continue
        if not line.strip() or line.startswith(
            ("Regs:", "SSMem:", "DSMem:", "SrcMemType:", "DstMemType:")
        ):
            continue
        try:
            value = _text_values(line, columns)
            devices.add(value["Device"])
            _add(builder, value, is_binary=True)
        except ValueError as error:
            if index == len(lines) - 1 and len(builder):
                notes.append(f"line {index + 1} is truncated and left out")
                break
            raise bad_line(path, index + 1, error, "a launch: start, duration, ...") from None
    return _profile(path, FORMAT, builder, devices, notes)


def read_launch_csv(path: Path, text: str) -> Profile:
    """Reads a CSV table of launches: nvprof's (a row of units below the names) or nsys's (units in
    the names).

    Raises:
        DataError: an invalid line, or no launch.
    """
    builder, devices = EventBuilder(), set()
    columns: dict[str, int] = {}
    units: dict[str, str] = {}
    is_nsys = False
    for index, cells in enumerate(csv_rows(text)):
        if not columns:
            columns = _csv_columns(cells)
            is_nsys = bool(columns) and "(" in cells[columns["Start"]]
            if is_nsys:
                units = {
                    name: cells[i].partition("(")[2].rstrip(")") for name, i in columns.items()
                }
            continue
        try:
            if not units:
                units = {name: cells[i] for name, i in columns.items()}
                seconds("1", units["Duration"])
                continue
            raw = {name: cells[i] for name, i in columns.items()}
            devices.add(raw.get("Device", ""))
            _add(builder, _csv_values(raw, units), is_binary=not is_nsys)
        except (ValueError, IndexError) as error:
            raise bad_line(
                path, index + 1, error, "a launch with the columns of the header"
            ) from None
    return _profile(path, NSYS_FORMAT if is_nsys else f"{FORMAT} (CSV)", builder, devices, [])


def _profile(
    path: Path, name: str, builder: EventBuilder, devices: set[str], notes: list[str]
) -> Profile:
    if not len(builder):
        raise DataError(f"{path}: a table of launches without a launch; the file is truncated")
    rows, events = builder.finish(units_per_s=1.0)
    found = sorted(re.sub(r"\s*\(\d+\)$", "", device) for device in devices if device)
    if len(found) > 1:
        notes.append(f"launches of {len(found)} devices: {', '.join(found)}")
    return Profile(
        str(path), name, rows, events, device_name=found[0] if len(found) == 1 else None,
        notes=tuple(notes),
    )  # fmt: skip


def _add(builder: EventBuilder, value: dict[str, str], *, is_binary: bool) -> None:
    """Adds a launch whose values include their units."""
    start, duration = seconds(value["Start"]), seconds(value["Duration"])
    name = _LAUNCH_NUMBER.sub("", value["Name"])
    grid, block = _triple(value.get("Grid Size", "-")), _triple(value.get("Block Size", "-"))
    launch = None
    if block is not None:
        shared = [
            round(size_bytes(value[key], is_binary=is_binary))
            for key in ("SSMem*", "DSMem*")
            if value.get(key, "-") != "-"
        ]
        registers = value.get("Regs*", "-")
        launch = Launch(
            grid, block, None if registers == "-" else int(number(registers)),
            sum(shared) if shared else None,
        )  # fmt: skip
    moved = value.get("Size", "-")
    row = builder.row(device_kind(name), name, launch)
    where = (value.get("Device", ""), value.get("Context", ""), value.get("Stream", ""))
    lane = builder.lane(where, f"{where[0] or 'GPU'} stream {where[2] or '?'}")
    builder.add(
        row, start, duration, lane,
        moved_bytes=None if moved == "-" else size_bytes(moved, is_binary=is_binary),
    )  # fmt: skip


def _text_columns(line: str) -> list[str] | None:
    """Returns the columns of a header line; None for other lines."""
    if not re.match(r"^\s*Start\s+Duration\s", line):
        return None
    found, rest = [], line
    while rest.strip():
        rest = rest.strip()
        name = next((column for column in _TEXT_COLUMNS if rest.startswith(column)), None)
        if name is None:
            return None
        found.append(name)
        rest = rest[len(name) :]
    return found if found[-1] == "Name" and "Device" in found else None


def _text_values(line: str, columns: list[str]) -> dict[str, str]:
    value, place = {}, 0
    for column in columns[: columns.index("Device")]:
        token = _TOKEN.match(line, place)
        if token is None:
            raise ValueError(repr(line.strip()[:80]))
        value[column], place = token[1], token.end()
    tail = _TAIL.match(line, place)
    if tail is None:
        raise ValueError(repr(line.strip()[:80]))
    return {**value, **tail.groupdict()}


def _csv_columns(cells: list[str]) -> dict[str, int]:
    """Returns column -> index; empty if it is not the header of a table of launches."""
    bare = {cell.partition(" (")[0]: place for place, cell in enumerate(cells)}
    exact = {cell: place for place, cell in enumerate(cells)}
    found = {}
    for column, names in _CSV_NAMES.items():
        place = next((exact[name] for name in names if name in exact), None)
        if place is None:
            place = next((bare[name] for name in names if name in bare), None)
        if place is not None:
            found[column] = place
    return found if {"Start", "Duration", "Name", "Block X"} <= set(found) else {}


def _csv_values(raw: dict[str, str], units: dict[str, str]) -> dict[str, str]:
    """Returns the values of a CSV row in the form of the text table, with units."""
    value = {"Name": raw["Name"]}
    value |= {name: raw.get(name, "") for name in ("Device", "Context", "Stream")}
    for name in ("Start", "Duration"):
        value[name] = f"{number(raw[name])!r}{units[name]}"
    for what in ("Grid", "Block"):
        parts = [raw.get(f"{what} {axis}", "") for axis in "XYZ"]
        value[f"{what} Size"] = f"({' '.join(parts)})" if all(parts) else "-"
    value["Regs*"] = raw.get("Registers", "") or "-"
    for column, name in (("Static", "SSMem*"), ("Dynamic", "DSMem*"), ("Size", "Size")):
        given = raw.get(column, "")
        value[name] = f"{number(given)!r}{units[column] or 'B'}" if given else "-"
    return value


def _triple(text: str) -> tuple[int, int, int] | None:
    if text == "-":
        return None
    parts = [int(number(part)) for part in text.strip("()").replace(",", " ").split()]
    if len(parts) != 3:
        raise ValueError(f"size {text!r}")
    return parts[0], parts[1], parts[2]
