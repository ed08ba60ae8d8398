"""Prints errors of the shipped models on the steps of `timm_steps.py`, by configuration.

python -m lab.gpu_session.judge_timm STEPS.jsonl [DEVICE]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.files.journal import read_lines
from cdmpp.networks.graph.execution import Running
from cdmpp.networks.predict import NetworkPredictor
from cdmpp.networks.step_time.graphs import read_graphs
from lab.paths import ROOT


def main() -> None:
    """Prints one line per configuration, and one per configuration and batch."""
    lines = read_lines(Path(sys.argv[1]))
    device = sys.argv[2] if len(sys.argv) > 2 else "h200"
    graphs, predictor = read_graphs(ROOT / "data" / "timm-graphs"), NetworkPredictor.load()
    groups: dict[str, list[tuple[float, float, bool, float]]] = defaultdict(list)
    for row in (row for row in lines if row.get("seconds")):
        graph = graphs.graph(row["network"], row["size"], row["batch"])
        running = Running(**{name: row[name] for name in ("dtype", "layout", "compiled", "mode")})
        (one,) = predictor.predict([graph], [device], running=running)
        time, way = one.time_s, _way(row)
        if time.value is None or time.low is None or time.high is None:
            print(row["network"], row["batch"], way, "no answer:", "; ".join(one.reasons))
            continue
        measured = (
            time.value / row["seconds"], row["noise"],
            time.low <= row["seconds"] <= time.high, (time.high / time.low) ** 0.5,
        )  # fmt: skip
        groups[way].append(measured)
        groups[f"{way} batch {row['batch']:3d}"].append(measured)
    print(f"{'way':44s} {'n':>4s} median error, ratio, inside, factor each way, noise")
    for name, own in sorted(groups.items()):
        ratio, noise, inside, factor = (np.array(column) for column in zip(*own, strict=True))
        print(
            f"{name:44s} {len(own):4d} {100 * np.median(np.abs(ratio - 1)):5.1f} % "
            f"{np.median(ratio):.2f} {100 * inside.mean():3.0f} % {np.median(factor):.2f} "
            f"{100 * np.median(noise):.1f} %"
        )


def _way(row: dict[str, Any]) -> str:
    compiled = "compiled" if row["compiled"] else "eager"
    return f"{row['mode']} {row['layout']} {compiled} {row['dtype']}"


if __name__ == "__main__":
    main()
