"""Servers under load against measurements, with server overheads fitted without the test group.

Data: llm-serving (see its README), aggregated servers with recorded parallelism. Kernel times come
from the package, and nothing is fitted to times per token. Two values are fitted to times to the
first token: seconds per request, and additional seconds per expert layer.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.arrays import FloatArray
from cdmpp.comparison.llm.evaluate import (
    MeasuredLoad,
    ServingReport,
    evaluate_serving,
    read_serving,
    report_lines,
    scores,
)
from cdmpp.comparison.llm.load import HostFit, LoadedServer, Shrinkage, packaged_hosts
from cdmpp.conformal import unseen_group_ends
from cdmpp.devices.registry import load_registry
from cdmpp.files.atomic import write_json, write_text
from cdmpp.files.places import package_folder
from cdmpp.files.stored import to_json
from cdmpp.report.plots import COLOURS, legend, log_scale, new_figure, svg_text
from cdmpp.text import markdown_table
from lab.experiments.serving_measured import (
    Judged,
    MeasuredFit,
    Point,
    Trial,
    answers,
    page_parts,
    points_of,
    trials_of,
)
from lab.pages import write_page
from lab.paths import PAGES, shared
from lab.stamp import stamp

Spread = dict[str, tuple[float, float]]
_KINDS = ("tpot", "ttft")
#: Seconds per request in the simulation; other candidates are added as a difference.
_BASE_S = 0.03
_REQUESTS_S = np.linspace(0.0, 0.15, 31)
#: Candidates for the seconds per expert layer.
_EXPERTS_S = np.linspace(0.0, 3e-3, 16)
#: Minimum |log factor| of an interval end: one percent.
_LEAST_LOG = 0.01
#: Minimum rows of a system for an estimate of its errors.
_LEAST_ROWS = 20
#: Rows of the page's curve: one model, system, server and lengths.
_CURVE = {
    "model_family": "Llama-3.1-70B", "system": "b200_sxm", "backend": "vllm", "precision": "fp8",
    "tp_size": 4, "isl": 1024, "osl": 1024,
}  # fmt: skip
#: Sweep whose CPU time is reported.
_SWEEP = (
    "compare --model openai/gpt-oss-120b --tensor-parallel 4 --concurrency 1,4,16,64,256 "
    "--input-tokens 1024 --output-tokens 1024 "
    "--device a100-sxm,h100,h200,b200,b300,gb200,gb300,l40s,rtx-pro-6000-server,mi300x"
)


def fit_hosts(rows: Sequence[MeasuredLoad]) -> tuple[float, float]:
    """Returns seconds per request and per expert layer with the smallest mean absolute log error.
    Every model family on a backend has the same weight.

    Args:
        rows: predicted with `_BASE_S`.
    """
    early = [one for one in rows if one.cell.ttft_s is not None]
    groups = [(one.family, one.backend) for one in early]
    weight = np.array([1.0 / groups.count(group) for group in groups])
    layers = np.array([one.slow_layers for one in early])
    beside = np.array([_first_s(one) - _BASE_S for one in early])
    taken = np.array([one.ttft_s for one in early])
    tried = [(request_s, experts_s) for experts_s in _EXPERTS_S for request_s in _REQUESTS_S]
    errors = [
        float(weight @ np.abs(np.log((request_s + experts_s * layers + beside) / taken)))
        for request_s, experts_s in tried
    ]
    request_s, experts_s = tried[int(np.argmin(errors))]
    return float(request_s), float(experts_s)


def _first_s(row: MeasuredLoad) -> float:
    assert row.cell.ttft_s is not None  # checked by the caller
    return row.cell.ttft_s[0]


def shifted(rows: Sequence[MeasuredLoad], fit: tuple[float, float]) -> list[MeasuredLoad]:
    """Returns rows of `_BASE_S` approximately as predicted with a fit."""
    request_s, experts_s = fit
    found = []
    for one in rows:
        if one.cell.ttft_s is not None:
            more_s = request_s + experts_s * one.slow_layers - _BASE_S
            value, low, high = one.cell.ttft_s
            ttft_s = value + more_s, low + more_s, high + more_s
            one = replace(one, cell=replace(one.cell, ttft_s=ttft_s))
        found.append(one)
    return found


def of_groups_out(rows: Sequence[MeasuredLoad], group: str) -> Spread:
    """Returns interval factors for an unseen group, from errors of groups that are held out of a
    fit on the others.

    Args:
        rows: predicted with `_BASE_S`.
        group: `family` or `system`.
    """
    names = [getattr(one, group) for one in rows]
    enough = sorted(name for name in set(names) if names.count(name) >= _LEAST_ROWS)
    logs = [_logs(_left_out(rows, group, name)) for name in enough]
    return {kind: conformal([one[kind] for one in logs]) for kind in _KINDS}


def of_systems_out(rows: Sequence[MeasuredLoad]) -> Spread:
    """Returns interval factors for an unseen system: the wider of those of held-out systems and
    families.
    """
    both = of_groups_out(rows, "system"), of_groups_out(rows, "family")
    return {
        kind: (min(one[kind][0] for one in both), max(one[kind][1] for one in both))
        for kind in _KINDS
    }


def conformal(groups: Sequence[FloatArray]) -> tuple[float, float]:
    """Returns interval factors for an unseen group (`unseen_group_ends`), of at least one percent.

    Args:
        groups: float64 [rows, 2] each: log(measured / end) for both ends of a prediction.
    """
    low, high = unseen_group_ends(groups)
    return math.exp(min(low, -_LEAST_LOG)), math.exp(max(high, _LEAST_LOG))


def _logs(rows: Sequence[MeasuredLoad]) -> dict[str, FloatArray]:
    """Returns log(measured / end) for both ends, of times per token and to the first token."""
    return {
        kind: np.array([
            [math.log(getattr(one, f"{kind}_s") / end) for end in ends[1:]]
            for one in rows
            if (ends := getattr(one.cell, f"{kind}_s")) is not None
        ])
        for kind in _KINDS
    }  # fmt: skip


def _left_out(rows: Sequence[MeasuredLoad], group: str, name: str) -> list[MeasuredLoad]:
    others = [one for one in rows if getattr(one, group) != name]
    own = [one for one in rows if getattr(one, group) == name]
    return shifted(own, fit_hosts(others or rows))


def judged(
    table: Sequence[Mapping[str, Any]],
    kernels: GpuKernels,
    rows: Sequence[MeasuredLoad],
    group: str,
    servers: dict[tuple[Any, ...], LoadedServer],
) -> list[MeasuredLoad]:
    """Returns predictions for every group, with fits and intervals from the other groups.

    Args:
        rows: all, predicted with `_BASE_S`.
        group: `family` or `system`.
    """
    column = {"family": "model_family", "system": "system"}[group]
    found: list[MeasuredLoad] = []
    for name in sorted({getattr(one, group) for one in rows}):
        others = [one for one in rows if getattr(one, group) != name]
        hosts = plain_hosts(*fit_hosts(others))
        part = [row for row in table if row[column] == name]
        own = evaluate_serving(part, kernels, hosts=hosts, servers=servers).rows
        factors = of_groups_out(others, group) if group == "family" else of_systems_out(others)
        found += [one.within(factors) for one in own]
    return found


def fit_measured(
    rows: Sequence[MeasuredLoad], deployments: Sequence[Sequence[Point]]
) -> tuple[Shrinkage, dict[str, Mapping[str, tuple[float, float]]]]:
    """Returns the shrinkage of a calibration, and kind -> factors of its interval ends.

    Args:
        rows: predicted with `_BASE_S`.
    """
    names = sorted({one.family for one in rows})
    fits = {name: fit_hosts([one for one in rows if one.family != name] or rows) for name in names}
    own = MeasuredFit(
        [trial for points in deployments for trial in trials_of(points)],
        lambda trial: host_s(fits[trial.test[0].row.family], trial),
    )
    shrinkage = own.shrinkage()
    return shrinkage, own.spreads(shrinkage, conformal)


def host_s(fit: tuple[float, float], trial: Trial) -> float:
    """Returns a trial's seconds per request by a fit of `fit_hosts`."""
    return fit[0] + fit[1] * trial.test[0].row.slow_layers


def judged_measured(
    rows: Sequence[MeasuredLoad], deployments: Sequence[Sequence[Point]], group: str
) -> list[Judged]:
    """Returns the trials of every group, with fits, shrinkage and intervals from the other groups.

    Args:
        rows: predicted with `_BASE_S`.
        group: `family` or `system`.
    """
    found = []
    for name in sorted({getattr(points[0].row, group) for points in deployments}):
        others = [one for one in rows if getattr(one, group) != name]
        fit = fit_hosts(others)
        shrinkage, spreads = fit_measured(
            others, [points for points in deployments if getattr(points[0].row, group) != name]
        )
        before = of_groups_out(others, group) if group == "family" else of_systems_out(others)
        for points in deployments:
            if getattr(points[0].row, group) == name:
                found += [
                    Judged(
                        trial, answers(trial, points, host_s(fit, trial), shrinkage), before,
                        spreads[trial.kind],
                    )
                    for trial in trials_of(points)
                ]  # fmt: skip
    return found


def plain_hosts(request_s: float, experts_s: float = 0.0) -> HostFit:
    """Returns a host fit without interval factors: intervals come only from the kernels."""
    ends = dict.fromkeys(_KINDS, (1.0, 1.0))
    return HostFit(request_s, experts_s, tuple(load_registry()), ends, ends)


def experiment() -> None:
    """Fits server overheads, writes them into the package, and writes the page with its figure."""
    kernels = GpuKernels.packaged()
    table = read_serving(shared("llm-serving/serving.parquet"))
    servers: dict[tuple[Any, ...], LoadedServer] = {}
    first = evaluate_serving(table, kernels, hosts=plain_hosts(_BASE_S), servers=servers)
    rows = first.rows
    every = parquet.read_table(shared("llm-serving/serving.parquet")).to_pylist()
    deployments = points_of(every, partial(_answered, kernels=kernels, servers=servers))
    devices = [one.cell.device for one in rows]
    fit = HostFit(
        *fit_hosts(rows),
        tuple(sorted(name for name in set(devices) if devices.count(name) >= _LEAST_ROWS)),
        of_groups_out(rows, "family"),
        of_systems_out(rows),
        *fit_measured(rows, deployments),
    )
    reports = {
        group: ServingReport(tuple(judged(table, kernels, rows, group, servers)), first.left_out)
        for group in ("family", "system")
    }
    write_json(package_folder("cdmpp.comparison.llm") / "hosts.json", to_json(fit))
    packaged_hosts.cache_clear()
    write_text(PAGES / "serving-load.svg", curve_svg(reports["family"], table))
    found = stamp("python -m lab run serving-load", models=("pretrained:gpu_kernels",))
    measured = {
        f"{title} left out": judged_measured(rows, deployments, group)
        for group, title in (("family", "models"), ("system", "systems"))
    }
    text = "\n".join([page(reports, fit), *page_parts(measured)])
    print(write_page("serving-load", text, {"hosts": to_json(fit)}, found))


def _answered(
    table: Sequence[Mapping[str, Any]], request_s: float, *, kernels: GpuKernels,
    servers: dict[tuple[Any, ...], LoadedServer],
) -> Sequence[MeasuredLoad]:  # fmt: skip
    hosts = plain_hosts(request_s)
    return evaluate_serving(table, kernels, hosts=hosts, servers=servers).rows


def sweep_s() -> float:
    """Returns the CPU seconds of `_SWEEP` as a command, including its start."""
    before = os.times()
    command = [sys.executable, "-m", "cdmpp", *_SWEEP.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def curve_svg(report: ServingReport, table: Sequence[Mapping[str, Any]]) -> str:
    """Returns predicted and measured TPOT and TTFT of one model over concurrency."""
    loads = {
        (row["concurrency"], round(row["ttft_ms"], 6))
        for row in table
        if all(row[name] == value for name, value in _CURVE.items())
    }
    chosen = [
        one for one in report.rows
        if (one.cell.load.concurrency, round(1e3 * one.ttft_s, 6)) in loads
        and one.family == _CURVE["model_family"]
    ]  # fmt: skip
    chosen.sort(key=lambda one: one.cell.load.concurrency)
    users = [one.cell.load.concurrency for one in chosen]
    figure, axes = new_figure()
    for place, name in enumerate(("ttft", "tpot")):
        ends = np.array([getattr(one.cell, f"{name}_s") for one in chosen])
        measured = [1e3 * getattr(one, f"{name}_s") for one in chosen]
        colour = COLOURS[place]
        axes.plot(users, 1e3 * ends[:, 0], color=colour, label=f"{name.upper()}, predicted")
        axes.fill_between(users, 1e3 * ends[:, 1], 1e3 * ends[:, 2], color=colour, alpha=0.15)
        axes.plot(users, measured, "o", color=colour, ms=5, label=f"{name.upper()}, measured")
    log_scale(axes, "x", "y")
    axes.set_xlabel("requests in flight")
    axes.set_ylabel("ms")
    legend(axes)
    return svg_text(figure)


def _goal_lines(reports: Mapping[str, ServingReport]) -> list[list[str]]:
    found = [scores(report.rows, report.rows) for report in reports.values()]

    def line(what: str, goal: str, others: str, number: str) -> list[str]:
        values = [getattr(one, number) for one in found]
        shown = [f"{one:.2f}" if number == "order" else f"{100 * one:.1f} %" for one in values]
        return [what, goal, others, *shown]

    lines = [
        line("TPOT, median error", "<= 15 %", "23 %", "tpot_ape"),
        line("TTFT, not queue-bound, median error", "<= 25 %", "47 %", "ttft_ape"),
        line("order of tokens/s a GPU (Spearman)", ">= 0.9", "-", "order"),
        line("TPOT in the 90 % interval", "85 to 95 %", "-", "tpot_inside"),
        line("TTFT in the 90 % interval", "85 to 95 %", "-", "ttft_inside"),
        line("weights and cache over the bandwidth: TPOT", "-", "-", "baseline_ape"),
    ]
    return [["", "goal", "AIConfigurator", "models left out", "systems left out"], *lines]


def page(reports: Mapping[str, ServingReport], fit: HostFit) -> str:
    """Returns the Markdown page."""
    family, system = reports.values()
    counts = ", ".join(f"{count} {reason}" for reason, count in family.left_out.items())
    factors = [
        [name, *(f"{found[kind][0]:.2f} to {found[kind][1]:.2f}" for kind in _KINDS)]
        for name, found in (
            (", ".join(fit.devices), fit.models_out), ("other devices", fit.systems_out)
        )
    ]  # fmt: skip
    goals, *goal_lines = _goal_lines(reports)
    shape = (
        f"{_CURVE['model_family']} {_CURVE['precision']} on {_CURVE['tp_size']} x "
        f"{_CURVE['system']}, {_CURVE['backend']}, {_CURVE['isl']:,} tokens in and "
        f"{_CURVE['osl']:,} out"
    )
    parts = []
    for title, report in (("Models left out", family), ("Systems left out", system)):
        titles, *lines = report_lines(report)
        parts.append(f"## {title}\n\n{markdown_table(titles, lines, 'lr')}\n")
    return "\n".join([
        "# Servers under load in `cdmpp compare`\n",
        "Published runs of TensorRT-LLM, SGLang and vLLM (llm-serving, aggregated) beside the "
        "answers. Nothing is fitted to times per token; seconds of a request and intervals are "
        "fitted without the model, or the system, that is judged. Whose kernels count and the form "
        "of what a backend adds were chosen on these rows: what a choice without the model gives "
        "is on the [page of experiments](../lab/experiments.md).\n",
        markdown_table(goals, goal_lines, "llr"),
        "",
        "AIConfigurator: the tool of the data's source, run on 163 of these rows by this project; "
        "an older version, with names mapped by hand: indicative.\n",
        f"![{shape}](serving-load.svg)\n",
        f"{shape}: the model is left out of the fit, the bands are its 90 % intervals.\n",
        *parts,
        "TPOT: seconds of a token after the first; TTFT: to the first one, where requests do not "
        "wait for room in the cache. Order: Spearman's correlation inside of a model, system and "
        "lengths. Baseline: weights and cache over the bandwidth times one constant of the other "
        f"models. Left out: {counts}.\n",
        "## In the package\n",
        f"A request takes {1e3 * fit.request_s:.0f} ms beside its steps, on SGLang and "
        f"TensorRT-LLM {1e3 * fit.experts_s:.1f} ms more for every layer of experts.",
        "",
        markdown_table(["factors of the ends", "TPOT", "TTFT"], factors, "lr"),
        "",
        f"Ten devices under five loads take {sweep_s():.1f} CPU seconds: `cdmpp {_SWEEP}`.",
        "",
    ])  # fmt: skip
