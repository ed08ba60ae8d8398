"""The embedding models on measured lookups: splits by shape, several seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.embedding.campaign import ROWS_FILE, CampaignRow, read_folder
from cdmpp.analytic.embedding.errors import histogram_labels
from cdmpp.analytic.embedding.evaluate import Judgement, Split, judge_campaign
from cdmpp.analytic.embedding.shapes import Pass
from cdmpp.cli.shared.options import parse_seeds
from cdmpp.files.atomic import sha256_file
from cdmpp.metrics import mean_and_interval, spearman
from cdmpp.report.page import Page, Section
from cdmpp.report.tables import Table, plain_table
from cdmpp.text import percent_text
from lab.pages import write_page
from lab.paths import RESULTS, ROOT
from lab.stamp import stamp

SPLITS: tuple[Split, ...] = ("shape", "table", "rows")
#: Line of the results -> description.
LINES = {
    "cpu": "counted work, costs fitted per pass",
    "lru-calibrated": "as `lru`; two bandwidth shares and a launch time fitted per pass",
    "trees": "gradient-boosted trees on the logarithms of the shape, fitted per pass",
    "lru": "the GPU formula with Che's hit rate; bandwidths of a memory sweep, nothing fitted",
    "resident": "the original's first cache model, nothing fitted",
    "cold-start": "the original's later cache model (forward only), nothing fitted",
    "plain": "no cache, nothing fitted",
}
_METRICS = ("gmae", "mean", "std", "median", "signed_mean", "spearman")
#: Group -> (pass, minimum rows of a table); None for every pass.
_GROUPS: dict[str, tuple[Pass | None, int]] = {
    "forward": ("forward", 0),
    "forward, from 100,000 rows": ("forward", 100_000),
    "backward-sgd": ("backward-sgd", 0),
    "backward-dense": ("backward-dense", 0),
}
#: Geometric mean, mean and standard deviation of the error, as published for one GPU kernel.
_PUBLISHED = (0.1166, 0.2198, 0.2100)
_SPLIT_WORDS = {
    "shape": "shapes left out (30 %)",
    "table": "table sizes left out (30 % of rows x width)",
    "rows": "the largest tables left out",
}


@dataclass(frozen=True)
class ResultRow:
    """One value: a metric of a line on one split, group and seed."""

    split: str
    group: str
    line: str
    seed: int
    metric: str
    value: float
    n: int


def result_rows(judgements: Sequence[Judgement]) -> list[ResultRow]:
    """Returns every metric and histogram bucket of every judgement."""
    rows = []
    for judged in judgements:
        for group, (which, least_rows) in _GROUPS.items():
            errors = judged.errors(which, least_rows=least_rows)
            # The original's later cache model only predicts the forward pass.
            if errors is None or (judged.line == "cold-start" and which != "forward"):
                continue
            values: dict[str, float | None] = {
                "gmae": errors.gmae,
                "mean": errors.mean,
                "std": errors.std,
                "median": errors.median,
                "signed_mean": errors.signed_mean,
                "spearman": _spearman(judged, which, least_rows),
            }
            values.update(
                (f"share {label}", share)
                for label, share in zip(histogram_labels(), errors.histogram, strict=True)
            )
            rows += [
                ResultRow(judged.split, group, judged.line, judged.seed, name, value, errors.n)
                for name, value in values.items()
                if value is not None
            ]
    return rows


def summary(rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """Returns one object per (split, group, line): n, seeds, mean and half width of each metric."""
    found: dict[tuple[str, str, str], dict[str, list[ResultRow]]] = {}
    for row in rows:
        if row.metric in _METRICS:
            by_metric = found.setdefault((row.split, row.group, row.line), {})
            by_metric.setdefault(row.metric, []).append(row)
    objects = []
    for (split, group, line), by_metric in found.items():
        entry: dict[str, Any] = {"split": split, "group": group, "line": line}
        first = next(iter(by_metric.values()))
        entry["n"] = sum(row.n for row in first)
        entry["seeds"] = len(first)
        for metric, values in by_metric.items():
            mean, half = mean_and_interval([row.value for row in values])
            entry[metric], entry[f"{metric}_half_width"] = mean, half
        objects.append(entry)
    return objects


def results_page(rows: Sequence[ResultRow], facts: dict[str, Any]) -> Page:
    """Returns the results page.

    Args:
        facts: machine and data.
    """
    table = {(e["split"], e["group"], e["line"]): e for e in summary(rows)}
    machine = facts["machine"]
    published = " / ".join(f"{100 * value:.2f}" for value in _PUBLISHED)
    return Page(
        title="Embedding lookups: predicted against measured",
        lead=(
            "`torch.nn.functional.embedding_bag` on one thread "
            f"({machine['processor']}, torch {machine['versions']['torch']}): {facts['points']} "
            f"points (pass, shape, access) in {facts['measurements']} measurements, up to "
            f"{facts['rounds']} rounds, the fastest round of each point. Access is uniform or Zipf "
            "(exponent 1.05)."
        ),
        sections=[
            *(_section(split, table) for split in SPLITS if any(k[0] == split for k in table)),
            Section("Lines", points=[f"`{line}`: {text}" for line, text in LINES.items()]),
            Section(
                "95 % intervals over the seeds (shapes left out, %)", tables=[_intervals(table)]
            ),
            Section(
                "Histogram of the errors (forward, shapes left out, mean over seeds, %)",
                tables=[_histogram(rows)],
            ),
        ],
        notes=[
            "The machine was shared with other work all the time (load average "
            f"{facts['load_range'][0]:.1f} to {facts['load_range'][1]:.1f} on {machine['cores']} "
            "cores). Time is the processor time of the one thread, which leaves out the moments "
            "when others had the core, but not that they used the caches: between two rounds the "
            f"same point differs by {percent_text(facts['round_spread'], 0)} (median of slowest / "
            "fastest - 1). That noise is in every number.",
            "Cells of the splits: geometric mean / mean / standard deviation of the error in %, "
            "then Spearman's correlation, mean over the seeds; fitted constants are from the "
            "training part only.",
            f"For comparison, published: {published} for the forward kernel with the first cache "
            "model **on a V100 GPU, on its authors' measurements** (8.68 / 13.13 / 9.99 from "
            "100,000 rows up). Another machine, another kernel and other shapes: it says what such "
            "formulas reach, and is no row of the tables.",
        ],
    )


def _section(split: str, table: dict[tuple[str, str, str], dict[str, Any]]) -> Section:
    own = {key[1:]: entry for key, entry in table.items() if key[0] == split}
    heads: dict[str, str] = {}
    for (group, _), entry in own.items():
        heads.setdefault(group, f"{group} (n = {entry['n'] // entry['seeds']})")
    groups = [group for group in _GROUPS if group in heads]
    cells = ([f"`{line}`", *(_cell(own.get((group, line))) for group in groups)] for line in LINES)
    seeds = max(entry["seeds"] for entry in own.values())
    return Section(
        _SPLIT_WORDS[split],
        f"{seeds} seed{'s' if seeds > 1 else ''}; n is the mean test part of a seed.",
        tables=[
            plain_table(
                ["line", *(heads[group] for group in groups)],
                [row for row in cells if any(cell != "-" for cell in row[1:])],
            )
        ],
    )


def experiment(
    data: Path = ROOT / "data" / "embedding-cpu",
    out: Path = RESULTS,
    seeds: str = "0,1,2",
    is_json: bool = False,
) -> None:
    """Evaluates every line on the splits and seeds of a campaign and writes the page; prints the
    page, or the content of its JSON file.
    """
    campaign = read_folder(data)
    numbers = parse_seeds(seeds)
    # The split by largest tables does not depend on the seed.
    splits = [
        (split, seed) for split in SPLITS for seed in (numbers[:1] if split == "rows" else numbers)
    ]
    points, judged = judge_campaign(campaign, splits)
    rows = result_rows(judged)
    spread = sorted(round_spread(campaign.rows))
    loads = [row.load_average for row in campaign.rows]
    facts: dict[str, Any] = {
        "machine": campaign.machine,
        "seeds": list(numbers),
        "measurements": len(campaign.rows),
        "points": points,
        "rounds": 1 + max(row.round for row in campaign.rows),
        "load_range": [min(loads), max(loads)],
        "round_spread": spread[len(spread) // 2] if spread else 0.0,
    }
    value = {**facts, "summary": summary(rows)}
    found = stamp("python -m lab run embedding", data={data.name: sha256_file(data / ROWS_FILE)})
    tidy = (
        ("embedding", "embedding-cpu", row.split, "cpu-1t", row.group, row.line, row.seed,
         row.metric, row.value, row.n)
        for row in rows
    )  # fmt: skip
    page = write_page("embedding", results_page(rows, facts), value, found, rows=tidy, folder=out)
    print(json.dumps({"stamp": found, **value}) if is_json else page)


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "-"
    numbers = [f"{100 * entry[name]:.1f}" if name in entry else "-" for name in _METRICS[:3]]
    return f"{' / '.join(numbers)}, {entry['spearman']:.3f}"


def _intervals(table: dict[tuple[str, str, str], dict[str, Any]]) -> Table:
    rows = []
    for (split, group, line), entry in table.items():
        if split == "shape" and entry["gmae_half_width"] is not None:
            cells = (
                f"{100 * entry[name]:.1f} ± {100 * entry[f'{name}_half_width']:.1f}"
                for name in ("gmae", "mean", "std", "signed_mean")
            )
            rows.append([group, f"`{line}`", *cells])
    titles = ["pass", "line", "geometric mean", "mean", "standard deviation", "signed mean"]
    return plain_table(titles, rows)


def _histogram(rows: Sequence[ResultRow]) -> Table:
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if (row.split, row.group) == ("shape", "forward"):
            found.setdefault((row.line, row.metric), []).append(row.value)
    lines = []
    for line in LINES:
        shares = (found.get((line, f"share {label}")) for label in histogram_labels())
        lines.append([f"`{line}`", *(f"{100 * np.mean(v):.1f}" if v else "-" for v in shares)])
    return plain_table(["line", *histogram_labels()], lines)


def round_spread(rows: Iterable[CampaignRow]) -> list[float]:
    """Returns (slowest - fastest) / fastest round of each point measured at least twice."""
    found: dict[tuple[str, int, int, int, int, int, float], list[float]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row.latency_s)
    return [max(times) / min(times) - 1.0 for times in found.values() if len(times) > 1]


def _spearman(judged: Judgement, which: Pass | None, least_rows: int) -> float | None:
    keep = np.array(
        [which in (None, p.which) and p.shape.rows >= least_rows for p in judged.points]
    )
    if keep.sum() < 3:
        return None
    return spearman(judged.measured_s[keep], judged.predicted_s[keep])
