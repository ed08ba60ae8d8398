"""CSV of the CUTLASS profiler (`cutlass_profiler --output=FILE.csv`): one kernel per row.

Source: CUTLASS profiler documentation, output columns.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cdmpp.analytic.kernels.call import Call
from cdmpp.errors import DataError
from cdmpp.files.open_text import bad_line, csv_rows
from cdmpp.profiling.formats.units import number
from cdmpp.profiling.schema import Profile, ProfileRow
from cdmpp.text import counted

FORMAT = "CUTLASS profiler (CSV)"
_MS_PER_S = 1e3
_NEEDED = ("OperationKind", "Operation", "Runtime")
_DTYPES = {
    "f16": "c10::Half", "bf16": "c10::BFloat16", "f32": "float", "f64": "double", "tf32": "tf32",
    "s8": "int8", "u8": "uint8",
}  # fmt: skip
_PASSED = ("success", "passed", "")


def is_cutlass_csv(text: str) -> bool:
    """Whether a text has the columns of the CUTLASS profiler."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return set(_NEEDED) <= {cell.strip().strip('"') for cell in first.split(",")}


def read_cutlass_csv(path: Path, text: str) -> Profile:
    """Returns one row per kernel and problem; a note counts the kernels that did not run.

    Raises:
        DataError: a bad value, or no kernel that ran.
    """
    table = csv_rows(text)
    names, rows, failed = table[0], [], 0
    for index, cells in enumerate(table[1:]):
        if cells == names:
            continue
        try:
            value = dict(zip(names, cells, strict=True))
            runtime_s = number(value["Runtime"]) / _MS_PER_S if value["Runtime"] else 0.0
            is_run = value.get("Status", "").lower() in _PASSED and runtime_s > 0.0
            if not is_run:
                failed += 1
                continue
            rows.append(_row(value, runtime_s))
        except ValueError as error:
            raise bad_line(path, index + 2, error, f"{len(names)} values") from None
    if not rows:
        raise DataError(
            f"{path}: no kernel that ran ({failed} failed); expected rows with a Runtime; run "
            "cutlass_profiler again with --providers=cutlass"
        )
    notes = (f"{counted(failed, 'kernel')} left out: did not run",) if failed else ()
    return Profile(str(path), FORMAT, tuple(rows), notes=notes)


def _row(value: dict[str, str], runtime_s: float) -> ProfileRow:
    flop, moved = (number(value[key]) if value.get(key) else None for key in ("Flops", "Bytes"))
    return ProfileRow(
        kind="kernel", name=value["Operation"], short_name=value["Operation"], calls=1,
        total_s=runtime_s, min_s=runtime_s, max_s=runtime_s, samples_s=np.array([runtime_s]),
        moved_bytes=moved, flop=flop, call=_call(value),
    )  # fmt: skip


def _call(value: dict[str, str]) -> Call | None:
    """Returns the problem of a row; None if it is neither a GEMM nor a convolution."""
    kind = value["OperationKind"].lower()
    dtype = _DTYPES.get(value.get("A", value.get("Activation", "")).partition(":")[0], "unknown")
    try:
        if "gemm" in kind:
            m, n, k = (int(value[name]) for name in "mnk")
            batch = int(value.get("batch_count") or 1)
            return Call("gemm", ((batch, m, k), (batch, k, n)), (dtype, dtype))
        if "conv2d" in kind and value.get("conv_kind", "fprop") == "fprop":
            n, c, h, w, k, r, s = (int(value[name]) for name in "nchwkrs")
            settings = (
                ("stride", (int(value["stride_h"]), int(value["stride_w"]))),
                ("padding", (int(value["pad_h"]), int(value["pad_w"]))),
                ("groups", (int(value.get("groups") or 1),)),
            )
            return Call("conv2d", ((n, c, h, w), (k, c, r, s)), (dtype, dtype), settings)
    except (KeyError, ValueError):
        return None
    return None
