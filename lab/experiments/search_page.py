"""The page of `search`: its tables, curves and tidy rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.experiments.shipped_labels import met_before
from lab.figures import ratio_text
from lab.pages import sections, write_page
from lab.paths import PAGES, RESULTS
from lab.stamp import PROGRAMS, stamp

Results = Mapping[tuple[str, str, int], Mapping[str, Any]]
_PEERS = ("xgb", "xgb-warm0")
_OURS = ("cdmpp", "cdmpp-finetune", "cdmpp-alone", "cdmpp-verify")
#: A median over repeats says which of two programs is faster to within about this share.
_WORST = 1.05


def write_results(
    found: Results,
    timed: Mapping[str, Mapping[str, Any]],
    *,
    name: str,
    tasks: Mapping[str, str],
    methods: Sequence[str],
) -> None:
    """Writes the four files.

    Args:
        found: (task, method, seed) -> result of a search.
        timed: task -> winners and their readings.
        name: of the page.
        tasks: short name -> full name.
        methods: in the order of the columns.
    """
    best = best_times(timed)
    methods = [method for method in methods if any(key[1] == method for key in found)]
    some = next(iter(found.values()))
    page = _markdown(found, timed, best, name, tasks, methods)
    parts = [result.get("stamp") for result in found.values()]
    origin = stamp(f"python -m lab run {name}", schemas=PROGRAMS, parts=parts)
    models = sorted({str(result["model"]) for result in found.values() if result["model"]})
    write_page(name, page, {
        "device": some["device"], "models": models,
        "searches": len(found), "trials": sum(len(r["latency_s"]) for r in found.values()),
        "untuned_s": {task: _median(times, "untuned") for task, times in timed.items()},
        "best_s": {" ".join(map(str, key)): value for key, value in sorted(best.items())},
    }, origin, rows=_rows(found, timed, best, str(some["device"])))  # fmt: skip
    folder = PAGES if (PAGES / f"{name}.png").is_file() else RESULTS
    _plot(found, best, tasks, methods, folder / f"{name}.png")


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
    name: str,
    tasks: Mapping[str, str],
    methods: Sequence[str],
) -> str:
    architecture = next(iter(timed.values())).get("architecture")
    chip = f" ({architecture})" if architecture else ""
    latencies = [value for result in found.values() for value in result["latency_s"]]
    counts = {
        "searches": len(found), "programs": len(latencies), "failed": latencies.count(None),
        "after": " and ".join(map(str, sorted({key[3] for key in best}))),
    }  # fmt: skip
    lines = [
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
    lines += [f"![curves]({name}.png)", "", *_walls(found, methods), "", *_nets(found)]
    lines += ["Tasks: " + "; ".join(f"`{text}`" for text in tasks.values()) + "."]
    return sections(
        name, chip=chip, met_before=met_before(str(architecture)), tables="\n".join(lines),
        **{key: str(value) for key, value in counts.items()},
    )  # fmt: skip


def _cell(value: float | None, least: float) -> str:
    if value is None:
        return ""
    text = f"{1e6 * value:.1f}"
    return f"**{text}**" if value <= least * 1.001 else text


def over_peers(
    best: Mapping[tuple[str, str, int, int], float],
    tasks: Mapping[str, str],
    method: str,
    trials: int,
    of_peers: int,
) -> dict[str, tuple[float, int]]:
    """Returns task -> (latency of a method over that of the better XGB, seeds that all have).

    Args:
        trials: measured programs of the method.
        of_peers: measured programs of XGB; a setting that was not searched so far is left out.
    """
    found = {}
    for task in tasks:
        peers = [peer for peer in _PEERS if common_seeds(best, task, [peer], [of_peers])]
        seeds = sorted(
            set(common_seeds(best, task, [method], [trials]))
            & set(common_seeds(best, task, peers, [of_peers]) if peers else [])
        )
        own = over_seeds(best, task, method, trials, seeds)
        theirs = [over_seeds(best, task, peer, of_peers, seeds) for peer in peers]
        known = [value for value in theirs if value is not None]
        if own is not None and known:
            found[task] = (own / min(known), len(seeds))
    return found


def _relative(
    best: Mapping[tuple[str, str, int, int], float],
    tasks: Mapping[str, str],
    methods: Sequence[str],
) -> list[str]:
    lines = [
        "## Latency over that of the better XGB of the task",
        "",
        "Geometric mean over tasks, 95 % interval over tasks (Student's t). The better XGB is the "
        "better of its two settings, where both were searched so far.",
        "",
        "| after | XGB after | tasks | " + " | ".join(methods) + " |",
        "|---|---|---|" + "---|" * len(methods),
    ]
    for trials, of_peers in ((16, 16), (64, 64), (16, 64), (64, 256), (256, 256)):
        found = {m: over_peers(best, tasks, m, trials, of_peers) for m in methods}
        most = max(map(len, found.values()))
        cells = [
            ratio_text([ratio for ratio, _ in rows.values()]) if rows and len(rows) == most else "-"
            for rows in found.values()
        ]
        if any(cell != "-" for cell in cells):
            lines.append(f"| {trials} | {of_peers} | {most} | " + " | ".join(cells) + " |")
    return lines


def _goals(best: Mapping[tuple[str, str, int, int], float], tasks: Mapping[str, str]) -> list[str]:
    lines = ["## Task by task", ""]
    for ours in _OURS:
        rows = over_peers(best, tasks, ours, 64, 256)
        if rows:
            each = ", ".join(f"{task} {ratio:.3f} ({n} seeds)" for task, (ratio, n) in rows.items())
            text = ratio_text([ratio for ratio, _ in rows.values()])
            lines.append(
                f"- `{ours}` after 64 trials over the better XGB after 256: {text}: {each}."
            )
        asked = [
            (ratio, task, trials)
            for trials in (16, 64, 256)
            for task, (ratio, _) in over_peers(best, tasks, ours, trials, trials).items()
        ]
        if asked:
            over = sorted((row for row in asked if row[0] > _WORST), reverse=True)
            named = ", ".join(f"{task} at {trials} {ratio:.2f}" for ratio, task, trials in over)
            lines.append(
                f"- `{ours}` behind the better XGB at equal trials by more than 5 %: {len(over)} "
                f"of {len(asked)}{': ' + named if over else ''}."
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
    rows = []
    for ours in _OURS:
        batches = [
            batch
            for key, result in found.items()
            if key[1] == ours and result["usage"]
            for batch in result["usage"]["batches"]
            if batch["peer"] is not None
        ]
        if batches:
            own = np.mean([batch["own"] for batch in batches])
            peer = np.mean([batch["peer"] for batch in batches])
            blended = np.mean([batch["peer_share"] > 0 for batch in batches])
            rows.append(f"| {ours} | {own:.2f} | {peer:.2f} | {blended:.0%} |")
    if not rows:
        return []
    return [
        "## Rank correlation of the scores with the measured rates, batch by batch", "",
        "Spearman's correlation within a batch of 16 that was just selected by these scores (so "
        "the range is narrow), mean over batches after the first; `blended` is the share of "
        "batches after which the safety net listened to XGB.", "",
        "| method | ours | the running XGB's | blended |", "|---|---|---|---|", *rows, "",
    ]  # fmt: skip


def _rows(
    found: Results,
    timed: Mapping[str, Mapping[str, Any]],
    best: Mapping[tuple[str, str, int, int], float],
    device: str,
) -> Iterator[tuple[Any, ...]]:
    for (task, method, seed, trials), value in sorted(best.items()):
        n = len(timed[task]["seconds"]["untuned"])
        yield "search", "", "", device, task, method, seed, f"best_s_at_{trials}", value, n
    for (task, method, seed), result in sorted(found.items()):
        n = len(result["latency_s"])
        for metric in ("wall_s", "cost_model_s"):
            yield "search", "", "", device, task, method, seed, metric, result[metric], n


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
