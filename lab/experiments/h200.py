"""What the shipped models predict for an H200 on which nothing was fitted."""

from __future__ import annotations

import csv
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.sweep.calls import SweepCall
from cdmpp.analytic.sweep.run import expected_s
from cdmpp.analytic.sweep.sweep_file import packaged_sweep
from cdmpp.arrays import FloatArray
from cdmpp.devices.registry import get_device
from cdmpp.pretrained import PRETRAINED
from cdmpp.text import markdown_table, percent_text
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.shell import cdmpp_json
from lab.stamp import PROGRAMS, stamp

_DATA, _DEVICE = ROOT / "data" / "h200", "h200"
#: Calls that take longer are little but the kernel's own work.
_LONG_S = 1e-4


def experiment(cache: Path = ROOT / "cache") -> None:
    """Asks the models (after `make tables`), and writes the page."""
    sweep = packaged_sweep()
    latency_s = np.array([one.latency_s for one in sweep.calls])
    ratio = expected_s([one.call for one in sweep.calls], get_device(_DEVICE)) / latency_s
    groups: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(sweep.calls):
        groups[_name(one.call)].append(place)
    kernels = [
        [name, str(len(own)), *_errors(ratio[own]), *_errors(ratio[own][latency_s[own] > _LONG_S])]
        for name, own in sorted(groups.items())
    ]
    with tempfile.TemporaryDirectory() as folder:
        fastest = Path(folder) / "fastest.csv"
        _keep_fastest(_DATA / "conv_all.csv", fastest)
        layers = {"fastest algorithm": fastest, "cuDNN's own choice": _DATA / "conv_free.csv"}
        convolutions = {
            name: cdmpp_json("analytic conv evaluate", layers=path, device=_DEVICE, split="none")
            for name, path in layers.items()
        }
    programs = cdmpp_json("evaluate", dataset=cache / "data" / "sealed-gpu", cache=cache)
    tables = {
        "kernels": markdown_table(
            ["kernels", "count", "median error", "predicted / measured",
             "median error above 0.1 ms", "predicted / measured above 0.1 ms"], kernels,
        ),
        "convolutions": markdown_table(
            ["convolutions", "layers", "median error", "MAPE", "in the interval"],
            [[name, str(one["n"]), percent_text(one["median_ape"]), percent_text(one["mape"]),
              percent_text(one["by_device"][_DEVICE]["coverage"])]
             for name, one in convolutions.items()],
        ),
        "programs": markdown_table(
            ["count", "tasks", "median error", "log error", "in the interval", "factor each way"],
            [_program_row(programs["tiers"]["fast"])],
        ),
    }  # fmt: skip
    values = {"kernels": kernels, "convolutions": convolutions, "programs": programs}
    origin = stamp("python -m lab run h200", schemas=PROGRAMS, models=[PRETRAINED])
    write_page("h200", sections("h200", **tables), values, origin)


def _name(call: SweepCall) -> str:
    dtype = getattr(call, "dtype", "float32")
    return f"{getattr(call, 'kind', type(call).__name__)}, {dtype}"


def _errors(ratio: FloatArray) -> tuple[str, str]:
    """Returns the median error and the median ratio; dashes for few calls."""
    if len(ratio) < 5:
        return "-", "-"
    return percent_text(float(np.median(np.abs(ratio - 1)))), f"{np.median(ratio):.2f}"


def _program_row(found: dict[str, Any]) -> list[str]:
    low, high = found["mean_log_error_interval"]
    return [
        str(found["n"]), str(found["tasks"]), percent_text(found["median_ape"]),
        f"{found['mean_log_error']:.2f} [{low:.2f}, {high:.2f}]",
        percent_text(found["inside_interval"]), f"{found['interval_factor']:.1f}",
    ]  # fmt: skip


def _keep_fastest(path: Path, out: Path) -> None:
    """Writes the fastest algorithm of each layer; the models predict no other."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["time_ms"]]
    best: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        layer = tuple(v for k, v in row.items() if k not in ("algorithm", "time_ms", "reason"))
        best[layer] = min(best.get(layer, row), row, key=lambda one: float(one["time_ms"]))
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(best.values())
