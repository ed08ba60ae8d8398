"""Health reports of measurements: for a campaign's folder, or for this machine now."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cdmpp.errors import DeviceError
from cdmpp.machine import allowed_cpus
from cdmpp.processes.campaign import read_campaign
from cdmpp.text import counted, percent_text
from tvm_helper.measure import health as measure_health
from tvm_helper.measure.journal import COMMAND, read_journal
from tvm_helper.measure.options import TimingOptions, TrialOptions
from tvm_helper.measure.sources import reference_task
from tvm_helper.measure.tables import failures_by_kind, read_task
from tvm_helper.measure.target import MeasureTarget, this_cpu
from tvm_helper.measure.timing import relative_deviation
from tvm_helper.measure.trials import Outcome, TrialRunner

_STEP_TIMEOUT_S = 300.0


def folder_report(folder: Path) -> dict[str, Any]:
    """Returns the health of a campaign as JSON values; the campaign may still be running.

    Raises:
        DataError: the folder has no campaign, or its journal is damaged.
    """
    settings = read_campaign(folder, COMMAND)
    entries = read_journal(folder)
    measured = [entry for entry in entries if entry["kind"] == "measured"]
    health = [entry for entry in entries if entry["kind"] == "health"]
    good = [entry for entry in measured if entry["error_code"] == 0]
    undrawn = [e for e in entries if e["kind"] == "drawn" and e["error"]]
    references = [
        min(entry["reference_costs_s"]) for entry in health if entry.get("reference_costs_s")
    ]
    host = settings.get("machine") or {}
    allowed = [entry["allowed_cpus"] for entry in health if entry.get("allowed_cpus")]
    report = _report(
        costs=[entry["costs_s"] for entry in good],
        references=references,
        health=health,
        threads=settings["threads"],
        cpus=min(allowed) if allowed else host.get("allowed_cpus"),
        host=host,
    )
    failures = failures_by_kind(measured)
    failed = len(measured) - len(good)
    if measured and failed > 0.5 * len(measured):
        report["findings"].append(
            f"{failed} of {counted(len(measured), 'program')} failed; most often: "
            f"{failures[0]['name']}: {failures[0]['first_text']}"
        )
    broken = [entry["reference_error"] for entry in health if entry.get("reference_error")]
    if broken:
        report["findings"].append(
            f"{counted(len(broken), 'run')} of the reference program failed: {broken[0]}"
        )
    return {
        "folder": str(folder), "device": settings["device"], "target": settings["target"],
        "measured": len(measured), "failed": failed, "failures": failures,
        "draw_failures": {read_task(folder, e["task"])["name"]: e["error"] for e in undrawn},
        "seconds": {
            "build": sum(entry["build_s"] for entry in measured),
            "run": sum(entry["run_s"] for entry in measured),
        },
        **report,
        "measured_again": measure_health.noise_of_repeats(entries),
        "timing_clock": settings.get("timing", {}).get("clock", "wall"),
    }  # fmt: skip


def live_report(
    seconds: float,
    *,
    threads: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Times the reference program on this machine for some seconds; returns the machine's health.

    Args:
        seconds: time of measuring, without TVM's start and the build.
        threads: threads of the program; None = one per usable CPU.
        on_progress: called with a description of the current step.

    Raises:
        DeviceError: the program cannot be built or run.
    """
    show = on_progress or (lambda text: None)
    target = this_cpu(threads)
    with tempfile.TemporaryDirectory(prefix="cdmpp-doctor-") as place:
        show("building the reference program")
        rounds, health = _live_rounds(Path(place), seconds, target, show)
    return _report(
        costs=rounds, references=[min(costs) for costs in rounds], health=health,
        threads=target.threads, cpus=allowed_cpus(), host=measure_health.machine(),
    )  # fmt: skip


def _live_rounds(
    place: Path, seconds: float, target: MeasureTarget, show: Callable[[str], None]
) -> tuple[list[list[float]], list[dict[str, Any]]]:
    task = reference_task()
    task.save(place)
    timing = TimingOptions(min_repeats=5, max_repeats=5, budget_s=seconds)
    options = TrialOptions(
        timing=timing, build_timeout_s=_STEP_TIMEOUT_S, run_timeout_s=_STEP_TIMEOUT_S
    )
    rounds: list[list[float]] = []
    health: list[dict[str, Any]] = []
    with TrialRunner(options, target, place) as trials:
        file = place / f"{task.key}.json"
        built = _checked("build", trials.build_one("reference", file, timeout_s=_STEP_TIMEOUT_S))
        end = time.monotonic() + seconds
        while not rounds or time.monotonic() < end:
            show(f"timing it: {max(0.0, end - time.monotonic()):.0f} s left")
            timed = _checked("run", trials.run("reference", built.arguments, is_kept=True))
            rounds.append(list(timed.costs_s))
            health.append(measure_health.snapshot())
    return rounds, health


def _checked(step: str, outcome: Outcome) -> Outcome:
    if outcome.error_code:
        raise DeviceError(
            f"the reference program cannot be measured ({step}: {outcome.error}); expected a "
            "working TVM on this CPU; run its tests: pytest -m tvm"
        )
    return outcome


def _report(
    *,
    costs: Sequence[Sequence[float]],
    references: Sequence[float],
    health: Sequence[dict[str, Any]],
    threads: int | None,
    cpus: int | None,
    host: dict[str, Any],
) -> dict[str, Any]:
    noise = measure_health.noise_floor(costs)
    drifted = measure_health.drift(references)
    loads = [entry["load_1min"] for entry in health if entry.get("load_1min") is not None]
    clocks = [entry["clock_hz"] for entry in health if entry.get("clock_hz")]
    clock_spread = relative_deviation(clocks) if len(clocks) > 1 else None
    return {
        "noise_floor": noise,
        "drift": drifted,
        "clock_hz": statistics.median(clocks) if clocks else None,
        "clock_spread": clock_spread,
        "load_1min": statistics.median(loads) if loads else None,
        "threads": threads,
        "allowed_cpus": cpus,
        "machine": host,
        "findings": measure_health.findings(
            noise=noise, drifted=drifted, loads=loads, threads=threads, cpus=cpus, host=host,
        ),
    }  # fmt: skip


def report_text(report: dict[str, Any]) -> str:
    """Returns a report as lines of text; missing values are shown as `unknown`."""
    noise, drifted = report["noise_floor"], report["drift"]
    lines: list[str] = []
    if "folder" in report:
        lines.append(
            f"{counted(report['measured'], 'program')} on {report['device']}, "
            f"{report['failed']} failed; {report['seconds']['build']:.0f} s of building, "
            f"{report['seconds']['run']:.0f} s of timing"
        )
    lines += [
        f"noise floor    {_percent(noise['median'])} median, {_percent(noise['p90'])} at 90 % "
        f"(relative deviation of repeats, n = {noise['n']})",
        f"drift          {_drift(drifted)}",
        f"clock          {_clock(report['clock_hz'])}, deviation "
        f"{_percent(report['clock_spread'])}",
        f"load           {_number(report['load_1min'], digits=2)} (median of the last minute's)",
        f"threads        {_number(report['threads'])} of a program, "
        f"{_number(report['allowed_cpus'])} CPUs allowed, quota "
        f"{_number(report['machine'].get('cpu_quota'), 'none known')}",
        f"processor      {report['machine'].get('processor') or 'unknown'}",
    ]
    again = report.get("measured_again", {"n": 0})
    if again["n"]:
        lines.append(
            f"remeasured     {_percent(again['median'])} median, {_percent(again['mean'])} mean "
            f"deviation, rebuilt (n = {again['n']})"
        )
    if report.get("timing_clock") == "cpu":
        lines.append("timed by       CPU time of the program's thread, not wall time")
    for kind in report.get("failures", []):
        lines.append(f"failure        {kind['count']} {kind['name']}: {kind['first_text']}")
    for name, text in report.get("draw_failures", {}).items():
        lines.append(f"failure        no schedule of {name}: {text}")
    lines += [f"doubtful       {text}" for text in report["findings"]]
    if not report["findings"]:
        lines.append("no problems found")
    return "\n".join(lines)


_percent = partial(percent_text, none="unknown")


def _clock(value: float | None) -> str:
    return "unknown" if value is None else f"{value / 1e9:.2f} GHz"


def _drift(drifted: dict[str, Any]) -> str:
    runs = drifted["n"]
    if drifted["trend"] is None:
        return f"unknown: too few timings of the reference program (n = {runs})"
    return (
        f"{_percent(drifted['trend'])} first to last third, {_percent(drifted['spread'])} slowest "
        f"to fastest (reference program, n = {runs})"
    )


def _number(value: float | None, unknown: str = "unknown", *, digits: int = 6) -> str:
    return unknown if value is None else f"{value:.{digits}g}"
