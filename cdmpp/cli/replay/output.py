"""Printed output and result files of `cdmpp replay`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdmpp.errors import UsageError
from cdmpp.files.atomic import make_folder, write_json, write_text
from cdmpp.replay.graph_file import write_graph
from cdmpp.replay.summary import ReplayOutcome, outcome_values, uncovered_groups
from cdmpp.replay.timeline import write_chrome_trace
from cdmpp.replay.traces.iteration_walk import Walk
from cdmpp.replay.traces.op_statistics import OperatorStatistics, cleaned
from cdmpp.report.page import page_html
from cdmpp.report.replay_page import timeline_page
from cdmpp.text import (
    agreed,
    aligned,
    counted,
    interval_text,
    listed,
    percent_text,
    seconds_text,
    shortened,
)

_KINDS, _CHAIN, _UNCOVERED = 12, 8, 8
_KIND_WIDTH = 40


def show_outcomes(found: Sequence[ReplayOutcome], folder: Path | None, *, as_json: bool) -> None:
    """Prints replays, and writes them into a folder if one is given."""
    values = [outcome_values(outcome) for outcome in found]
    if folder is not None:
        _write(folder, found, values)
    if as_json:
        print(json.dumps(values, allow_nan=False))
        return
    for number, (outcome, value) in enumerate(zip(found, values, strict=True)):
        if number:
            print()
        _print_outcome(outcome, value)
    if folder is not None:
        print(f"\nwritten to {folder}: replay.json, graph.json, timeline.html, trace.json")


def show_statistics(rows: Sequence[OperatorStatistics], detail: str, *, as_json: bool) -> None:
    """Prints the operators of a trace or graph."""
    rows = cleaned(rows) if detail == "clean" else rows
    if as_json:
        print(json.dumps([{**asdict(row), "inputs": row.inputs} for row in rows]))
    elif detail == "brief":
        _print_rows(["operator", "calls"], [[row.name, str(row.count)] for row in rows])
    else:
        _print_rows(
            ["operator", "calls", "inputs", "launches", "time"],
            [[row.name, str(row.count), str(row.inputs),
              "-" if row.launches is None else str(row.launches),
              "-" if row.time_s is None else seconds_text(row.time_s)] for row in rows],
        )  # fmt: skip
        for row in rows:
            print(f"\n{row.name}")
            for inputs, count in row.shapes.items():
                print(f"  {count} x {inputs or 'no tensors'}")


def show_walk(walk: Walk, version: str, ranks: int, *, notes: Sequence[str], as_json: bool) -> None:
    """Prints the walk over an iteration of the slowest of `ranks` ranks."""
    if as_json:
        values = {**_walk_values(walk, version, ranks), "notes": list(notes)}
        print(json.dumps(values, allow_nan=False))
        return

    def shown(value_us: float) -> str:
        return seconds_text(1e-6 * value_us)

    ends_s = (None if end is None else 1e-6 * end for end in (walk.low_us, walk.high_us))
    total = interval_text(1e-6 * walk.total_us, *ends_s)
    print(
        f"host walk ({version}): {total}; host {shown(walk.host_us)}, device active "
        f"{shown(walk.active_us)}, exposed communication {shown(walk.exposed_communication_us)}"
    )
    if walk.without_interval:
        print(_without_interval(walk.without_interval, has_interval=walk.low_us is not None))
    for note in notes:
        print(note)
    if walk.unmodelled:
        names = ", ".join(f"{name} ({count})" for name, count in walk.unmodelled.items())
        print(f"launches without a kernel time, counted on the host only: {names}")
    if walk.pooled:
        print(f"mean overheads are used for: {', '.join(walk.pooled)}")


def _walk_values(found: Walk, version: str, ranks: int) -> dict[str, Any]:
    return {
        "walk": version, "ranks": ranks, "total_s": 1e-6 * found.total_us,
        "low_s": None if found.low_us is None else 1e-6 * found.low_us,
        "high_s": None if found.high_us is None else 1e-6 * found.high_us,
        "without_interval": list(found.without_interval),
        "active_s": 1e-6 * found.active_us, "host_s": 1e-6 * found.host_us,
        "exposed_communication_s": 1e-6 * found.exposed_communication_us,
        "operators": [
            {"name": name, "host_s": 1e-6 * value} for name, value in found.after_us
        ],
        "pooled": list(found.pooled), "unmodelled": found.unmodelled,
    }  # fmt: skip


def check_results(folder: Path | None, read: Sequence[Path], count: int) -> None:
    """Checks that results replace no file, except those of an earlier replay.

    Args:
        read: the replayed files.
        count: number of replays.

    Raises:
        UsageError: a replayed file, or a file of another origin, would be overwritten.
    """
    if folder is None:
        return
    inputs = {path.resolve() for path in read}
    files = ["graph{}.json", "trace{}.json", "timeline{}.html"]
    names = ["replay.json", *(name.format(suffix) for name in files for suffix in _suffixes(count))]
    is_ours = (folder / "replay.json").is_file()
    for path in (folder / name for name in names):
        if path.resolve() in inputs or (path.exists() and not is_ours):
            raise UsageError(
                f"{path} exists and is not of an earlier replay; give another folder: --out DIR"
            )


def _suffixes(count: int) -> list[str]:
    return [""] if count < 2 else [f"-{number}" for number in range(1, count + 1)]


def _write(folder: Path, found: Sequence[ReplayOutcome], values: list[dict[str, Any]]) -> None:
    make_folder(folder, what="results of the replay")
    write_json(folder / "replay.json", values)
    for suffix, outcome in zip(_suffixes(len(found)), found, strict=True):
        times = {
            one.id: seconds
            for one, seconds in zip(
                outcome.costs.graph.operators, outcome.expected.times_s, strict=True
            )
        }
        write_graph(folder / f"graph{suffix}.json", outcome.costs.graph.scaled(times))
        write_chrome_trace(folder / f"trace{suffix}.json", outcome.expected)
        write_text(folder / f"timeline{suffix}.html", page_html(timeline_page(outcome)))


def _print_outcome(outcome: ReplayOutcome, values: dict[str, Any]) -> None:
    """Prints the total, its parts, and the operators without a model."""
    heading = values["name"] + (f" on {values['device']}" if values["device"] else "")
    total = interval_text(values["total_s"], values["low_s"], values["high_s"])
    print(f"{heading}: {total}")
    lacking = outcome.without_interval
    if lacking:
        print(_without_interval(lacking, has_interval=outcome.low_s is not None))
    for note in outcome.notes:
        print(note)
    if values["schedule"]:
        print(f"schedules: {values['schedule']}")
    print(
        f"{counted(values['operators'], 'operator')}, sum {seconds_text(values['sum_s'])}, "
        "longest chain "
        + (
            f"of data edges {seconds_text(values['longest_path_s'])}"
            if values["has_edges"]
            else "of data edges unknown (tasks with weights: one after the other)"
        )
    )
    print()
    _print_rows(
        ["kind", "calls", "time", "share", "source"],
        [[shortened(row["kind"], _KIND_WIDTH), str(row["calls"]), seconds_text(row["time_s"]),
          percent_text(row["share"]), ", ".join(row["sources"])]
         for row in values["by_kind"][:_KINDS]],
    )  # fmt: skip
    if len(values["by_kind"]) > _KINDS:
        print(f"and {len(values['by_kind']) - _KINDS} more kinds")
    if len(values["queues"]) > 1:
        print()
        _print_rows(
            ["queue", "busy", "idle"],
            [[f"{row['device']} {row['queue']}", seconds_text(row["busy_s"]),
              seconds_text(row["idle_s"])] for row in values["queues"]],
        )  # fmt: skip
        chain = sorted(values["critical_path"], key=lambda step: -step["time_s"])[:_CHAIN]
        print(
            f"\ncritical path, {len(chain)} longest of "
            f"{counted(len(values['critical_path']), 'operator')}"
        )
        _print_rows(
            ["operator", "time", "waited for"],
            [[step["name"], seconds_text(step["time_s"]), step["waited_for"]] for step in chain],
        )
    if values["draws"]:
        draws = values["draws"]
        print(
            f"\n{draws['n']} draws: median {seconds_text(draws['median_s'])}, 80 % in "
            f"[{seconds_text(draws['p10_s'])}, {seconds_text(draws['p90_s'])}], all in "
            f"[{seconds_text(draws['min_s'])}, {seconds_text(draws['max_s'])}]"
        )
    if values["what_if"]:
        scales = ", ".join(f"{name} x {factor:g}" for name, factor in outcome.scales.items())
        scaled = values["what_if"]["total_s"]
        change = 100 * (scaled / values["total_s"] - 1) if values["total_s"] else 0.0
        print(f"\nwith {scales}: {seconds_text(scaled)} ({change:+.1f} %)")
    if outcome.measured:
        _print_measured(outcome.measured)
    remarks = {c.reason for c in outcome.costs.costs if c.reason and c.source != "bound"}
    for remark in sorted(remarks):
        count = sum(cost.reason == remark for cost in outcome.costs.costs)
        print(f"\n{counted(count, 'operator')}: {remark}")
    groups = uncovered_groups(outcome)
    if groups:
        count = len(values["uncovered"])
        print(f"\n{counted(count, 'operator')} without a model, each with a roofline estimate:")
        _print_rows(
            ["operator", "calls", "estimate", "up to", "why"],
            [[name, str(calls), seconds_text(cost.latency_s), seconds_text(cost.high_s),
              cost.reason] for name, calls, cost in groups[:_UNCOVERED]],
        )  # fmt: skip
        if len(groups) > _UNCOVERED:
            print(f"and {len(groups) - _UNCOVERED} more kinds (--json has all operators)")


def _without_interval(kinds: Sequence[str], *, has_interval: bool) -> str:
    """Returns a line about the parts of a total that have no known error."""
    if not has_interval:
        return "no interval: the error of these times is not known"
    more = len(kinds) - _KINDS
    shown = [*kinds[:_KINDS], f"{more} more kinds"] if more > 1 else kinds
    listing = f"{listed(shown)} {agreed(len(kinds), 'have')}"
    return f"the interval is at least this wide: {listing} no known error"


def _print_measured(measured: dict[str, Any]) -> None:
    """Prints predicted and measured times side by side."""
    print()
    _print_rows(
        ["", "time", "error"],
        [
            ["measured, the compiled network", seconds_text(measured["total_s"]), ""],
            ["replayed from predicted operators", seconds_text(measured["predicted_s"]),
             f"{100 * measured['error']:+.1f} %"],
            ["plain sum of predicted operators", seconds_text(measured["predicted_sum_s"]),
             f"{100 * measured['predicted_sum_error']:+.1f} %"],
            ["replayed from measured operators", seconds_text(measured["replayed_s"]),
             f"{100 * measured['replay_error']:+.1f} %"],
        ],
    )  # fmt: skip
    if measured["is_in_interval"] is not None:
        inside = "in" if measured["is_in_interval"] else "outside"
        print(f"the measured time is {inside} the predicted interval")
    if measured["unmeasured"]:
        print(
            f"{counted(measured['unmeasured'], 'operator')} could not be timed; their predicted "
            "times are used"
        )
    print()
    _print_rows(
        ["calls", "kernel", "predicted", "measured", "error", ""],
        [[str(row["calls"]), row["kind"], seconds_text(row["predicted_s"]),
          seconds_text(row["measured_s"]),
          "-" if row["error"] is None else f"{100 * row['error']:+.0f} %",
          row["reason"] or ""] for row in measured["breakdown"]],
        key=1,
    )  # fmt: skip


def _print_rows(titles: list[str], rows: list[list[str]], *, key: int = 0) -> None:
    print(aligned([titles, *rows], key=key))
