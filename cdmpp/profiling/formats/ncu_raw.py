"""CSV pages of Nsight Compute: raw (`ncu --csv --page raw`), with a row of units below the names,
and details (`ncu --csv`), with one line per metric.
Source: Nsight Compute CLI documentation; metric names of its kernel profiling guide.
"""

from __future__ import annotations

import re
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.open_text import bad_line, csv_rows
from cdmpp.profiling.formats.names import short_name
from cdmpp.profiling.formats.units import number, seconds, size_bytes
from cdmpp.profiling.schema import Launch, Profile, ProfileRow

FORMAT = "ncu (CSV)"
_NAME, _TIME = "Kernel Name", "gpu__time_duration.sum"
_FLOP = {
    f"smsp__sass_thread_inst_executed_op_{kind}{what}_pred_on.sum": weight
    for kind in "fdh"
    for what, weight in (("add", 1.0), ("mul", 1.0), ("fma", 2.0))
}
#: Names of cuBLAS, cuDNN and CUTLASS kernels on tensor cores, which the counters of scalar
#: instructions do not cover.
_TENSOR_CORES = re.compile(r"nvjet|gmma|[hi]mma|tensorop|tf32|884|1688|16816|16832")
_SHARED = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
_BYTES = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_ALL_BYTES = "dram__bytes.sum"
_METRIC, _UNIT, _VALUE = "Metric Name", "Metric Unit", "Metric Value"
#: Metric name on the details page -> name on the raw page.
_DETAILS = {
    "Duration": _TIME, "Registers Per Thread": "launch__registers_per_thread",
    "Static Shared Memory Per Block": _SHARED[0], "Dynamic Shared Memory Per Block": _SHARED[1],
}  # fmt: skip


def is_ncu_raw(text: str) -> bool:
    """Whether a text contains a page of Nsight Compute."""
    return f'"{_NAME}"' in text or f",{_NAME}," in text


def read_ncu_raw(path: Path, text: str) -> Profile:
    """Returns one row per kernel and launch configuration, with its metrics.

    Raises:
        DataError: no permission to read counters, no table, a missing time, or an invalid value.
    """
    if "ERR_NVGPUCTRPERM" in text:
        raise DataError(
            f"{path}: ncu was not allowed to read counters (ERR_NVGPUCTRPERM); expected root or "
            "the driver option NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if _NAME in line)
    table = csv_rows("\n".join(lines[first:]))
    if {_METRIC, _UNIT, _VALUE, "ID"} <= set(table[0]):
        table = _as_raw(path, table, first)
    names, units_row, launches = table[0], table[1] if len(table) > 1 else [], table[2:]
    if not launches or _TIME not in names:
        raise DataError(
            f"{path}: {len(launches)} launches of ncu"
            f"{'' if _TIME in names else f' without {_TIME}'}; expected a page with times: "
            f"ncu --csv, or ncu --csv --page raw --metrics {_TIME},..."
        )
    if len(units_row) != len(names):
        raise bad_line(path, first + 2, f"{len(units_row)} units", f"{len(names)} units")
    units = dict(zip(names, units_row, strict=True))
    found: dict[tuple[str, Launch], list[dict[str, str]]] = {}
    for index, cells in enumerate(launches):
        if len(cells) != len(names):
            raise bad_line(path, first + index + 3, f"{len(cells)} values", f"{len(names)} values")
        value = dict(zip(names, cells, strict=True))
        try:
            found.setdefault((value[_NAME], _launch(value, units)), []).append(value)
            seconds(value[_TIME], units[_TIME])
            _moved([value], units)
        except (ValueError, OverflowError) as error:
            raise bad_line(path, first + index + 3, error, "a launch with its metrics") from None
    rows = tuple(_row(name, launch, values, units) for (name, launch), values in found.items())
    return Profile(str(path), FORMAT, rows)


def _as_raw(path: Path, table: list[list[str]], first: int) -> list[list[str]]:
    """Converts lines of the details page to rows of a raw page.

    Raises:
        DataError: a truncated line, or a time or size without a valid unit.
    """
    names, units = table[0], {}
    least = names.index(_VALUE) + 1  # lines of metrics lack the columns of rules
    launches: dict[tuple[str, str], dict[str, str]] = {}
    for place, cells in enumerate(table[1:], first + 2):
        if not least <= len(cells) <= len(names):
            raise bad_line(path, place, f"{len(cells)} values", f"{least} to {len(names)} values")
        line = dict(zip(names, cells, strict=False))
        metric = _DETAILS.get(line[_METRIC], line[_METRIC])
        value, unit = line[_VALUE], line[_UNIT]
        try:  # every line has its own unit
            if metric == _TIME:
                value, unit = repr(seconds(value, unit)), "s"
            elif metric in (*_SHARED, *_BYTES, _ALL_BYTES):
                value, unit = repr(size_bytes(value, unit, is_binary=False)), "byte"
        except ValueError as error:
            raise bad_line(path, place, error, "a metric with its unit") from None
        launch = launches.setdefault((line.get("Process ID", ""), line["ID"]), line)
        if metric:  # lines of rules have no metric
            launch[metric], units[metric] = value, unit
    columns = [name for name in names if name not in (_METRIC, _UNIT, _VALUE)] + list(units)
    rows = [[launch.get(name, "") for name in columns] for launch in launches.values()]
    return [columns, [units.get(name, "") for name in columns], *rows]


def _row(
    name: str, launch: Launch, values: list[dict[str, str]], units: dict[str, str]
) -> ProfileRow:
    import numpy as np

    samples = np.array([seconds(value[_TIME], units[_TIME]) for value in values])
    metrics: dict[str, float | str] = {}
    for metric in values[0]:
        if "__" not in metric:
            continue
        numbers = [_number(value[metric]) for value in values]
        known = [value for value in numbers if value is not None]
        if known:
            metrics[metric] = sum(known) / len(known)
    return ProfileRow(
        kind="kernel", name=name, short_name=short_name(name), calls=len(samples),
        total_s=float(samples.sum()), min_s=float(samples.min()), max_s=float(samples.max()),
        samples_s=samples, launch=launch, flop=_flop(values), moved_bytes=_moved(values, units),
        metrics=metrics,
    )  # fmt: skip


def _flop(values: list[dict[str, str]]) -> float | None:
    """Returns the operations of scalar instructions; None for kernels on tensor cores, which have
    other instructions.
    """
    known = [name for name in _FLOP if name in values[0]]
    if not known or _TENSOR_CORES.search(values[0][_NAME].lower()):
        return None
    return sum(_FLOP[name] * (_number(value[name]) or 0.0) for value in values for name in known)


def _moved(values: list[dict[str, str]], units: dict[str, str]) -> float | None:
    names = (_ALL_BYTES,) if _ALL_BYTES in values[0] else _BYTES
    if any(name not in values[0] for name in names):
        return None
    return sum(
        size_bytes(value[name], units[name], is_binary=False) for value in values for name in names
    )


def _launch(value: dict[str, str], units: dict[str, str]) -> Launch:
    registers = _number(value.get("launch__registers_per_thread", ""))
    shared = None
    if all(name in value for name in _SHARED):
        shared = round(
            sum(size_bytes(value[name], units[name], is_binary=False) for name in _SHARED)
        )
    return Launch(
        _triple(value.get("Grid Size", "")), _triple(value.get("Block Size", "")),
        None if registers is None else int(registers), shared,
    )  # fmt: skip


def _triple(text: str) -> tuple[int, int, int] | None:
    parts = [_number(part) for part in text.strip("()").split(",")]
    if len(parts) != 3 or any(part is None for part in parts):
        return None
    x, y, z = (int(part or 0) for part in parts)
    return x, y, z


def _number(text: str) -> float | None:
    try:
        return number(text)
    except ValueError:
        return None
