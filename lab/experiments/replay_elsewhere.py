"""Networks on a CPU that no model knows, as it comes and after `cdmpp device add`:
docs/results/replay-elsewhere.*.

    make bench-replay-elsewhere

Two folders of `lab.experiments.replay_validation --drawn`, with the same timings: predicted by the
shipped model for `this-cpu`, and by what `device add` left.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.devices.registry import get_device
from cdmpp.metrics import mean_and_interval
from cdmpp.report.stamp import COMPILED, stamp, write_page
from cdmpp.text import markdown_table
from lab.experiments.replay_validation import judged_kernels
from lab.experiments.shipped_labels import met_before
from tests.paths import ROOT


def main() -> None:
    """Writes the page and its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("untold", type=Path, help="folder of the shipped model's predictions")
    parser.add_argument("added", type=Path, help="folder of those of the added device")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    both = [
        json.loads((folder / "replay-drawn.json").read_text("utf-8"))
        for folder in (args.untold, args.added)
    ]
    untold, added = ([row for row in one["rows"] if not row["is_calibrating"]] for one in both)
    architecture = get_device(both[0]["device"]).architecture
    lines = {"untold": _summary(untold), "added": _summary(added)}
    text = _PAGE.format(
        chip=architecture, met_before=met_before(str(architecture)),
        networks=_networks(untold, added), summary=_lines(lines),
    )  # fmt: skip
    parts = [row["stamp"] for one in both for row in one["rows"]]
    values = {"architecture": architecture, "lines": lines, "untold": untold, "added": added}
    found = stamp("make bench-replay-elsewhere", schemas=COMPILED, models=["pretrained"],
                  parts=parts)  # fmt: skip
    write_page(args.results, "replay-elsewhere", text, values, found)


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how far off the networks and their kernels are."""
    error = np.array([row["error"] for row in rows])
    log_error = np.abs(np.log1p(error))
    mean, half = mean_and_interval(np.abs(error).tolist())
    log_mean, log_half = mean_and_interval(log_error.tolist())
    kernels, within = judged_kernels(rows)
    ratio = np.log1p([one["error"] for one in kernels])
    width = [np.log(row["high_s"] / row["low_s"]) / 2 for row in rows]
    return {
        "networks": len(rows), "mape": mean, "mape_half": half, "log_error": log_mean,
        "log_error_half": log_half, "median_ratio": float(np.median(1 + error)),
        "inside": sum(row["is_in_interval"] for row in rows),
        "factor": float(np.exp(np.mean(width))), "kernels": len(kernels),
        "kernel_log_error": float(np.abs(ratio).mean()),
        "kernel_median_ratio": float(np.exp(np.median(ratio))), "kernels_inside": within,
    }  # fmt: skip


def _networks(untold: list[dict[str, Any]], added: list[dict[str, Any]]) -> str:
    after = {row["network"]: row for row in added}
    rows = []
    for row in untold:
        cells = [row["network"], str(row["operators"]), f"{1e3 * row['total_s']:.2f}",
                 f"{row['replay_error']:+.1%}"]  # fmt: skip
        for one in (row, after[row["network"]]):
            ends = f"{1e3 * one['low_s']:.2f}-{1e3 * one['high_s']:.2f}"
            cells += [f"{one['error']:+.1%}", f"{ends}{'' if one['is_in_interval'] else ' (not)'}"]
        rows.append(cells)
    return markdown_table(
        ["network", "operators", "measured ms", "replay, measured kernels", "as it comes",
         "interval ms", "added", "interval ms"], rows,
    )  # fmt: skip


def _lines(lines: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, title in (("untold", "as it comes (`this-cpu`)"), ("added", "added in ten minutes")):
        one = lines[name]
        rows.append([
            title, f"{one['mape']:.1%} ± {one['mape_half']:.1%}",
            f"{one['log_error']:.2f} ± {one['log_error_half']:.2f}", f"{one['median_ratio']:.2f}",
            f"{one['inside']} of {one['networks']}", f"{one['factor']:.1f}",
            f"{one['kernel_log_error']:.2f}", f"{one['kernel_median_ratio']:.2f}",
            f"{one['kernels_inside']} of {one['kernels']}",
        ])  # fmt: skip
    return markdown_table(
        ["model", "error of a network", "log error", "median ratio", "in its interval",
         "factor each way", "kernels: log error", "median ratio", "in their intervals"], rows,
    )  # fmt: skip


_PAGE = """# Networks on a CPU that nobody measured

Networks drawn at random (`lab.experiments.varied_networks --wide`, seed 2029), as TVM compiles
them by default, replayed from predicted kernels on one thread of a CPU ({chip}): {met_before}.
*As it comes*: the shipped model, told what `cdmpp device show this-cpu` says (no clock, no peaks).
*Added*: what `cdmpp device add` left after ten minutes at most, which measures kernels at drawn
sizes and none of these networks ([device-add](device-add.md)). Both compile the kernels and read
their machine code. *Measured* is the compiled network; whole networks and kernels are timed in
turns. ± is a 95 % interval over networks.

{summary}

{networks}
"""


if __name__ == "__main__":
    main()
