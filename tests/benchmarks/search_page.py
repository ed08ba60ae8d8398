"""The results page of `search_campaign.py`: search.md, search.csv, search.json and search.png."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.files.atomic import write_text
from cdmpp.report.stamp import PROGRAMS, stamp, write_page
from cdmpp.text import tidy_csv

Results = Mapping[tuple[str, str, int], Mapping[str, Any]]
#: A median over repeats says which of two programs is faster to within about this share.
_PEERS = ("xgb", "xgb-warm0")
_OURS = ("cdmpp", "cdmpp-finetune")
_WORST = 1.05
_COMMANDS = """    make bench-search SEARCH_MODEL=RUN      # = these three steps
    python -m tests.benchmarks.search_campaign run --model RUN
    python -m tests.benchmarks.search_campaign remeasure
    python -m tests.benchmarks.search_campaign report
"""


def write_results(
    found: Results,
    timed: Mapping[str, Mapping[str, Any]],
    out: Path,
    *,
    tasks: Mapping[str, str],
    methods: Sequence[str],
) -> None:
    """Writes the four files.

    Args:
        found: (task, method, seed) -> result of a search.
        timed: task -> winners and their readings.
        out: folder.
        tasks: short name -> full name.
        methods: in the order of the columns.
    """
    best = best_times(timed)
    some = next(iter(found.values()))
    page = _markdown(found, timed, best, tasks, methods)
    parts = [result.get("stamp") for result in found.values()]
    origin = stamp("make bench-search", schemas=PROGRAMS, parts=parts)
    write_text(out / "search.csv", _csv(found, timed, best, str(some["device"])))
    models = sorted({str(result["model"]) for result in found.values() if result["model"]})
    write_page(out, "search", page, {
        "device": some["device"], "models": models,
        "searches": len(found), "trials": sum(len(r["latency_s"]) for r in found.values()),
        "untuned_s": {task: _median(times, "untuned") for task, times in timed.items()},
        "best_s": {" ".join(map(str, key)): value for key, value in sorted(best.items())},
    }, origin)  # fmt: skip
    _plot(found, best, tasks, methods, out / "search.png")


def best_times(timed: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str, int, int], float]:
    """Returns (task, method, seed, trials) -> median seconds of the winner, timed again."""
    return {
        (task, row["method"], row["seed"], row["trials"]): _median(times, row["program"])
        for task, times in timed.items()
        for row in times["winners"]
    }


def over_seeds(
    best: Mapping[tuple[str, str, int, int], float],
    task: str,
    method: str,
    trials: int,
    seeds: Sequence[int],
) -> float | None:
    """Returns the geometric mean of some seeds; None where one is missing."""
    values = [best.get((task, method, seed, trials)) for seed in seeds]
    if not values or any(value is None for value in values):
        return None
    return float(np.exp(np.mean(np.log([value for value in values if value is not None]))))


def common_seeds(
    best: Mapping[tuple[str, str, int, int], float],
    task: str,
    methods: Sequence[str],
    trials: Sequence[int],
) -> list[int]:
    """Returns the seeds that every one of the methods has after every one of the trials."""
    seeds = sorted({key[2] for key in best if key[0] == task})
    return [
        seed
        for seed in seeds
        if all((task, method, seed, count) in best for method in methods for count in trials)
    ]


def _median(times: Mapping[str, Any], program: str) -> float:
    return float(np.median(times["seconds"][program]))


def _markdown(
    found: Results,
    timed: Mapping[str, Mapping[str, Any]],
    best: Mapping[tuple[str, str, int, int], float],
    tasks: Mapping[str, str],
    methods: Sequence[str],
) -> str:
    some = next(iter(found.values()))
    repeats = len(next(iter(timed.values()))["seconds"]["untuned"])
    counted = sum(len(result["latency_s"]) for result in found.values())
    failed = sum(value is None for result in found.values() for value in result["latency_s"])
    lines = [
        "# Searches: MetaSchedule led by different cost models",
        "",
        f"{len(found)} searches on `{some['device']}`, {counted} programs measured, {failed} "
        "failed. Evolutionary search with TVM's settings but a population of 128 (TVM: 512, which "
        "takes half a minute a round on one core), 16 programs a round, the same seeds for all. "
        "`xgb` is TVM's model as it comes (random until 100 programs are measured), `xgb-warm0` "
        "the same with `num_warmup_samples=0`, `random` random scores, `cdmpp` our model frozen, "
        "`cdmpp-finetune` tuned every 16 programs; both with the safety net. The winner of every "
        f"search after 16, 64 and 256 programs was timed again, {repeats} times in turns with all "
        "others of its task; the tables have medians of these readings.",
        "",
        _COMMANDS,
        "## Shortest latency (microseconds, geometric mean of the seeds that all methods have)",
        "",
        "| task | trials | seeds | first sample | " + " | ".join(methods) + " |",
        "|---|---|---|---|" + "---|" * len(methods),
    ]
    for task in tasks:
        for trials in (16, 64, 256):
            there = [m for m in methods if common_seeds(best, task, [m], [trials])]
            seeds = common_seeds(best, task, there, [trials]) if there else []
            if not seeds:
                continue
            values = [
                over_seeds(best, task, method, trials, seeds) if method in there else None
                for method in methods
            ]
            least = min(value for value in values if value is not None)
            cells = [_cell(value, least) for value in values]
            untuned = 1e6 * _median(timed[task], "untuned")
            lines.append(
                f"| {task} | {trials} | {len(seeds)} | {untuned:.0f} | " + " | ".join(cells) + " |"
            )
    lines += ["", *_relative(best, tasks, methods), "", *_goals(best, tasks), ""]
    lines += ["![curves](search.png)", "", *_walls(found, methods), "", *_nets(found)]
    lines += ["", "Tasks: " + "; ".join(f"`{text}`" for text in tasks.values()) + "."]
    return "\n".join(lines) + "\n"


def _cell(value: float | None, least: float) -> str:
    if value is None:
        return ""
    text = f"{1e6 * value:.1f}"
    return f"**{text}**" if value <= least * 1.001 else text


def _relative(
    best: Mapping[tuple[str, str, int, int], float],
    tasks: Mapping[str, str],
    methods: Sequence[str],
) -> list[str]:
    """Returns the geometric mean over the tasks of the latency over that of XGB at equal trials."""
    lines = [
        "## Latency over that of the better XGB of the task at equal trials (geometric mean)",
        "",
        "| trials | tasks | " + " | ".join(methods) + " |",
        "|---|---|" + "---|" * len(methods),
    ]
    for trials in (16, 64, 256):
        ratios: dict[str, list[float]] = {method: [] for method in methods}
        count = 0
        for task in tasks:
            seeds = common_seeds(best, task, methods, [trials])
            if not seeds:
                continue
            values = {m: over_seeds(best, task, m, trials, seeds) or np.nan for m in methods}
            least = min(values[peer] for peer in _PEERS)
            count += 1
            for method in methods:
                ratios[method].append(values[method] / least)
        if count:
            means = [f"{np.exp(np.mean(np.log(ratios[m]))):.3f}" for m in methods]
            lines.append(f"| {trials} | {count} | " + " | ".join(means) + " |")
    return lines


def _goals(best: Mapping[tuple[str, str, int, int], float], tasks: Mapping[str, str]) -> list[str]:
    lines = ["## Goals", ""]
    for ours in _OURS:
        rows = []
        for task in tasks:
            seeds = [
                seed
                for seed in common_seeds(best, task, [ours], [64])
                if all((task, peer, seed, 256) in best for peer in _PEERS)
            ]
            if seeds:
                peers = [over_seeds(best, task, peer, 256, seeds) or np.nan for peer in _PEERS]
                own = over_seeds(best, task, ours, 64, seeds) or np.nan
                rows.append((task, len(seeds), own / min(peers)))
        if rows:
            mean = float(np.exp(np.mean(np.log([ratio for _, _, ratio in rows]))))
            each = ", ".join(f"{task} {ratio:.3f} ({n} seeds)" for task, n, ratio in rows)
            lines.append(
                f"- `{ours}` after 64 trials over the better XGB after 256: {mean:.3f} "
                f"({'met' if mean <= 1.0 else 'not met'}; goal at most 1): {each}."
            )
        worst = []
        for trials in (16, 64, 256):
            for task in tasks:
                seeds = common_seeds(best, task, [ours, *_PEERS], [trials])
                if seeds:
                    peers = [over_seeds(best, task, p, trials, seeds) or np.nan for p in _PEERS]
                    own = over_seeds(best, task, ours, trials, seeds) or np.nan
                    worst.append((own / min(peers), task, trials))
        if worst:
            over = sorted((row for row in worst if row[0] > _WORST), reverse=True)
            named = ", ".join(f"{task} at {trials} {ratio:.2f}" for ratio, task, trials in over)
            lines.append(
                f"- `{ours}` behind the better XGB at equal trials by more than 5 %: {len(over)} "
                f"of {len(worst)} ({'not met: ' + named if over else 'met'}; goal none)."
            )
    return lines


def _walls(found: Results, methods: Sequence[str]) -> list[str]:
    lines = [
        "## Wall time", "",
        "| method | searches | seconds per trial (median) | share in the cost model | failed |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for method in methods:
        rows = [result for key, result in found.items() if key[1] == method]
        if not rows:
            continue
        per_trial = np.median([row["wall_s"] / max(1, len(row["latency_s"])) for row in rows])
        share = sum(row["cost_model_s"] for row in rows) / sum(row["wall_s"] for row in rows)
        failed = sum(value is None for row in rows for value in row["latency_s"])
        lines.append(f"| {method} | {len(rows)} | {per_trial:.2f} | {share:.1%} | {failed} |")
    return lines


def _nets(found: Results) -> list[str]:
    lines = [
        "## Rank correlation of the scores with the measured rates, batch by batch", "",
        "Spearman's correlation within a batch of 16 that was just selected by these scores (so "
        "the range is narrow), mean over batches after the first; `blended` is the share of "
        "batches after which the safety net listened to XGB.", "",
        "| method | ours | the running XGB's | blended |", "|---|---|---|---|",
    ]  # fmt: skip
    for ours in _OURS:
        batches = [
            batch
            for key, result in found.items()
            if key[1] == ours
            for batch in result["usage"]["batches"]
            if batch["peer"] is not None
        ]
        if batches:
            own = np.mean([batch["own"] for batch in batches])
            peer = np.mean([batch["peer"] for batch in batches])
            blended = np.mean([batch["peer_share"] > 0 for batch in batches])
            lines.append(f"| {ours} | {own:.2f} | {peer:.2f} | {blended:.0%} |")
    return lines


def _csv(
    found: Results,
    timed: Mapping[str, Mapping[str, Any]],
    best: Mapping[tuple[str, str, int, int], float],
    device: str,
) -> str:
    rows: list[list[Any]] = []
    for (task, method, seed, trials), value in sorted(best.items()):
        n = len(timed[task]["seconds"]["untuned"])
        rows.append(["search", "", "", device, task, method, seed, f"best_s_at_{trials}", value, n])
    for (task, method, seed), result in sorted(found.items()):
        n = len(result["latency_s"])
        for metric in ("wall_s", "cost_model_s"):
            value = result[metric]
            rows.append(["search", "", "", device, task, method, seed, metric, value, n])
    return tidy_csv(rows)


def _plot(
    found: Results,
    best: Mapping[tuple[str, str, int, int], float],
    tasks: Mapping[str, str],
    methods: Sequence[str],
    path: Path,
) -> None:
    """Draws the shortest latency so far against trials, one panel a task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(15, 6.5), squeeze=False)
    for axis, task in zip(axes.flat, tasks, strict=True):
        for number, method in enumerate(methods):
            curves = [
                _curve(result["latency_s"])
                for key, result in found.items()
                if key[:2] == (task, method)
            ]
            if not curves:
                continue
            length = min(map(len, curves))
            mean = np.exp(np.nanmean(np.log([curve[:length] for curve in curves]), axis=0))
            axis.plot(np.arange(1, length + 1), 1e6 * mean, color=f"C{number}", label=method)
            for trials in (16, 64, 256):
                values = [v for k, v in best.items() if k[:2] == (task, method) and k[3] == trials]
                if values:
                    axis.plot([trials], [1e6 * np.exp(np.mean(np.log(values)))], "o",
                              color=f"C{number}", markersize=4)  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_title(task)
        axis.set_xlabel("programs measured")
        axis.set_ylabel("shortest latency, us")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(methods), fontsize=9)
    figure.suptitle("Lines: readings during the searches, mean of seeds. Points: timed again.")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=80)
    plt.close(figure)
    temporary.replace(path)


def _curve(latency_s: Sequence[float | None]) -> Any:
    values = np.array([np.nan if value is None else value for value in latency_s], float)
    return np.fmin.accumulate(values)
