"""The results of `scoring_speed` as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.files.atomic import make_folder, write_atomic, write_json
from cdmpp.machine import commit, machine
from cdmpp.training.estimates import TrainedModel
from tvm_helper.compat import installed_versions

if TYPE_CHECKING:
    from tests.benchmarks.scoring_speed import ScoringSpeed

_COLUMNS = (
    "suite", "dataset", "split", "device", "group", "model", "seed", "metric", "value", "n",
)  # fmt: skip


def write_results(
    results: Sequence[ScoringSpeed],
    out_dir: Path,
    trained: TrainedModel,
    *,
    command: str,
    candidates: int,
) -> None:
    """Writes scoring.md, scoring.csv and scoring.json.

    Raises:
        DataError: a file cannot be written.
    """
    make_folder(out_dir, what="results")
    texts = {
        "scoring.md": _markdown(results, trained, command, candidates),
        "scoring.csv": _csv(results, candidates),
    }
    for name, text in texts.items():
        write_atomic(out_dir / name, partial(_write, text))
    origin = {
        "command": command,
        "commit": commit(),
        "versions": installed_versions(),
        "machine": machine(),
        "data_hash": trained.card.data_hash,
        "model": trained.card.kind,
        "candidates": candidates,
    }
    write_json(out_dir / "scoring.json", origin)


def _markdown(
    results: Sequence[ScoringSpeed], trained: TrainedModel, command: str, candidates: int
) -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    lines = [
        "# Scoring throughput",
        "",
        f"`{command}` (`make bench-scoring`)",
        "",
        f"{facts}; load average {load} when the last figure was taken.",
        f"Candidates scored through TVM's own interface (`CostModel.predict`: lowering, features, "
        f"model), one process on one core, {candidates} random MetaSchedule",
        f"schedules a row, the best of some rounds, both sides in turn. Ours is a "
        f"`{trained.card.kind}`; TVM's `XGBModel` is trained on {candidates} results first.",
        "Goal: 3 times on the matmul for llvm, 10 times on conv2d (llvm and T4).",
        "",
        "| target | workload | leaves | ours, candidates/s (clock) | per CPU second | XGBModel, "
        "candidates/s (clock) | per CPU second | ratio (CPU) | of our time in the model |",
        "|---" * 9 + "|",
    ]
    for found in results:
        speeds = (found.own_per_s, found.own_per_cpu_s, found.peer_per_s, found.peer_per_cpu_s)
        cells = " | ".join(f"{speed:,.0f}" for speed in speeds)
        lines.append(
            f"| {_target(found)} | {found.workload} | {found.leaves:.1f} | {cells} | "
            f"**{found.ratio:.1f}** | {100 * found.model_share:.0f} % |"
        )
    lines += [
        "",
        "A column per CPU second stands beside each on the clock because machines are shared. What "
        "is not in the model is lowering, walking and the leaf columns.",
    ]
    return "\n".join(lines) + "\n"


def _csv(results: Sequence[ScoringSpeed], candidates: int) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for found in results:
        values = [
            ("cdmpp", "candidates_per_s", found.own_per_s),
            ("cdmpp", "candidates_per_cpu_s", found.own_per_cpu_s),
            ("cdmpp", "model_share", found.model_share),
            ("tvm-xgb", "candidates_per_s", found.peer_per_s),
            ("tvm-xgb", "candidates_per_cpu_s", found.peer_per_cpu_s),
            ("cdmpp", "ratio_to_tvm_xgb", found.ratio),
        ]
        for model, metric, value in values:
            group = f"{found.target}-{found.workload}"
            row = ("scoring", "metaschedule-samples", "none", "all", group, model, 0, metric)
            writer.writerow([*row, f"{value:.6g}", candidates])
    return stream.getvalue()


def _target(found: ScoringSpeed) -> str:
    return "T4" if found.target == "cuda" else found.target


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
