"""Counters of convolution kernels from Nsight Compute: command, output parser, kernel names."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdmpp.analytic.conv.algorithms import find_variant
from cdmpp.errors import DataError
from cdmpp.files.places import package_folder
from cdmpp.files.yaml_text import parse_yaml

#: Metric of Nsight Compute -> attribute of `KernelCounters`.
METRICS = {
    "gpu__time_duration.sum": "time_ms",
    "smsp__sass_thread_inst_executed_op_fp32_pred_on.sum": "fp32_instructions",
    "dram__sectors_read.sum": "dram_reads",
    "dram__sectors_write.sum": "dram_writes",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_level",
    "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active": "fp32_level",
    "launch__grid_size": "blocks",
    "launch__occupancy_limit_blocks": "limit_blocks",
    "launch__occupancy_limit_registers": "limit_registers",
    "launch__occupancy_limit_shared_mem": "limit_shared_memory",
    "launch__occupancy_limit_warps": "limit_warps",
    "device__attribute_multiprocessor_count": "core_count",
}
_TIME_TO_MS = {"ns": 1e-6, "us": 1e-3, "usecond": 1e-3, "nsecond": 1e-6, "ms": 1.0, "msecond": 1.0,
               "s": 1e3, "second": 1e3}  # fmt: skip
_LEVEL_PER_PERCENT = 0.1
_NAME_COLUMN = "Kernel Name"


@dataclass(frozen=True)
class KernelCounters:
    """Counters of one kernel launch from Nsight Compute.

    Attributes:
        name: name of the kernel.
        time_ms: time of the launch.
        fp32_instructions: thread-level fp32 instructions.
        dram_reads: read sectors of 32 bytes.
        dram_writes: written sectors of 32 bytes.
        dram_level: use of the DRAM, 0 to 10.
        fp32_level: use of the fp32 pipe, 0 to 10.
        blocks: launched blocks.
        resident: blocks that the device holds at once.
    """

    name: str
    time_ms: float
    fp32_instructions: float
    dram_reads: float
    dram_writes: float
    dram_level: float
    fp32_level: float
    blocks: int
    resident: int


@dataclass(frozen=True)
class KernelName:
    """One line of the table of kernel names.

    Attributes:
        pattern: regular expression that is searched in the name, ignoring case.
        table: workbook of the kernel; None = no workbook.
    """

    pattern: str
    table: str | None


def ncu_command(program: Sequence[str]) -> list[str]:
    """Returns the command that runs a program under Nsight Compute and prints CSV.

    Clocks are not locked, so that times are those of an unprofiled run.
    """
    return [
        "ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--target-processes", "all", "--metrics", ",".join(METRICS), *program,
    ]  # fmt: skip


def parse_ncu(text: str) -> list[KernelCounters]:
    """Parses the launches in the output of `ncu_command`.

    Lines before the table (messages of the program and of ncu) are skipped.

    Raises:
        DataError: no table, a missing metric, or no permission to read the counters.
    """
    if "ERR_NVGPUCTRPERM" in text:
        raise DataError(
            "no permission to read the counters (ERR_NVGPUCTRPERM): expected root or the driver "
            "option NVreg_RestrictProfilingToAdminUsers=0. Leave out --counters to collect only "
            "times"
        )
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if f'"{_NAME_COLUMN}"' in line), None)
    if start is None:
        raise DataError("the output of ncu has no table; run it with --csv --page raw")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))
    missing = [name for name in METRICS if rows and name not in rows[0]]
    if missing or len(rows) < 2:
        raise DataError(
            f"the output of ncu has {max(len(rows) - 1, 0)} launches and lacks "
            f"{', '.join(missing) or 'nothing'}; expected at least one with every metric"
        )
    units, launches = rows[0], rows[1:]
    return [_counters(row, units) for row in launches]


def read_kernel_names(path: Path | None = None) -> tuple[KernelName, ...]:
    """Reads the table of kernel names; None = the one shipped beside this module.

    Raises:
        DataError: the file is missing or malformed, or names an unknown variant.
    """
    path = path or package_folder("cdmpp.analytic.conv.collect") / "cudnn_kernels.yaml"
    try:
        lines = parse_yaml(path.read_text(encoding="utf-8"))["kernels"]
        names = []
        for line in lines:
            table = line.get("helper") or line.get("variant")
            if line.get("variant"):
                find_variant(line["variant"])
            re.compile(line["pattern"])
            names.append(KernelName(line["pattern"], table))
    except (OSError, ValueError, re.error, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: cannot read the table of kernel names ({error}); expected `kernels:`, a list "
            "of pattern and variant"
        ) from None
    return tuple(names)


def tables_of(
    launches: Sequence[KernelCounters], names: Sequence[KernelName]
) -> tuple[list[str | None], Counter[str]]:
    """Returns (table of each launch, None without a table; count of each kernel name that matches
    no pattern).
    """
    tables: list[str | None] = []
    unmatched: Counter[str] = Counter()
    for launch in launches:
        found = next((n for n in names if re.search(n.pattern, launch.name, re.IGNORECASE)), None)
        if found is None:
            unmatched[launch.name] += 1
        tables.append(found.table if found else None)
    return tables, unmatched


def _counters(row: dict[str, str], units: dict[str, str]) -> KernelCounters:
    values: dict[str, float] = {}
    for metric, name in METRICS.items():
        try:
            values[name] = float(row[metric].replace(",", ""))
        except ValueError:
            raise DataError(
                f"ncu gave {row[metric]!r} for {metric} of {row[_NAME_COLUMN]}; expected a number"
            ) from None
    unit = units["gpu__time_duration.sum"]
    if unit not in _TIME_TO_MS:
        raise DataError(f"ncu gave times in {unit!r}; expected one of {', '.join(_TIME_TO_MS)}")
    per_core = min(
        values[f"limit_{name}"] for name in ("blocks", "registers", "shared_memory", "warps")
    )
    return KernelCounters(
        name=row[_NAME_COLUMN],
        time_ms=values["time_ms"] * _TIME_TO_MS[unit],
        fp32_instructions=values["fp32_instructions"],
        dram_reads=values["dram_reads"],
        dram_writes=values["dram_writes"],
        dram_level=values["dram_level"] * _LEVEL_PER_PERCENT,
        fp32_level=values["fp32_level"] * _LEVEL_PER_PERCENT,
        blocks=int(values["blocks"]),
        resident=int(per_core * values["core_count"]),
    )
