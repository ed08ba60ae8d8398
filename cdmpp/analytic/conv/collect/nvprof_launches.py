"""Counters of convolution kernels from nvprof, for GPUs before compute capability 7.5.

nvprof prints two tables with one row per launch: times and launch sizes with `--print-gpu-trace
--csv`, counters with `--print-gpu-trace --csv --metrics ...` (`NVPROF_METRICS`). Neither has the
layer: the program must run a list of layers in order with one algorithm, so that every layer
launches the same number of kernels.

Source: CUDA profiler user's guide, GPU-trace mode and the table of metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cdmpp.analytic.conv.collect.cudnn_counters import KernelCounters, KernelName, tables_of
from cdmpp.analytic.conv.collect.cudnn_profile import Profiled, table_row
from cdmpp.analytic.conv.seer.table import ConvTable
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.devices.occupancy import device_occupancy_limits, occupancy
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.open_text import csv_rows, read_text
from cdmpp.text import agreed, counted

#: Metric of nvprof -> (attribute of `KernelCounters`, description that may replace the name).
NVPROF_METRICS = {
    "inst_fp_32": ("fp32_instructions", "FP Instructions(Single)"),
    "dram_read_transactions": ("dram_reads", "Device Memory Read Transactions"),
    "dram_write_transactions": ("dram_writes", "Device Memory Write Transactions"),
    "single_precision_fu_utilization": (
        "fp32_level",
        "Single-Precision Function Unit Utilization",
    ),
    "dram_utilization": ("dram_level", "Device Memory Utilization"),
}
_GRID = ("Grid X", "Grid Y", "Grid Z")
_BLOCK = ("Block X", "Block Y", "Block Z")
_SHARED = ("Static SMem", "Dynamic SMem")
_REGISTERS = "Registers Per Thread"
_TO_MS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
_TO_BYTES = {"B": 1.0, "KB": 1024.0, "MB": 1024.0**2}
_CALL = re.compile(r"\s*\[\d+\]$")
_LEVEL = re.compile(r"\((\d+)\)\s*$")


def nvprof_tables(
    traces: Sequence[Path],
    metrics: Path,
    layers: ConvShapes,
    algorithm: int,
    device: DeviceSpec,
    names: Sequence[KernelName],
) -> Profiled:
    """Returns the rows of the workbooks.

    Args:
        traces: trace files of runs of the same program; their times are averaged.
        metrics: file with the metrics of another run.
        algorithm: cuDNN's number.
        names: table of kernel names.

    Raises:
        DataError: a file is not such a table, or the launches do not match the layers.
        DeviceError: the GPU's limits of occupancy or number of cores are unknown.
    """
    launches = read_launches(traces, metrics, device)
    tables, unmatched = tables_of(launches, names)
    known = [(one, name) for one, name in zip(launches, tables, strict=True) if name is not None]
    share, rest = divmod(len(known), len(layers))
    if rest or not share:
        raise DataError(
            f"{metrics}: {len(known)} of {len(launches)} launches "
            f"{agreed(len(known), 'are')} of known kernels, which is not a multiple of "
            f"{counted(len(layers), 'layer')}; expected one run of the layers in order "
            "with one algorithm. Unknown kernels: " + (", ".join(unmatched) or "none")
        )
    rows: dict[str, list[ConvTable]] = {}
    for index in range(len(layers)):
        own = known[index * share : (index + 1) * share]
        for name in dict.fromkeys(name for _, name in own):
            of_table = [one for one, other in own if other == name]
            layer = layers[np.array([index])]
            rows.setdefault(name, []).append(table_row(layer, algorithm, of_table))
    return Profiled(
        {name: ConvTable.concatenate(parts) for name, parts in rows.items()}, dict(unmatched)
    )


def read_launches(
    traces: Sequence[Path], metrics: Path, device: DeviceSpec
) -> list[KernelCounters]:
    """Returns the launches of a program in order, with times averaged over the traces.

    Raises:
        DataError, DeviceError: as `nvprof_tables`.
    """
    counted = _rows(metrics, ("Kernel",), has_units=False)
    columns = {name: _metric_column(counted[0], name, metrics) for name in NVPROF_METRICS}
    timed = [_rows(path, ("Name", "Duration", *_GRID), has_units=True) for path in traces]
    kernels = [[row for row in rows if row["Grid X"]] for rows in timed]
    found = []
    expected = [_CALL.sub("", row["Kernel"]) for row in counted]
    for path, rows in zip(traces, kernels, strict=True):
        if [_CALL.sub("", row["Name"]) for row in rows] != expected:
            raise DataError(
                f"{path}: got {len(rows)} launches, expected the {len(counted)} of {metrics}: "
                "both must be runs of the same program"
            )
    for index, row in enumerate(counted):
        own = [rows[index] for rows in kernels]
        try:
            found.append(_counters(row, columns, own, device))
        except (KeyError, ValueError) as error:
            raise DataError(f"{metrics}: launch {index + 1}: cannot read {error}") from None
    return found


def _counters(
    metrics: Mapping[str, str],
    columns: Mapping[str, str],
    traced: Sequence[Mapping[str, str]],
    device: DeviceSpec,
) -> KernelCounters:
    first = traced[0]
    values = {NVPROF_METRICS[name][0]: _number(metrics[column]) for name, column in columns.items()}
    per_core = occupancy(
        device_occupancy_limits(device),
        _product(first, _BLOCK),
        registers_per_thread=int(first[_REGISTERS]),
        shared_bytes_per_block=int(sum(_in_units(first, name, _TO_BYTES) for name in _SHARED)),
    ).blocks_per_core
    return KernelCounters(
        name=_CALL.sub("", first["Name"]),
        time_ms=float(np.mean([_in_units(row, "Duration", _TO_MS) for row in traced])),
        blocks=_product(first, _GRID),
        resident=per_core * (device.core_count or 0),
        **values,
    )


def _rows(path: Path, wanted: Sequence[str], *, has_units: bool) -> list[dict[str, str]]:
    """Returns the rows below the line of names; `NAME unit` has the unit of column NAME."""
    lines = csv_rows(read_text(path))
    start = next((i for i, line in enumerate(lines) if set(wanted) <= set(line)), None)
    below = [] if start is None else [line for line in lines[start + 1 :] if len(line) > 1]
    if start is None or len(below) <= has_units:
        raise DataError(
            f"{path}: no table with {', '.join(wanted)}; expected the output of nvprof "
            "--print-gpu-trace --csv" + ("" if has_units else " --metrics NAMES")
        )
    names = lines[start]
    units = {}
    if has_units:
        units = {f"{name} unit": unit for name, unit in zip(names, below[0], strict=False)}
    return [{**units, **dict(zip(names, line, strict=False))} for line in below[has_units:]]


def _metric_column(row: Mapping[str, str], name: str, path: Path) -> str:
    for wanted in (name, NVPROF_METRICS[name][1]):
        for column in row:
            if column.replace(" ", "").lower() == wanted.replace(" ", "").lower():
                return column
    raise DataError(
        f"{path}: no column of the metric {name}; expected nvprof --print-gpu-trace --csv "
        f"--metrics {','.join(NVPROF_METRICS)}"
    )


def _number(text: str) -> float:
    """Parses a count, or the level in a text such as `Mid (5)`."""
    level = _LEVEL.search(text)
    return float(level[1] if level else text.replace(",", ""))


def _in_units(row: Mapping[str, str], name: str, factors: Mapping[str, float]) -> float:
    return float(row[name]) * factors[row[f"{name} unit"]]


def _product(row: Mapping[str, str], names: Sequence[str]) -> int:
    return int(np.prod([int(row[name]) for name in names]))
