"""Host times of serving backends, fitted on measured servers and judged on models left out.

Data: llm-serving (see its README), aggregated servers whose parallelism is recorded. The kernels'
times are those of the package; three numbers a backend are fitted to times per token and to the
first token: seconds a step, a factor of the kernels, seconds a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.compare.llm.evaluate import (
    MeasuredLoad,
    ServingReport,
    evaluate_serving,
    read_serving,
    report_lines,
)
from cdmpp.compare.llm.load import BACKENDS, Host, HostFit
from cdmpp.files.atomic import write_json
from cdmpp.files.places import package_folder
from cdmpp.text import markdown_table
from lab.pages import write_page
from lab.paths import shared
from lab.stamp import stamp

_PLAIN = Host(0.0, 1.0, 0.0)
#: Tried values of the three numbers.
_STEPS_S = np.linspace(0.0, 8e-3, 33)
_FACTORS = np.linspace(0.6, 1.5, 37)
_REQUESTS_S = np.linspace(0.0, 0.3, 61)
_ENDS = (0.05, 0.95)
_WIDE = {"tpot": (1e-9, 1e9), "ttft": (1e-9, 1e9)}


@dataclass(frozen=True)
class Plain:
    """A measured server beside what its kernels alone take."""

    row: MeasuredLoad
    tpot_s: float
    ttft_s: float | None


def plain(rows: Sequence[MeasuredLoad]) -> list[Plain]:
    """Returns rows that were answered without a host."""
    return [
        Plain(row, row.cell.tpot_s[0], row.cell.ttft_s[0] if row.cell.ttft_s else None)
        for row in rows
        if row.cell.tpot_s is not None
    ]


def fit_hosts(rows: Sequence[Plain]) -> dict[str, Host]:
    """Returns the host of every backend, least mean absolute log error with every family of models
    weighing the same; a backend without rows has the host of all rows.
    """
    return {
        backend: _fit([one for one in rows if one.row.backend == backend] or rows)
        for backend in BACKENDS
    }


def _fit(rows: Sequence[Plain]) -> Host:
    families = [one.row.family for one in rows]
    weight = np.array([1.0 / families.count(name) for name in families])
    kernels = np.array([one.tpot_s for one in rows])
    measured = np.array([one.row.tpot_s for one in rows])
    tried = [
        (float(weight @ np.abs(np.log((step + factor * kernels) / measured))), step, factor)
        for step in _STEPS_S
        for factor in _FACTORS
    ]
    _, step, factor = min(tried)
    early = [place for place, one in enumerate(rows) if one.ttft_s is not None]
    first = np.array([rows[place].ttft_s for place in early], np.float64)
    taken = np.array([rows[place].row.ttft_s for place in early])
    errors = [
        float(weight[early] @ np.abs(np.log((request + step + factor * first) / taken)))
        for request in _REQUESTS_S
    ]
    return Host(float(step), float(factor), float(_REQUESTS_S[int(np.argmin(errors))]))


def left_out(
    table: Sequence[Mapping[str, object]], kernels: GpuKernels, rows: Sequence[Plain], group: str
) -> list[MeasuredLoad]:
    """Returns answers to the rows of every group by hosts that were fitted without it.

    Args:
        group: `family` or `system`.
    """
    names = {"family": "model_family", "system": "system"}
    found: list[MeasuredLoad] = []
    for name in sorted({getattr(one.row, group) for one in rows}):
        hosts = fit_hosts([one for one in rows if getattr(one.row, group) != name])
        part = [row for row in table if row[names[group]] == name]
        found += evaluate_serving(part, kernels, hosts=HostFit(hosts, _WIDE)).rows
    return found


def spread(rows: Sequence[MeasuredLoad]) -> dict[str, tuple[float, float]]:
    """Returns the factors that hold 90 % of errors, every family weighing the same."""
    families = [one.family for one in rows]
    weight = np.array([1.0 / families.count(name) for name in families])
    errors: dict[str, list[tuple[float, float]]] = {"tpot": [], "ttft": []}
    for one, share in zip(rows, weight, strict=True):
        assert one.cell.tpot_s is not None  # rows have an answer
        errors["tpot"].append((np.log(one.tpot_s / one.cell.tpot_s[0]), share))
        if one.cell.ttft_s is not None:
            errors["ttft"].append((np.log(one.ttft_s / one.cell.ttft_s[0]), share))
    return {name: _quantiles(part) for name, part in errors.items()}


def _quantiles(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    ordered = sorted(errors)
    places = np.cumsum([share for _, share in ordered])
    low, high = (
        ordered[min(int(np.searchsorted(places, end * places[-1])), len(ordered) - 1)][0]
        for end in _ENDS
    )
    return float(np.exp(min(low, 0.0))), float(np.exp(max(high, 0.0)))


def wider(
    rows: Sequence[MeasuredLoad], more: Sequence[MeasuredLoad]
) -> dict[str, tuple[float, float]]:
    """Returns the wider of the factors of two sets of errors."""
    first, second = spread(rows), spread(more)
    return {
        name: (min(ends[0], second[name][0]), max(ends[1], second[name][1]))
        for name, ends in first.items()
    }


def judged(
    rows: Sequence[MeasuredLoad], more: Sequence[MeasuredLoad], group: str
) -> list[MeasuredLoad]:
    """Returns rows with the interval of the other groups' errors.

    Args:
        more: the rows with something else left out.
    """
    found = []
    for name in sorted({getattr(one, group) for one in rows}):
        others = [[one for one in part if getattr(one, group) != name] for part in (rows, more)]
        ends = wider(others[0], others[1])
        found += [one.within(ends) for one in rows if getattr(one, group) == name]
    return found


def experiment() -> None:
    """Fits the hosts, writes them into the package, and the page."""
    kernels = GpuKernels.packaged()
    table = read_serving(shared("llm-serving/serving.parquet"))
    first = evaluate_serving(table, kernels, hosts=HostFit(dict.fromkeys(BACKENDS, _PLAIN), _WIDE))
    rows = plain(first.rows)
    by_family = left_out(table, kernels, rows, "family")
    by_system = left_out(table, kernels, rows, "system")
    hosts, ends = fit_hosts(rows), wider(by_family, by_system)
    content = {
        "hosts": {name: asdict(one) for name, one in hosts.items()}, "spread": ends,
        "about": "python -m lab run serving-load; llm-serving, aggregated servers",
    }  # fmt: skip
    write_json(package_folder("cdmpp.compare.llm") / "hosts.json", content)
    parts = []
    for title, part, more, group in (
        ("Models left out", by_family, by_system, "family"),
        ("Systems left out", by_system, by_family, "system"),
    ):  # fmt: skip
        report = ServingReport(tuple(judged(part, more, group)), first.left_out)
        titles, *lines = report_lines(report)
        parts.append(f"## {title}\n\n{markdown_table(titles, lines, 'lr')}\n")
    found = stamp("python -m lab run serving-load", models=("pretrained:gpu_kernels",))
    print(write_page("serving-load", page(parts, hosts, first), content, found))


def page(parts: Sequence[str], hosts: Mapping[str, Host], first: ServingReport) -> str:
    """Returns the Markdown page."""
    lines = [
        [
            name,
            f"{1e3 * one.step_s:.2f}",
            f"{one.factor:.3f}",
            f"{1e3 * one.request_s:.0f}",
        ]
        for name, one in hosts.items()
    ]
    counts = ", ".join(f"{count} {reason}" for reason, count in first.left_out.items())
    return "\n".join([
        "# Servers under load in `cdmpp compare`\n",
        "Published runs of TensorRT-LLM, SGLang and vLLM (llm-serving, aggregated), beside the "
        "answers of hosts and intervals that were fitted without the model or the system. TPOT: "
        "seconds of a token after the first; TTFT: to the first one, where requests do not wait "
        "for room in the cache. Order: Spearman's correlation of tokens a second and GPU inside "
        "of a model, system and lengths. Baseline: weights and cache over the bandwidth times one "
        f"constant of the other models. Left out: {counts}.\n",
        *parts,
        "## Hosts of the package\n",
        markdown_table(
            ["backend", "step (ms)", "factor of kernels", "request (ms)"],
            lines, "lr",
        ),
        "",
    ])  # fmt: skip
