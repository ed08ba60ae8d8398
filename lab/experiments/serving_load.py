"""Servers under load beside measured ones, with what backends add fitted without what is judged.

Data: llm-serving (see its README), aggregated servers whose parallelism is recorded. The kernels'
times are those of the package and nothing is fitted to times per token. One number a backend is
fitted to times to the first token: seconds of a request before its prompt is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.comparison.llm.evaluate import (
    MeasuredLoad,
    ServingReport,
    evaluate_serving,
    read_serving,
    report_lines,
    scores,
)
from cdmpp.comparison.llm.load import BACKENDS, HostFit, LoadedServer, packaged_hosts
from cdmpp.files.atomic import write_json, write_text
from cdmpp.files.places import package_folder
from cdmpp.files.stored import to_json
from cdmpp.report.plots import COLOURS, legend, log_scale, new_figure, svg_text
from cdmpp.text import markdown_table
from lab.pages import write_page
from lab.paths import PAGES, shared
from lab.stamp import stamp

Spread = dict[str, tuple[float, float]]
_WIDE: Spread = {"tpot": (1e-9, 1e9), "ttft": (1e-9, 1e9)}
#: Seconds of a request at which rows are simulated once; what else is tried is added to that.
_BASE_S = 0.05
_REQUESTS_S = np.linspace(0.0, 0.5, 101)
_ENDS = (0.05, 0.95)
#: From so many users on, published servers of SGLang look for requests less often.
_MANY_USERS = 16
#: No end is nearer than a percent.
_LEAST_LOG = 0.01
#: Fewer rows of a system say nothing of its errors.
_LEAST_ROWS = 20
#: The curve of the page: rows of one model, system, server and lengths.
_CURVE = {
    "model_family": "Llama-3.1-70B", "system": "b200_sxm", "backend": "vllm", "precision": "fp8",
    "tp_size": 4, "isl": 1024, "osl": 1024,
}  # fmt: skip


def published_servers() -> list[dict[str, Any]]:
    """Returns the measured rows with what the published launch scripts say of SGLang's servers: how
    many steps pass until they look for requests again, by concurrency.

    Source: InferenceX's scripts of DeepSeek-R1 on B200, `--scheduler-recv-interval`; taken for
    B300's too. All rows of SGLang are of DeepSeek.
    """
    return [
        {**row, "scheduler_recv_interval": _polls(row) if row["backend"] == "sglang" else 1}
        for row in read_serving(shared("llm-serving/serving.parquet"))
    ]


def _polls(row: Mapping[str, Any]) -> int:
    return 30 if row["concurrency"] >= _MANY_USERS else 10


def fit_requests(rows: Sequence[MeasuredLoad]) -> dict[str, float]:
    """Returns the seconds of a request of every backend, least mean absolute log error with every
    family of models weighing the same; a backend without rows has those of all rows.

    Args:
        rows: answered with `_BASE_S`.
    """
    early = [one for one in rows if one.cell.ttft_s is not None]
    return {
        backend: _fit([one for one in early if one.backend == backend] or early)
        for backend in BACKENDS
    }


def _fit(rows: Sequence[MeasuredLoad]) -> float:
    families = [one.family for one in rows]
    weight = np.array([1.0 / families.count(name) for name in families])
    beside = np.array([_first_s(one) - _BASE_S for one in rows])
    taken = np.array([one.ttft_s for one in rows])
    errors = [
        float(weight @ np.abs(np.log((request_s + beside) / taken))) for request_s in _REQUESTS_S
    ]
    return float(_REQUESTS_S[int(np.argmin(errors))])


def _first_s(row: MeasuredLoad) -> float:
    assert row.cell.ttft_s is not None  # the caller's choice
    return row.cell.ttft_s[0]


def shifted(rows: Sequence[MeasuredLoad], request_s: Mapping[str, float]) -> list[MeasuredLoad]:
    """Returns rows of `_BASE_S` as they are nearly answered with other seconds of a request."""
    found = []
    for one in rows:
        if one.cell.ttft_s is not None:
            more_s = request_s[one.backend] - _BASE_S
            value, low, high = one.cell.ttft_s
            ttft_s = value + more_s, low + more_s, high + more_s
            one = replace(one, cell=replace(one.cell, ttft_s=ttft_s))
        found.append(one)
    return found


def spread(rows: Sequence[MeasuredLoad]) -> Spread:
    """Returns the factors that hold 90 % of errors, every family weighing the same."""
    errors: dict[str, list[tuple[float, float]]] = {name: [] for name in _WIDE}
    for name in {one.family for one in rows}:
        for kind, logs in _logs([one for one in rows if one.family == name]).items():
            errors[kind] += [(value, 1.0 / len(logs)) for value in logs]
    found = {}
    for kind, part in errors.items():
        low, high = (_place(part, end) for end in _ENDS)
        found[kind] = (float(np.exp(min(low, -_LEAST_LOG))), float(np.exp(max(high, _LEAST_LOG))))
    return found


def _logs(rows: Sequence[MeasuredLoad]) -> dict[str, list[float]]:
    """Returns log(measured / predicted) of times per token and to the first token."""
    return {
        kind: [
            float(np.log(getattr(one, f"{kind}_s") / ends[0]))
            for one in rows
            if (ends := getattr(one.cell, f"{kind}_s")) is not None
        ]
        for kind in _WIDE
    }


def _place(values: Sequence[tuple[float, float]], share: float) -> float:
    """Returns the quantile of values with weights."""
    ordered = sorted(values)
    places = np.cumsum([weight for _, weight in ordered])
    found = int(np.searchsorted(places, share * places[-1]))
    return ordered[min(found, len(ordered) - 1)][0]


def widest(found: Sequence[Spread]) -> Spread:
    """Returns the widest of some factors."""
    return {
        name: (min(one[name][0] for one in found), max(one[name][1] for one in found))
        for name in _WIDE
    }


def of_systems_out(rows: Sequence[MeasuredLoad]) -> Spread:
    """Returns factors for a system that has no rows: the widest over the systems of the rows, each
    left out of a fit on the others.
    """
    parts = []
    for name in {one.system for one in rows}:
        own = [one for one in rows if one.system == name]
        others = [one for one in rows if one.system != name]
        if len(own) >= _LEAST_ROWS:
            parts.append(spread(shifted(own, fit_requests(others or rows))))
    return widest(parts)


def of_models_out(rows: Sequence[MeasuredLoad]) -> Spread:
    """Returns factors for a model that has no rows: those of families left out of a fit on the
    others, wider by what it takes for 90 % of each family within factors of the others.
    """
    parts = {name: _left_out(rows, name) for name in sorted({one.family for one in rows})}
    ends = spread([one for part in parts.values() for one in part])
    if len(parts) < 2:
        return ends
    needed: dict[str, list[tuple[float, float]]] = {name: [] for name in ends}
    for name, own in parts.items():
        others = spread([one for key, part in parts.items() if key != name for one in part])
        for kind, logs in _logs(own).items():
            low, high = np.log(others[kind])
            widths = [value / (high if value > 0 else low) for value in logs]
            needed[kind] += [(width, 1.0 / len(logs)) for width in widths]
    width = {kind: max(1.0, _place(found, 0.9)) for kind, found in needed.items()}
    return {kind: (low ** width[kind], high ** width[kind]) for kind, (low, high) in ends.items()}


def _left_out(rows: Sequence[MeasuredLoad], family: str) -> list[MeasuredLoad]:
    others = [one for one in rows if one.family != family]
    return shifted([one for one in rows if one.family == family], fit_requests(others or rows))


def judged(
    table: Sequence[Mapping[str, Any]],
    kernels: GpuKernels,
    rows: Sequence[MeasuredLoad],
    group: str,
    servers: dict[tuple[Any, ...], LoadedServer],
) -> list[MeasuredLoad]:
    """Returns answers to the rows of every group by fits, and with ends, from the other groups.

    Args:
        rows: all, answered with `_BASE_S`.
        group: `family` or `system`.
    """
    column = {"family": "model_family", "system": "system"}[group]
    ends = of_models_out if group == "family" else of_systems_out
    found: list[MeasuredLoad] = []
    for name in sorted({getattr(one, group) for one in rows}):
        others = [one for one in rows if getattr(one, group) != name]
        hosts = HostFit(fit_requests(others), (), _WIDE, _WIDE)
        part = [row for row in table if row[column] == name]
        own = evaluate_serving(part, kernels, hosts=hosts, servers=servers).rows
        factors = ends(others)
        found += [one.within(factors) for one in own]
    return found


def experiment() -> None:
    """Fits what backends add, writes it into the package, and the page with its picture."""
    kernels = GpuKernels.packaged()
    table = published_servers()
    servers: dict[tuple[Any, ...], LoadedServer] = {}
    base = HostFit(dict.fromkeys(BACKENDS, _BASE_S), (), _WIDE, _WIDE)
    first = evaluate_serving(table, kernels, hosts=base, servers=servers)
    rows = first.rows
    devices = [one.cell.device for one in rows]
    fit = HostFit(
        fit_requests(rows),
        tuple(sorted(name for name in set(devices) if devices.count(name) >= _LEAST_ROWS)),
        of_models_out(rows),
        of_systems_out(rows),
    )
    reports = {
        group: ServingReport(tuple(judged(table, kernels, rows, group, servers)), first.left_out)
        for group in ("family", "system")
    }
    write_json(package_folder("cdmpp.comparison.llm") / "hosts.json", to_json(fit))
    packaged_hosts.cache_clear()
    write_text(PAGES / "serving-load.svg", curve_svg(reports["family"], table))
    found = stamp("python -m lab run serving-load", models=("pretrained:gpu_kernels",))
    text = page(reports, fit)
    print(write_page("serving-load", text, {"hosts": to_json(fit)}, found))


def curve_svg(report: ServingReport, table: Sequence[Mapping[str, Any]]) -> str:
    """Returns TPOT and TTFT of one model over concurrency, answers beside measured points."""
    loads = {
        (row["concurrency"], row["ttft_ms"])
        for row in table
        if all(row[name] == value for name, value in _CURVE.items())
    }
    chosen = [
        one for one in report.rows
        if (one.cell.load.concurrency, 1e3 * one.ttft_s) in loads
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
    one, other = (scores(report.rows, report.rows) for report in reports.values())

    def line(what: str, goal: str, others: str, number: str, digits: float) -> list[str]:
        values = [getattr(found, number) for found in (one, other)]
        shown = [f"{digits * value:.1f} %" if digits == 100 else f"{value:.2f}" for value in values]
        return [what, goal, others, *shown]

    lines = [
        line("TPOT, median error", "<= 15 %", "23 %", "tpot_ape", 100),
        line("TTFT, not queue-bound, median error", "<= 25 %", "47 %", "ttft_ape", 100),
        line("order of tokens/s a GPU (Spearman)", ">= 0.9", "-", "order", 1),
        line("TPOT in the 90 % interval", "85 to 95 %", "-", "tpot_inside", 100),
        line("TTFT in the 90 % interval", "85 to 95 %", "-", "ttft_inside", 100),
        line("weights and cache over the bandwidth: TPOT", "-", "-", "baseline_ape", 100),
    ]
    return [["", "goal", "AIConfigurator", "models left out", "systems left out"], *lines]


def page(reports: Mapping[str, ServingReport], fit: HostFit) -> str:
    """Returns the Markdown page."""
    family, system = reports.values()
    counts = ", ".join(f"{count} {reason}" for reason, count in family.left_out.items())
    requests = [[name, f"{1e3 * value:.0f}"] for name, value in fit.request_s.items()]
    factors = [
        [name, *(f"{found[kind][0]:.2f} to {found[kind][1]:.2f}" for kind in _WIDE)]
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
        markdown_table(["backend", "a request (ms)"], requests, "lr"),
        "",
        markdown_table(["factors of the ends", "TPOT", "TTFT"], factors, "lr"),
        "",
    ])  # fmt: skip
