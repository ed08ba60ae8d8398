"""The results of `scoring_speed` as Markdown, CSV and JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.files.atomic import write_text
from cdmpp.report.page import Page, Section
from cdmpp.report.stamp import PROGRAMS, stamp, write_page
from cdmpp.report.tables import plain_table
from cdmpp.text import percent_text, tidy_csv
from cdmpp.training.estimates import TrainedModel

if TYPE_CHECKING:
    from lab.experiments.scoring_speed import ScoringSpeed


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
    page = _page(results, trained, candidates)
    origin = stamp(command, schemas=PROGRAMS, data={"of the model": trained.card.data_hash})
    write_page(out_dir, "scoring", page,
               {"model": trained.card.kind, "candidates": candidates}, origin)  # fmt: skip
    write_text(out_dir / "scoring.csv", tidy_csv(_rows(results, candidates)))


def _page(results: Sequence[ScoringSpeed], trained: TrainedModel, candidates: int) -> Page:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    titles = (
        "target", "workload", "leaves", "ours, candidates/s (clock)", "per CPU second",
        "XGBModel, candidates/s (clock)", "per CPU second", "ratio (CPU)",
        "of our time in the model",
    )  # fmt: skip
    rows = []
    for found in results:
        speeds = (found.own_per_s, found.own_per_cpu_s, found.peer_per_s, found.peer_per_cpu_s)
        target = "T4" if found.target == "cuda" else found.target
        rows.append(
            [target, found.workload, f"{found.leaves:.1f}", *(f"{speed:,.0f}" for speed in speeds),
             f"**{found.ratio:.1f}**", percent_text(found.model_share, 0)]
        )  # fmt: skip
    note = (
        "Candidates scored through TVM's own interface (`CostModel.predict`: lowering, features, "
        f"model), one process on one core, {candidates} random MetaSchedule schedules a row, the "
        f"best of some rounds, both sides in turn. Ours is a `{trained.card.kind}`; TVM's "
        f"`XGBModel` is trained on {candidates} results first."
    )
    return Page(
        title="Scoring throughput",
        lead="Goal: 3 times on the matmul for llvm, 10 times on conv2d (llvm and T4).",
        sections=[Section("Candidates per second", note, tables=[plain_table(titles, rows)])],
        notes=[
            "A column per CPU second stands beside each on the clock because machines are shared. "
            "What is not in the model is lowering, walking and the leaf columns."
        ],
        facts=[("load average when the last figure was taken", load)],
    )


def _rows(results: Sequence[ScoringSpeed], candidates: int) -> Iterator[tuple[Any, ...]]:
    for found in results:
        values = [
            ("cdmpp", "candidates_per_s", found.own_per_s),
            ("cdmpp", "candidates_per_cpu_s", found.own_per_cpu_s),
            ("cdmpp", "model_share", found.model_share),
            ("tvm-xgb", "candidates_per_s", found.peer_per_s),
            ("tvm-xgb", "candidates_per_cpu_s", found.peer_per_cpu_s),
            ("cdmpp", "ratio_to_tvm_xgb", found.ratio),
        ]
        group = f"{found.target}-{found.workload}"
        for model, metric, value in values:
            place = ("scoring", "metaschedule-samples", "none", "all", group)
            yield *place, model, 0, metric, value, candidates
