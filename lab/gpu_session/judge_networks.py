"""Prints predictions of the shipped models for networks measured by `cdmpp networks measure`.

python -m lab.gpu_session.judge_networks DATASET [DEVICE]
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from cdmpp.networks.dataset.store import read_dataset
from cdmpp.networks.predict import NetworkPredictor


def main() -> None:
    """Prints one line per sample, and the median errors."""
    data = read_dataset(Path(sys.argv[1]))
    device = sys.argv[2] if len(sys.argv) > 2 else None
    graphs = [row.graph for row in data.graphs]
    asked = [device or data.labels[0].device]
    found = NetworkPredictor.load().predict(graphs, asked)
    said = {(f"{one.name} {one.batch}", one.mode): one for one in found}
    errors: dict[str, list[float]] = {}
    by_id = data.by_id()
    print("network batch mode measured_ms predicted_ms ratio in_interval peak_ratio busy said how")
    for label in data.labels:
        graph = by_id[label.graph_id].graph
        if label.time_s is None:
            print(graph.name, graph.batch, label.mode, label.outcome, label.note)
            continue
        one = said[f"{graph.name} {graph.batch}", label.mode]
        time, memory = one.time_s, one.memory_bytes
        ratio = time.value / label.time_s if time.value else float("nan")
        peak = (memory.value or float("nan")) / (label.memory_bytes or float("nan"))
        is_known = time.low is not None and time.high is not None
        is_in = time.low <= label.time_s <= time.high if is_known else None  # type: ignore[operator]
        print(
            graph.name, graph.batch, label.mode, f"{1e3 * label.time_s:.3f}",
            f"{1e3 * (time.value or 0):.3f}", f"{ratio:.3f}", is_in, f"{peak:.3f}",
            label.utilisation, one.utilisation.value, one.method,
        )  # fmt: skip
        errors.setdefault(f"{label.mode} time", []).append(abs(ratio - 1))
        errors.setdefault(f"{label.mode} memory", []).append(abs(peak - 1))
    for name, own in errors.items():
        print(f"{name}: {len(own)}, median error {100 * statistics.median(own):.1f} %")


if __name__ == "__main__":
    main()
