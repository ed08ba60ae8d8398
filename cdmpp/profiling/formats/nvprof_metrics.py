"""nvprof's `--metrics`: counters of each kernel without times, as text or CSV.

Source: CUDA profiler user's guide, event and metric summary modes.
"""

from __future__ import annotations

import re
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.open_text import bad_line, csv_rows
from cdmpp.profiling.formats.names import short_name
from cdmpp.profiling.formats.units import split_unit
from cdmpp.profiling.schema import Profile, ProfileRow

FORMAT = "nvprof metrics"
_SECTOR_BYTES = 32
_DEVICE = re.compile(r'^\s*Device\s+"(.+?)(?: \(\d+\))?"\s*$')
_KERNEL = re.compile(r"^\s*Kernel:\s*(\S.*?)\s*$")
_ROW = re.compile(r"^\s*(\d+)\s+(\w+)\s+(\S.*)$")
_HEADER = re.compile(r"^\s*Invocations\s+Metric Name\s+Metric Description\s+Min\s+Max\s+Avg\s*$")
_CSV_COLUMNS = ("Device", "Kernel", "Invocations", "Metric Name", "Min", "Max", "Avg")
_FLOP = ("flop_count_sp", "flop_count_dp", "flop_count_hp")


def is_nvprof_metrics(text: str) -> bool:
    """Whether a text contains nvprof's table of metrics, as text or CSV."""
    if any(_HEADER.match(line) for line in text.splitlines()):
        return True
    return "Metric Name" in text and any(_is_csv_header(row) for row in csv_rows(text))


def read_nvprof_metrics(path: Path, text: str) -> Profile:
    """Returns the counters, one row per kernel.

    Raises:
        DataError: an invalid line, or no row.
    """
    is_text = any(_HEADER.match(line) for line in text.splitlines())
    found = _read_text(path, text) if is_text else _read_csv(path, text)
    device, kernels = found
    if not kernels:
        raise DataError(f"{path}: a table of metrics without a kernel; the file is truncated")
    rows = tuple(_row(name, calls, values) for name, (calls, values) in kernels.items())
    notes = ("metrics have no times: read a summary or trace of the program together with them",)
    return Profile(str(path), FORMAT, rows, device_name=device, notes=notes)


_Kernels = dict[str, tuple[int, dict[str, float | str]]]


def _read_text(path: Path, text: str) -> tuple[str | None, _Kernels]:
    device, kernel, is_table = None, None, False
    kernels: _Kernels = {}
    for index, line in enumerate(text.splitlines()):
        if _HEADER.match(line):
            is_table = True
            continue
        if not is_table or not line.strip() or line.startswith("=="):
            continue
        found_device, found_kernel = _DEVICE.match(line), _KERNEL.match(line)
        if found_device is not None:
            device = found_device[1]
        elif found_kernel is not None:
            kernel = found_kernel[1]
        else:
            row = _ROW.match(line)
            parts = re.split(r"\s{2,}", row[3].strip()) if row else []
            if row is None or kernel is None or len(parts) < 4:
                raise bad_line(
                    path, index + 1, repr(line.strip()[:80]),
                    "invocations, metric, description, min, max and avg",
                )  # fmt: skip
            kernels.setdefault(kernel, (int(row[1]), {}))[1][row[2]] = _value(parts[-1])
    return device, kernels


def _read_csv(path: Path, text: str) -> tuple[str | None, _Kernels]:
    device, columns = None, dict[str, int]()
    kernels: _Kernels = {}
    for index, cells in enumerate(csv_rows(text)):
        if _is_csv_header(cells):
            columns = {name: place for place, name in enumerate(cells)}
            continue
        if not columns:
            continue
        try:
            value = {name: cells[columns[name]] for name in _CSV_COLUMNS}
            device = re.sub(r"\s*\(\d+\)$", "", value["Device"])
            calls = int(value["Invocations"])
        except (IndexError, ValueError) as error:
            raise bad_line(
                path, index + 1, error, "a metric with the columns of the header"
            ) from None
        metrics = kernels.setdefault(value["Kernel"], (calls, {}))[1]
        metrics[value["Metric Name"]] = _value(value["Avg"])
    return device, kernels


def _row(name: str, calls: int, metrics: dict[str, float | str]) -> ProfileRow:
    numbers = {key: value for key, value in metrics.items() if isinstance(value, float)}
    flop = [numbers[key] for key in _FLOP if key in numbers]
    moved = None
    if {"dram_read_bytes", "dram_write_bytes"} <= set(numbers):
        moved = numbers["dram_read_bytes"] + numbers["dram_write_bytes"]
    elif {"dram_read_transactions", "dram_write_transactions"} <= set(numbers):
        moved = numbers["dram_read_transactions"] + numbers["dram_write_transactions"]
        moved *= _SECTOR_BYTES
    return ProfileRow(
        kind="kernel", name=name, short_name=short_name(name), calls=calls, total_s=0.0,
        moved_bytes=None if moved is None else moved * calls,
        flop=sum(flop) * calls if flop else None, metrics=metrics,
    )  # fmt: skip


def _value(text: str) -> float | str:
    """Returns a plain number as float, a percentage as fraction; other texts unchanged."""
    try:
        value, unit = split_unit(text)
    except ValueError:
        return text
    if unit == "%":
        return value / 100.0
    return value if not unit else text


def _is_csv_header(cells: list[str]) -> bool:
    return set(_CSV_COLUMNS) <= set(cells)
