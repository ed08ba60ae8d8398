"""Counters of forward convolutions: Nsight Compute profiles every (layer, algorithm) once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdmpp.analytic.conv.algorithms import conv_variants
from cdmpp.analytic.conv.collect.cudnn_collect import Collected
from cdmpp.analytic.conv.collect.cudnn_counters import (
    KernelCounters,
    KernelName,
    ncu_command,
    parse_ncu,
    tables_of,
)
from cdmpp.analytic.conv.collect.cudnn_library import MathType
from cdmpp.analytic.conv.seer.table import ConvTable
from cdmpp.analytic.conv.seer.workbook import write_workbook
from cdmpp.analytic.conv.shapes import SHAPE_NAMES, ConvShapes
from cdmpp.errors import DeviceError
from cdmpp.files.atomic import check_replaceable, make_folder

#: Runs a command and returns its output; tests replace it by a recording.
Runner = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Profiled:
    """Rows of the workbooks.

    Attributes:
        tables: workbook name -> rows; the counters of a call's kernels in one table are added up.
        unmatched: kernel name that matches no pattern -> count.
    """

    tables: dict[str, ConvTable]
    unmatched: dict[str, int]


def profile(
    layers: ConvShapes,
    algorithms: Sequence[int],
    names: Sequence[KernelName],
    *,
    math: MathType = "fma",
    runner: Runner | None = None,
) -> Profiled:
    """Returns the counters of every layer with its algorithm.

    Args:
        algorithms: cuDNN's number for each layer.
        names: table of kernel names.
        math: as in `CollectOptions`.
        runner: runs a command; None = `run_command`.

    Raises:
        DeviceError: ncu is missing or failed.
        DataError: the output of ncu cannot be parsed.
    """
    runner = runner or run_command
    rows: dict[str, list[ConvTable]] = {}
    unmatched: Counter[str] = Counter()
    for index, algorithm in enumerate(algorithms):
        layer = layers[np.array([index])]
        launches = parse_ncu(runner(ncu_command(_program(layer, algorithm, math))))
        tables, unknown = tables_of(launches, names)
        unmatched.update(unknown)
        for name in dict.fromkeys(table for table in tables if table is not None):
            own = [launch for launch, table in zip(launches, tables, strict=True) if table == name]
            rows.setdefault(name, []).append(table_row(layer, algorithm, own))
    return Profiled(
        {name: ConvTable.concatenate(parts) for name, parts in rows.items()}, dict(unmatched)
    )


def write_counters(
    folder: Path,
    layers: ConvShapes,
    found: Sequence[Collected],
    names: Sequence[KernelName],
    *,
    math: MathType = "fma",
) -> dict[str, int]:
    """Profiles the measured layers and writes a workbook (csv) for each variant; returns the count
    of each kernel name that matches no pattern.

    Raises:
        DeviceError, DataError: as `profile`, or the folder cannot be written.
    """
    measured = [value for value in found if value.time_ms is not None]
    profiled = profile(
        layers[np.array([value.row for value in measured], np.int64)],
        [value.algorithm for value in measured],
        names,
        math=math,
    )
    write_profiled(folder, profiled)
    return profiled.unmatched


def check_workbooks(folder: Path) -> None:
    """Checks that `write_profiled` replaces workbooks only.

    Raises:
        UsageError: another file has the name of one.
    """
    for variant in conv_variants():
        check_replaceable(
            folder / f"{variant.name}.train.csv", ",".join((*SHAPE_NAMES, "algo_")),
            what="a workbook of measured kernels", option="--out",
        )  # fmt: skip


def write_profiled(folder: Path, profiled: Profiled) -> None:
    """Writes a workbook (csv) for each variant.

    Raises:
        DataError: the folder cannot be written.
    """
    make_folder(folder, what="workbooks")
    for name, table in profiled.tables.items():
        write_workbook(folder / name, {"train": table})


def run_command(command: Sequence[str]) -> str:
    """Returns the output of a command.

    Raises:
        DeviceError: the command is missing or failed.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise DeviceError(
            f"{command[0]} cannot be run ({error}); install Nsight Compute, or collect only times"
        ) from None
    if done.returncode and "ERR_NVGPUCTRPERM" not in done.stdout:
        said = (done.stderr or done.stdout).strip()[-300:]
        raise DeviceError(f"{command[0]} ended with {done.returncode}: {said}")
    return done.stdout


def _program(layer: ConvShapes, algorithm: int, math: MathType) -> list[str]:
    numbers = [int(getattr(layer, name)[0]) for name in SHAPE_NAMES if name != "out_width"]
    return [
        sys.executable, "-m", "cdmpp.cli.main", "analytic", "conv", "collect",
        "--layer", ",".join(map(str, numbers)), "--algorithm", str(int(algorithm)),
        "--math", math, "--repeats", "1", "--warmups", "0", "--json",
    ]  # fmt: skip


def table_row(layer: ConvShapes, algorithm: int, launches: Sequence[KernelCounters]) -> ConvTable:
    """Returns one row: sums over the launches, with levels and launch sizes of the longest one."""
    longest = max(launches, key=lambda launch: launch.time_ms)

    def total(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array([sum(getattr(launch, name) for launch in launches)], np.float64)

    def one(value: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array([value], np.float64)

    return ConvTable(
        layer,
        np.array([algorithm], np.int64),
        total("time_ms"),
        total("fp32_instructions"),
        total("dram_reads"),
        total("dram_writes"),
        one(longest.resident),
        one(longest.blocks),
        one(longest.fp32_level),
        one(longest.dram_level),
    )
