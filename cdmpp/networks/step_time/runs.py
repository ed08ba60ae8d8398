"""Reads measured steps of networks from tables in the layout of timm's benchmarks."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.devices.registry import find_device
from cdmpp.errors import DataError, first_line
from cdmpp.networks.graph.execution import MODES, Dtype, Execution
from cdmpp.text import counted

#: Required columns; see `read_runs`.
NEEDED = ("device", "mode", "precision", "img_size", "batch_size")
_PRECISIONS: Mapping[str, Dtype] = {
    "amp_fp16": "amp-fp16", "amp_bf16": "amp-bf16", "fp32": "float32", "fp16": "float16",
    "bf16": "bfloat16",
}  # fmt: skip
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")


@dataclass(frozen=True)
class MeasuredRun:
    """A measured network on one device in one execution.

    Attributes:
        arch: timm's name of the architecture.
        family: group of architectures with the same blocks, by which data are split.
        device: device label.
        execution: how the network was run.
        size: side of the image in pixels.
        batch: batch size.
        step_s: mean seconds of a step.
        torch: version of torch; empty = unknown.
        macs: multiply-adds of one sample; None = unknown.
    """

    arch: str
    family: str
    device: str
    execution: Execution
    size: int
    batch: int
    step_s: float
    torch: str = ""
    macs: float | None = None


def read_runs(path: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Returns the runs of a table, and reason -> number of unusable rows.

    Args:
        path: Parquet or CSV with the columns `arch` (or `model`, whose tag is cut off), `device`,
            `mode` (infer, train), `precision` (fp32, fp16, bf16, amp_fp16, amp_bf16), `img_size`
            (pixels), `batch_size` and `step_ms` (or `samples_per_s`). Optional columns:
            `memory_format` (nchw, nhwc), `compiled`, `family`, `torch`, `gmacs_max` (or `gmacs`).

    Raises:
        DataError: the file cannot be read, a required column is missing, or no row is usable.
    """
    rows = _rows(Path(path))
    names = set(rows[0]) if rows else set()
    missing = [name for name in NEEDED if name not in names]
    missing += [
        " or ".join(names_of)
        for names_of in (("arch", "model"), ("step_ms", "samples_per_s"))
        if names.isdisjoint(names_of)
    ]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(missing)}; expected a table in the layout of timm's "
            "benchmarks: one row per network, device and way of running"
        )
    runs: list[MeasuredRun] = []
    left_out: dict[str, int] = {}
    for row in rows:
        try:
            runs.append(_run(row))
        except _UnusableError as error:
            left_out[str(error)] = left_out.get(str(error), 0) + 1
    if not runs:
        why = "; ".join(f"{reason} ({counted(count, 'row')})" for reason, count in left_out.items())
        raise DataError(f"{path}: no usable row: {why or 'the table is empty'}")
    return runs, left_out


class _UnusableError(Exception):
    """A row cannot be used; the text is the reason."""


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        import pyarrow.parquet as parquet

        return list(parquet.read_table(path).to_pylist())
    except OSError as error:
        why = error.strerror or first_line(error)
        raise DataError(f"{path}: cannot be read ({why}); expected Parquet or CSV") from error
    except (ValueError, csv.Error) as error:  # pyarrow's errors are ValueErrors
        raise DataError(
            f"{path}: cannot be read ({first_line(error)}); expected Parquet or CSV"
        ) from error


def _run(row: Mapping[str, Any]) -> MeasuredRun:
    device = find_device(str(row["device"]))
    if device is None:
        raise _UnusableError(f"unknown device {row['device']!s:.40}")
    precision = _PRECISIONS.get(str(row["precision"]))
    if precision is None:
        raise _UnusableError(f"unknown precision {row['precision']!s:.40}")
    if row["mode"] not in MODES:
        raise _UnusableError(f"unknown mode {row['mode']!s:.40}")
    layout = str(row.get("memory_format") or "nchw")
    if layout not in ("nchw", "nhwc"):
        raise _UnusableError(f"unknown memory format {layout:.40}")
    name = str(row.get("arch") or row.get("model") or "").partition(".")[0]
    batch, size = _number(row["batch_size"]) or 0.0, _number(row["img_size"]) or 0.0
    step_ms = _number(row.get("step_ms"))
    rate = _number(row.get("samples_per_s"))
    step_s = step_ms / 1e3 if step_ms else batch / rate if rate else 0.0
    if not name or batch < 1 or size < 1 or step_s <= 0:
        raise _UnusableError("no architecture, batch, image size or time")
    macs = _number(row.get("gmacs_max")) or _number(row.get("gmacs"))
    execution = Execution(
        precision, "nhwc" if layout == "nhwc" else "nchw", _truth(row.get("compiled")),
        "train" if row["mode"] == "train" else "infer",
    )  # fmt: skip
    return MeasuredRun(
        name, str(row.get("family") or name), device.name, execution, int(size), int(batch), step_s,
        str(row.get("torch") or ""), macs * 1e9 if macs else None,
    )  # fmt: skip


def _number(value: Any) -> float | None:
    """Returns a number; None if it is missing, NaN or infinite."""
    try:
        number = float(value) if value not in (None, "") else math.nan
        return number if math.isfinite(number) else None
    except (TypeError, ValueError):
        raise _UnusableError(f"cannot read {value!s:.40} as a number") from None


def _truth(value: Any) -> bool:
    text = str(value if value is not None else "").lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _UnusableError(f"`compiled` is {text:.40}")


def architectures(runs: Sequence[MeasuredRun]) -> list[tuple[str, int]]:
    """Returns the sorted (architecture, image size) of the runs."""
    return sorted({(run.arch, run.size) for run in runs})
